"""Every planted fault is caught: by a contract of the test kit, or in the simulation."""

import logging
from collections.abc import Callable, Iterator, Sequence

import pytest

import engine.scripted
import tests.simulation.scenario
import tests.simulation.system
from postproc_workers.testkit import assert_contract, assert_parser_contract
from postproc_workers.tokens import token_table
from tests.mutations.faults import (
    LEDGER_FAULTS,
    PARSER_FAULTS,
    REGISTRY_FAULTS,
    STREAMS_FAULTS,
    Fault,
)
from tests.postproc_workers.turns import RecordingSink
from tests.simulation.scenario import simulate

SEEDS = range(60)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What faults log is of no interest, and would hold on to the streams that failed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("fault", REGISTRY_FAULTS, ids=str)
def test_the_contract_catches(fault: Fault) -> None:
    registry = fault.planted().Registry
    with pytest.raises(Exception):  # noqa: B017, PT011  any complaint will do
        assert_contract(registry, max_examples=400, shrink=False)


@pytest.mark.parametrize("fault", PARSER_FAULTS, ids=str)
def test_the_parsers_contract_catches(fault: Fault) -> None:
    stream = fault.planted().HarmonyStream

    def parse(steps: Sequence[list[int]], cut: bool) -> object:
        sink = RecordingSink()
        reader = stream(sink, token_table())
        for step in steps:
            reader.feed(step)
        reader.finish(cut)
        return sink.messages, reader.consumed

    with pytest.raises(Exception):  # noqa: B017, PT011
        assert_parser_contract(parse, shrink=False)


@pytest.mark.parametrize("fault", STREAMS_FAULTS, ids=str)
def test_the_simulation_catches_in_the_frontend(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = fault.planted()
    monkeypatch.setattr(tests.simulation.system, "Streams", streams.Streams)
    for refusal in ("NoWorkerError", "NoEngineError"):
        monkeypatch.setattr(tests.simulation.scenario, refusal, getattr(streams, refusal))
    caught(lambda: [simulate(s, most=20_000, poison=p) for s in SEEDS for p in (False, True)])


@pytest.mark.parametrize("fault", LEDGER_FAULTS, ids=str)
def test_the_simulation_catches_in_the_engine(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scripted, "Ledger", fault.planted().Ledger)
    caught(lambda: [simulate(seed, most=20_000) for seed in SEEDS])


def caught(run: Callable[[], object]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        run()

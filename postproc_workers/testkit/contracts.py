"""What a registry and a parser owe, as functions that raise AssertionError if they do not."""

import gc
import logging
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from ipc.messages import Abort, Owner
from postproc_workers.testkit.machine import (
    RegistryFactory,
    RegistryUnderTest,
    hello,
    machine_for,
    opening,
)
from postproc_workers.testkit.model import ScriptedProcessor
from postproc_workers.testkit.strategies import soup, steps, turns

R = TypeVar("R")

_NOT_KEPT = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def assert_contract(
    make_registry: RegistryFactory,
    *,
    max_examples: int = 200,
    step_count: int = 40,
    shrink: bool = True,
) -> None:
    """Raise AssertionError unless a registry keeps L1 to L9, and say by which messages it fails.

    `make_registry` makes an empty registry, and is handed what makes a stream's post-processing.
    More examples and steps search longer; without `shrink` the first failure found is told as it
    is, which is faster.
    """
    with _log_silenced():
        run_state_machine_as_test(
            machine_for(make_registry),
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=step_count,
                phases=_phases(shrink),
                deadline=None,
                derandomize=True,
                database=None,
            ),
        )
    assert_bounded(make_registry)


def assert_bounded(make_registry: RegistryFactory) -> None:
    """L9: raise AssertionError if what a registry keeps grows with the streams it has released."""
    registry = make_registry(ScriptedProcessor)
    owner = Owner(0, 1)
    registry.handle(owner, hello(owner), 0)
    _open_and_abort(registry, owner, range(50))
    few = _kept(registry)
    _open_and_abort(registry, owner, range(50, 500))
    assert _kept(registry) <= few + 10, "released streams leave something behind"


def assert_parser_contract(
    parse: Callable[[Sequence[list[int]], bool], R],
    *,
    max_examples: int = 200,
    shrink: bool = True,
) -> None:
    """L6: raise AssertionError if what a parser makes of tokens depends on how they are cut.

    `parse` reads the steps of one turn with a fresh parser and returns all that it made of them;
    its second argument says that a limit cut the turn off. It must not raise for any tokens.
    """

    @settings(
        max_examples=max_examples,
        phases=_phases(shrink),
        deadline=None,
        derandomize=True,
        database=None,
    )
    @given(turns().map(lambda turn: turn.tokens) | soup(), st.booleans(), st.data())
    def cuts_change_nothing(tokens: list[int], cut: bool, data: st.DataObject) -> None:
        whole = parse([tokens], cut)
        assert parse([[token] for token in tokens], cut) == whole
        assert parse(data.draw(steps(tokens)), cut) == whole

    cuts_change_nothing()


@contextmanager
def _log_silenced() -> Iterator[None]:
    """Records of failures hold on to the streams that failed, wherever a log keeps them (pytest
    does), and so to what must not be left."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _phases(shrink: bool) -> list[Phase]:
    return [Phase.generate, Phase.shrink] if shrink else [Phase.generate]


def _open_and_abort(registry: RegistryUnderTest, owner: Owner, leases: range) -> None:
    for lease in leases:
        registry.handle(owner, opening(lease, lease, "fine"), 0)
        registry.handle(owner, Abort(lease, lease), 0)


def _kept(registry: RegistryUnderTest) -> int:
    """How many objects can be reached from a registry."""
    seen: set[int] = set()
    waiting: list[object] = [registry]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, _NOT_KEPT):
            seen.add(id(found))
            waiting += gc.get_referents(found)
    return len(seen)

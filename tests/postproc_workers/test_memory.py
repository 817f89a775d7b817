"""Nothing stays of streams that have ended, however many there were."""

import gc
import multiprocessing
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import psutil

from bench.harmony_traces import turn
from ipc import codec
from ipc.messages import Finish, Open, Owner, Step, Tokens
from postproc_workers.registry import Registry
from postproc_workers.testkit.strategies import harmony
from tests.postproc_workers.turns import RESPONSES, opening

OWNER = Owner(1, 1)
MIB = 2**20
SMALLEST_OBJECT = 28
CONCURRENT = 20
WARM_UP_ROUNDS = 3


def open_stream(registry: Registry, number: int) -> None:
    base = opening(RESPONSES)
    registry.open(
        OWNER,
        Open(number, number, f"resp_{number:032x}", base.model, base.created, 17, RESPONSES, True),
        0,
    )


def frames(numbers: range, trace: list[int], tokens_per_step: int) -> Iterator[bytes]:
    """The steps of streams that run side by side, as an engine sends them."""
    for start in range(0, len(trace), tokens_per_step):
        ids = trace[start : start + tokens_per_step]
        finish = Finish("stop") if start + tokens_per_step >= len(trace) else None
        yield codec.encode(Step([Tokens(n, n, start, ids, finish) for n in numbers]))


def serve(registry: Registry, numbers: range, trace: list[int], tokens_per_step: int = 1) -> int:
    """Serve the same turn on all the streams, from frame to frame; the bytes that came of it."""
    sent = 0
    for number in numbers:
        open_stream(registry, number)
    for frame in frames(numbers, trace, tokens_per_step):
        step = codec.frontend_to_worker(frame)
        assert isinstance(step, Step)
        outputs = registry.step(OWNER, step, 0)
        sent += 0 if outputs is None else len(codec.encode(outputs))
    return sent


def test_l5_nothing_left_of_a_hundred_turns() -> None:
    registry = Registry()
    registry.owner_arrived(OWNER)
    trace = turn(harmony(), 120)

    def serve_hundred(first: int) -> int:
        for start in range(first, first + 100, CONCURRENT):
            assert serve(registry, range(start, start + CONCURRENT), trace) > CONCURRENT * 120
            assert registry.live == 0
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = serve_hundred(0)
        growth = serve_hundred(100) - before
    finally:
        tracemalloc.stop()
    assert registry.opened == registry.released["final"] == 200
    assert growth < 100 * SMALLEST_OBJECT


def growth_over_two_hundred_turns() -> int:
    """Bytes by which this process grows over 200 turns of 4,009 tokens, after a warm-up."""
    registry = Registry()
    registry.owner_arrived(OWNER)
    trace = turn(harmony(), 4_009)
    process = psutil.Process()
    before = 0
    for round_number in range(WARM_UP_ROUNDS + 200 // CONCURRENT):
        if round_number == WARM_UP_ROUNDS:
            before = process.memory_info().rss
        first = round_number * CONCURRENT
        serve(registry, range(first, first + CONCURRENT), trace)
        gc.collect()
    assert registry.live == 0
    return process.memory_info().rss - before


def test_two_hundred_long_turns_leave_no_memory() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(growth_over_two_hundred_turns).result() < MIB

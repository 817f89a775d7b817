"""The core over a fake AsyncLLM in its event loop's thread: what is said, and what vLLM is told."""

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
import zmq

from engine.executor import EngineListener, Executor
from engine.ledger import ErrorCode
from engine.vllm.core import Counters, EngineDiedError, EngineHungError, Limits, VllmCore
from engine.vllm.generations import Generations
from engine.vllm.requests import Abilities
from engine.vllm.turns import packed
from engine.wakeup import Wakeup
from ipc import codec
from ipc.messages import (
    Constraint,
    ErrorResponse,
    Finish,
    Grammar,
    Owner,
    Reassign,
    TokenLogprobs,
    Tokens,
)
from ipc.vocabulary import SIZE
from tests.engine.builders import INFO, OWNER, make_request
from tests.engine.client import PATIENCE_MS, Client
from tests.engine.vllm.fake import (
    GATE,
    HANG,
    FakeAsyncLlm,
    FakeCompletion,
    FakeLogprob,
    FakeOutput,
    ScriptItem,
    said,
)

OTHER = Owner(frontend=2, epoch=1)
SECONDS = 10.0
THREE, SLOW, BROKEN, ABORTED, MUTE, CACHED, LIKELY, GATED = range(10, 18)
SCRIPTS: dict[int, list[ScriptItem]] = {
    THREE: [said(1), said(2), said(3, finish="length")],
    SLOW: [said(1), said(2), HANG],
    BROKEN: [said(1), ArithmeticError("no")],
    ABORTED: [said(1), said(finish="abort")],
    MUTE: [said(1)],
    CACHED: [said(1, 2, cached=16), said(finish="stop", cached=16)],
    GATED: [GATE, said(1), GATE, said(2), GATE, said(3, finish="length")],
    LIKELY: [
        FakeOutput([FakeCompletion([7], None, [{7: FakeLogprob(-0.5, 1)}])]),
        FakeOutput([FakeCompletion([8], "length", [{8: FakeLogprob(-0.25, 1)}])]),
    ],
}


class System:
    """A core, its fake, and all that was said."""

    def __init__(self, llm: FakeAsyncLlm, limits: Limits) -> None:
        self.llm = llm
        self.now = 0.0
        self.counters = Counters()
        self.wakeup = Wakeup()
        self.generations = Generations(llm, dict, self.wakeup.set)
        self.core = VllmCore(INFO, self.generations, self.counters, limits, lambda: self.now)
        self.tokens: list[Tokens] = []
        self.errors: list[ErrorResponse] = []
        self.steps = 0

    def run_until(self, condition: Callable[[], object]) -> None:
        """Step whenever the core has something to do; fail if nothing comes any more."""
        while not condition():
            if self.core.wait() is None:
                ready, _, _ = select.select([self.wakeup], [], [], SECONDS)
                assert ready, "nothing comes any more"
            self.wakeup.clear()
            for step in self.core.step().values():
                self.steps += 1
                self.tokens += step.tokens
                self.errors += step.errors

    def run_steps(self, count: int) -> None:
        """Step until there were `count` steps since the start."""
        self.run_until(lambda: self.steps >= count)

    def step_for_ever(self) -> NoReturn:
        while True:
            self.core.step()

    def ids(self, stream_id: int) -> list[int]:
        return [i for tokens in self.tokens if tokens.stream_id == stream_id for i in tokens.ids]

    def ended(self, count: int = 1) -> Callable[[], bool]:
        """Whether `count` streams have ended."""
        return lambda: sum(t.finish is not None for t in self.tokens) + len(self.errors) == count


@contextmanager
def running(**limits: Any) -> Iterator[System]:
    system = System(FakeAsyncLlm(SCRIPTS), Limits(**({"live": 100, "silence": 60.0} | limits)))
    try:
        yield system
    finally:
        system.generations.close()
        system.wakeup.close()
        assert system.llm.shut_down


@pytest.fixture
def system() -> Iterator[System]:
    with running() as system:
        yield system


def test_tokens_in_order_and_the_end(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[THREE, 5], max_tokens=3))
    assert system.core.status().running == 1
    system.run_until(system.ended())
    assert [(t.start, t.ids) for t in system.tokens] == [(0, [1]), (1, [2]), (2, [3])]
    assert system.tokens[-1].finish == Finish("length")
    status = system.core.status()
    assert (status.running, status.waiting, status.kept) == (0, 0, 1)
    assert (status.generated_tokens, status.prompt_tokens) == (3, 2)
    system.core.cancel(OWNER, 1, 1)
    assert system.core.status().kept == 0
    assert system.llm.aborted == []


def test_what_vllm_is_given(system: System) -> None:
    request = msgspec.structs.replace(make_request(1, prompt=[THREE], top_k=3), priority=4)
    system.core.add(OWNER, request)
    system.run_until(system.ended())
    [(prompt, params, priority)] = system.llm.calls.values()
    assert prompt["prompt_token_ids"] == [THREE]
    assert (params["top_k"], priority) == (3, 4)


def test_what_comes_together_is_said_in_one_step(system: System) -> None:
    for stream_id in range(1, 11):
        system.core.add(OWNER, make_request(stream_id, prompt=[GATED], max_tokens=3))
    for steps in (1, 2, 3):
        system.llm.open_gate(10)
        system.run_steps(steps)
        assert (system.steps, len(system.tokens)) == (steps, 10 * steps)
    assert all(system.ids(stream_id) == [1, 2, 3] for stream_id in range(1, 11))


def test_cached_tokens_are_told_with_the_first(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[CACHED]))
    system.run_until(system.ended())
    told = [(t.ids, t.cached_tokens, t.finish) for t in system.tokens]
    assert told == [([1, 2], 16, None), ([], 0, Finish("stop"))]


def test_logprobs_come_only_if_asked_for(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[LIKELY], logprobs=1))
    system.core.add(OWNER, make_request(2, prompt=[LIKELY]))
    system.run_until(system.ended(2))
    told = {
        stream: [t.logprobs for t in system.tokens if t.stream_id == stream] for stream in (1, 2)
    }
    assert told[1] == [[TokenLogprobs(-0.5, [(7, -0.5)])], [TokenLogprobs(-0.25, [(8, -0.25)])]]
    assert told[2] == [None, None]


def test_cancel_aborts_and_nothing_more_is_said(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.core.cancel(OWNER, 1, lease=2)
    assert system.core.status().running == 1
    system.core.cancel(OWNER, 1, lease=1)
    system.core.cancel(OWNER, 1, lease=1)
    assert system.llm.idle.wait(SECONDS)
    assert system.llm.aborted == ["0"]
    status = system.core.status()
    assert (status.running, status.kept, status.rejected) == (0, 0, 1)
    assert system.core.wait() is None


def test_outputs_on_their_way_at_a_cancel_are_dropped(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[THREE]))
    assert select.select([system.wakeup], [], [], SECONDS)[0]
    system.core.cancel(OWNER, 1, lease=1)
    assert system.core.step() == {}


def test_a_lost_owner_is_aborted(system: System) -> None:
    system.core.hello(OTHER)
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.core.add(OTHER, make_request(1, prompt=[SLOW]))
    system.run_until(lambda: sorted(system.ids(1)) == [1, 1, 2, 2])
    system.core.owner_lost(OTHER)
    assert system.llm.idle.wait(SECONDS)
    assert system.core.status().running == 1
    assert system.llm.aborted == ["1"]


def test_a_new_lease_aborts_the_old_one(system: System) -> None:
    system.core.add(OWNER, make_request(1, lease=1, prompt=[SLOW]))
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.core.add(OWNER, make_request(1, lease=2, prompt=[THREE]))
    system.run_until(system.ended())
    assert system.ids(1) == [1, 2, 1, 2, 3]
    assert system.llm.aborted == ["0"]


def test_a_moved_stream_is_said_again(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.core.reassign(OWNER, Reassign(1, worker=3, lease=2))
    [(destination, step)] = system.core.step().items()
    assert destination == (OWNER, 3)
    assert step.tokens == [Tokens(1, 2, 0, [1, 2])]


@pytest.mark.parametrize("prompt", [BROKEN, ABORTED, MUTE])
def test_a_failure_ends_its_own_stream(system: System, prompt: int) -> None:
    system.core.add(OWNER, make_request(1, prompt=[prompt]))
    system.core.add(OWNER, make_request(2, prompt=[THREE]))
    system.run_until(system.ended(2))
    [error] = system.errors
    assert (error.stream_id, error.code) == (1, "internal")
    assert system.ids(1) == [1]
    assert system.ids(2) == [1, 2, 3]
    assert system.core.status().running == 0


def test_whose_fault_an_error_is() -> None:
    def code(error: Exception) -> ErrorCode:
        return "invalid_request" if isinstance(error, ArithmeticError) else "internal"

    with running(error_code=code) as system:
        system.core.add(OWNER, make_request(1, prompt=[BROKEN]))
        system.run_until(system.ended())
        assert system.errors == [ErrorResponse(1, 1, "invalid_request", "no")]


def test_a_bad_request_never_reaches_vllm(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[]))
    system.run_until(system.ended())
    assert system.errors[0].code == "invalid_request"
    assert system.llm.calls == {}


def test_a_grammar_that_does_not_compile_is_the_clients_fault() -> None:
    with running(abilities=Abilities(constraints=True)) as system:
        system.core.info = msgspec.structs.replace(INFO, vocabulary_size=SIZE)
        for stream_id, pattern in ((1, "("), (2, "a")):
            request = make_request(stream_id, prompt=[THREE])
            constraint = Constraint(final=Grammar("regex", pattern))
            system.core.add(OWNER, msgspec.structs.replace(request, constraint=constraint))
        system.run_until(system.ended(2))
        [error] = system.errors
        assert (error.stream_id, error.code) == (1, "invalid_request")
        assert "the grammar cannot be compiled" in error.message
        [(_, params, _)] = system.llm.calls.values()
        assert params["extra_args"] == packed(Constraint(final=Grammar("regex", "a")))


def test_more_than_may_be_live_are_turned_away() -> None:
    with running(live=1) as system:
        system.core.add(OWNER, make_request(1, prompt=[SLOW]))
        system.core.add(OWNER, make_request(2, prompt=[THREE]))
        system.run_until(system.ended())
        assert [(e.stream_id, e.code) for e in system.errors] == [(2, "overloaded")]
        system.core.cancel(OWNER, 1, 1)
        system.core.add(OWNER, make_request(3, prompt=[THREE]))
        system.run_until(system.ended(2))
        assert system.ids(3) == [1, 2, 3]


def test_shutting_down_tells_every_stream(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.core.shut_down()
    system.run_until(system.ended())
    assert system.errors[0].code == "overloaded"
    assert system.llm.idle.wait(SECONDS)


def test_a_dead_engine_raises_and_blames_no_stream(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.llm.errored = True
    with pytest.raises(EngineDiedError):
        system.core.wait()
    assert system.core.status().errors == 0


def test_an_error_of_a_dead_engine_is_no_streams_own(system: System) -> None:
    system.core.add(OWNER, make_request(1, prompt=[BROKEN]))
    assert select.select([system.wakeup], [], [], SECONDS)[0]
    system.llm.errored = True
    with pytest.raises(EngineDiedError):
        system.step_for_ever()
    assert system.core.status().errors == 0


def test_an_engine_that_says_nothing_has_hung(system: System) -> None:
    system.now = 1000.0
    assert system.core.wait() is None
    system.core.add(OWNER, make_request(1, prompt=[SLOW]))
    system.now = 1050.0
    system.run_until(lambda: system.ids(1) == [1, 2])
    system.now = 1109.0
    assert system.core.wait() is None
    system.now = 1111.0
    with pytest.raises(EngineHungError, match="61 s"):
        system.core.wait()
    system.core.cancel(OWNER, 1, 1)
    assert system.core.wait() is None


def test_what_vllm_tells_of_itself() -> None:
    with running(total_blocks=200) as system:
        system.core.add(OWNER, make_request(1, prompt=[SLOW]))
        system.core.add(OWNER, make_request(2, prompt=[SLOW]))
        cache = SimpleNamespace(queries=30, hits=16)
        scheduler = SimpleNamespace(
            num_waiting_reqs=1,
            num_skipped_waiting_reqs=0,
            kv_cache_usage=0.25,
            prefix_cache_stats=cache,
        )
        system.counters.record(scheduler, SimpleNamespace(num_preempted_reqs=2))
        system.counters.record(scheduler, None)
        system.counters.record(None, None)
        status = system.core.status()
        assert (status.running, status.waiting) == (1, 1)
        assert (status.free_blocks, status.total_blocks) == (150, 200)
        assert (status.prefix_queried_tokens, status.prefix_hit_tokens) == (60, 32)
        assert (status.steps, status.preemptions) == (3, 2)
        system.core.owner_lost(OWNER)
        status = system.core.status()
        assert (status.running, status.waiting, status.free_blocks) == (0, 0, 200)


def test_the_executor_does_not_wait_for_its_next_look_around(
    system: System, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look around after longer than the client waits."""
    monkeypatch.setattr("engine.executor.POLL_SECONDS", 2 * PATIENCE_MS / 1000)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    decode, wakeup = codec.frontend_to_engine, system.wakeup
    listener = EngineListener(context, address, decode, INFO, wakeup=wakeup)
    executor = Executor(system.core, listener, wakeup=wakeup)
    thread = threading.Thread(target=executor.run)
    thread.start()
    try:
        with Client(address) as client:
            client.send(make_request(1, prompt=[GATED]))
            for _ in range(3):
                client.status()
                system.llm.open_gate(1)
                client.hear_step()
            assert client.hear_end(1) == ([1, 2, 3], "length")
            # The executor is woken once, and not over and over.
            deadline = time.monotonic() + SECONDS
            while select.select([wakeup], [], [], 0)[0]:
                assert time.monotonic() < deadline
    finally:
        executor.stop()
        wakeup.set()
        thread.join()
        listener.close()
        context.term()

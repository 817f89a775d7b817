"""The model core over a runner that computes tokens by rule: what is said to whom, and when."""

from collections.abc import Sequence as Sequences
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

from engine.batch import Sampled
from engine.core import ModelCore
from engine.ledger import Steps
from engine.scheduler import Scheduled
from engine.sequence import END_TOKENS
from ipc.block_hashes import extend_hashes, root_hash
from ipc.messages import (
    BlockEvents,
    EngineInfo,
    ErrorResponse,
    Finish,
    GenerationRequest,
    Owner,
    Reassign,
    TokenLogprobs,
    Tokens,
)
from ipc.vocabulary import CALL, RETURN
from tests.engine.builders import INFO, OWNER, make_request, make_scheduler

OTHER = Owner(frontend=2, epoch=1)
POISON = 13
"""A runner raises over a sequence that begins with this token."""


class RuleRunner:
    """The next token is the sequence's length, or what `script` says for that length."""

    def __init__(self, script: dict[int, int] | None = None) -> None:
        self.script = script or {}
        self.batches: list[int] = []

    def run(self, scheduled: Sequences[Scheduled]) -> list[Sampled | None]:
        self.batches.append(len(scheduled))
        if any(item.sequence.tokens[0] == POISON for item in scheduled):
            raise ArithmeticError("poison")
        return [self._next(item) if item.samples else None for item in scheduled]

    def _next(self, item: Scheduled) -> Sampled:
        length = len(item.sequence.tokens)
        logprobs = TokenLogprobs(-float(length), [(length, -float(length))])
        told = logprobs if item.sequence.sampling.logprobs is not None else None
        return Sampled(self.script.get(length, length), told)


def make_core(
    script: dict[int, int] | None = None,
    blocks: int = 100,
    max_sequences: int = 8,
    max_waiting: int = 100,
    info: EngineInfo = INFO,
) -> ModelCore:
    scheduler = make_scheduler(blocks, max_sequences, max_step_tokens=16)
    return ModelCore(info, RuleRunner(script), scheduler, lambda: 0, max_waiting)


def run(core: ModelCore) -> list[Steps]:
    """Step until there is nothing to do."""
    steps = []
    while core.wait() == 0.0:
        steps.append(core.step())
    return steps


def tokens_of(steps: list[Steps], stream_id: int = 1) -> list[int]:
    return [
        token
        for step in steps
        for group in step.values()
        for tokens in group.tokens
        if tokens.stream_id == stream_id
        for token in tokens.ids
    ]


def errors_of(steps: list[Steps]) -> list[ErrorResponse]:
    return [error for step in steps for group in step.values() for error in group.errors]


def only_error(core: ModelCore, request: GenerationRequest) -> ErrorResponse:
    core.add(OWNER, request)
    [error] = errors_of(run(core))
    assert core.status().free_blocks == core.status().total_blocks
    return error


def test_a_request_is_answered_token_by_token() -> None:
    core = make_core()
    core.add(OWNER, make_request(max_tokens=2))
    assert [step[OWNER, 0].tokens for step in run(core)] == [
        [Tokens(1, 1, 0, [3])],
        [Tokens(1, 1, 1, [4], Finish("length"))],
    ]
    status = core.status()
    assert (status.prompt_tokens, status.generated_tokens, status.steps) == (3, 2, 2)
    assert (status.running, status.waiting, status.free_blocks) == (0, 0, 100)


def test_logprobs_are_said_with_their_tokens_and_again_to_another_worker() -> None:
    core = make_core()
    core.add(OWNER, make_request(max_tokens=2, logprobs=1))
    first, second = TokenLogprobs(-3.0, [(3, -3.0)]), TokenLogprobs(-4.0, [(4, -4.0)])
    assert [step[OWNER, 0].tokens for step in run(core)] == [
        [Tokens(1, 1, 0, [3], logprobs=[first])],
        [Tokens(1, 1, 1, [4], Finish("length"), logprobs=[second])],
    ]
    core.reassign(OWNER, Reassign(stream_id=1, worker=2, lease=9))
    assert core.step()[OWNER, 2].tokens == [
        Tokens(1, 9, 0, [3, 4], Finish("length"), logprobs=[first, second])
    ]


def test_a_step_is_grouped_by_owner_and_worker() -> None:
    core = make_core()
    for stream_id, worker in ((1, 0), (2, 1), (3, 1)):
        request = make_request(stream_id)
        core.add(OWNER, GenerationRequest(stream_id, stream_id, worker, [1], request.sampling))
    core.add(OTHER, make_request(1))
    step = core.step()
    ids = {to: [tokens.stream_id for tokens in group.tokens] for to, group in step.items()}
    assert ids == {(OWNER, 0): [1], (OWNER, 1): [2, 3], (OTHER, 0): [1]}


@pytest.mark.parametrize(
    ("sampling", "last", "reason"),
    [
        ({}, RETURN, "stop"),
        ({"ignore_eos": True}, CALL + 1, "length"),
        ({"stop_token_ids": (7,)}, 7, "stop"),
        ({"ignore_eos": True, "stop_token_ids": (7,)}, 7, "stop"),
    ],
)
def test_stop_tokens(sampling: dict[str, Any], last: int, reason: str) -> None:
    core = make_core({5: 7, 6: RETURN, 7: CALL, 8: CALL + 1})
    core.add(OWNER, make_request(max_tokens=6, **sampling))
    steps = run(core)
    assert tokens_of(steps)[-1] == last
    assert steps[-1][OWNER, 0].tokens[0].finish == Finish(reason)  # type: ignore[arg-type]


def test_the_end_tokens_are_those_of_openai_harmony() -> None:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    assert set(encoding.stop_tokens_for_assistant_actions()) <= END_TOKENS


def test_call_ends_a_sequence_too() -> None:
    core = make_core({5: CALL})
    core.add(OWNER, make_request(max_tokens=6))
    assert tokens_of(run(core)) == [3, 4, CALL]


def test_the_context_length_ends_a_sequence() -> None:
    core = make_core()
    core.add(OWNER, make_request(prompt=[1] * 60, max_tokens=1000))
    steps = run(core)
    assert tokens_of(steps) == [60, 61, 62, 63]
    assert steps[-1][OWNER, 0].tokens[0].finish == Finish("length")


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (make_request(prompt=[]), "invalid_request", "prompt is empty"),
        (make_request(prompt=[300]), "invalid_request", "prompt has a token"),
        (make_request(prompt=[-1]), "invalid_request", "prompt has a token"),
        (make_request(stop_token_ids=(300,)), "invalid_request", "stop_token_ids"),
        (make_request(max_tokens=0), "invalid_request", "max_tokens"),
        (make_request(min_tokens=5), "invalid_request", "min_tokens"),
        (make_request(min_tokens=-1), "invalid_request", "min_tokens"),
        (make_request(temperature=-0.1), "invalid_request", "temperature"),
        (make_request(temperature=float("nan")), "invalid_request", "temperature"),
        (make_request(temperature=float("inf")), "invalid_request", "temperature"),
        (make_request(top_p=0.0), "invalid_request", "top_p"),
        (make_request(top_p=1.1), "invalid_request", "top_p"),
        (make_request(top_k=0), "invalid_request", "top_k"),
        (make_request(prompt=[1] * 64), "context_length_exceeded", "64 tokens"),
        (make_request(prompt=[POISON]), "internal", "ArithmeticError"),
    ],
)
def test_errors_end_the_one_request(request_: GenerationRequest, code: str, said: str) -> None:
    core = make_core()
    error = only_error(core, request_)
    assert (error.stream_id, error.lease, error.code) == (1, 1, code)
    assert said in error.message
    assert core.status().errors == 1
    core.add(OWNER, make_request(2))
    assert tokens_of(run(core), stream_id=2) == [3, 4, 5, 6]


def test_a_sequence_that_outgrows_the_cache_ends() -> None:
    core = make_core(blocks=2)
    core.add(OWNER, make_request(max_tokens=20))
    steps = run(core)
    assert tokens_of(steps) == [3, 4, 5, 6, 7, 8]
    assert [error.code for error in errors_of(steps)] == ["context_length_exceeded"]


def test_a_failed_step_ends_only_the_sequence_that_fails_alone() -> None:
    core = make_core()
    core.add(OWNER, make_request(1))
    core.add(OWNER, make_request(2, prompt=[POISON]))
    core.add(OTHER, make_request(3))
    steps = run(core)
    assert [error.stream_id for error in errors_of(steps)] == [2]
    assert tokens_of(steps, 1) == tokens_of(steps, 3) == [3, 4, 5, 6]


class SmallMemoryRunner(RuleRunner):
    """Runs out of memory over more than `most` tokens, and over a poisoned sequence always."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.steps: list[int] = []

    def run(self, scheduled: Sequences[Scheduled]) -> list[Sampled | None]:
        tokens = sum(item.count for item in scheduled)
        self.steps.append(tokens)
        if tokens > self.most or any(item.sequence.tokens[0] == POISON for item in scheduled):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return [self._next(item) if item.samples else None for item in scheduled]


def test_out_of_memory_runs_a_step_in_halves_and_plans_smaller_ones() -> None:
    runner = SmallMemoryRunner(most=5)
    scheduler = make_scheduler(100, max_sequences=2, max_step_tokens=16)
    core = ModelCore(INFO, runner, scheduler, lambda: 0)
    core.add(OWNER, make_request(1, prompt=[1] * 30))
    core.add(OWNER, make_request(2, prompt=[1] * 9))
    steps = run(core)
    assert errors_of(steps) == []
    assert tokens_of(steps, 1) == [30, 31, 32, 33]
    assert tokens_of(steps, 2) == [9, 10, 11, 12]
    assert runner.steps[:3] == [16, 8, 4]
    # Of the steps after the first, those fail that try one token more than fits.
    assert sum(tokens > runner.most for tokens in runner.steps[5:]) <= 6
    assert core.status().free_blocks == 100


def test_only_a_sequence_that_runs_out_of_memory_by_itself_ends() -> None:
    runner = SmallMemoryRunner(most=100)
    scheduler = make_scheduler(100, max_sequences=3, max_step_tokens=16)
    core = ModelCore(INFO, runner, scheduler, lambda: 0)
    core.add(OWNER, make_request(1))
    core.add(OWNER, make_request(2, prompt=[POISON] * 5))
    core.add(OTHER, make_request(3))
    steps = run(core)
    assert [(e.stream_id, e.code, e.message) for e in errors_of(steps)] == [
        (2, "overloaded", "the engine has run out of memory")
    ]
    assert tokens_of(steps, 1) == tokens_of(steps, 3) == [3, 4, 5, 6]
    assert core.status().free_blocks == 100


def test_too_many_waiting_requests_are_turned_away() -> None:
    core = make_core(max_sequences=1, max_waiting=2)
    for stream_id in range(1, 5):
        core.add(OWNER, make_request(stream_id))
    steps = run(core)
    assert [(e.stream_id, e.code) for e in errors_of(steps)] == [
        (3, "overloaded"),
        (4, "overloaded"),
    ]
    assert tokens_of(steps, 2) == [3, 4, 5, 6]


def test_a_request_with_an_old_lease_is_stale() -> None:
    core = make_core()
    core.add(OWNER, make_request(1, lease=5))
    core.add(OWNER, make_request(2, lease=5))
    core.add(OWNER, make_request(3, lease=4))
    core.add(OTHER, make_request(4, lease=4))
    steps = run(core)
    assert [bool(tokens_of(steps, stream_id)) for stream_id in (1, 2, 3, 4)] == [1, 0, 0, 1]
    assert core.status().rejected == 2


def test_a_newer_lease_replaces_the_sequence_of_its_stream() -> None:
    core = make_core()
    core.add(OWNER, make_request(1, lease=1))
    core.step()
    core.add(OWNER, make_request(1, lease=2, max_tokens=1))
    assert [step[OWNER, 0].tokens for step in run(core)] == [
        [Tokens(1, 2, 0, [3], Finish("length"))]
    ]


def test_cancel_acts_only_where_the_lease_matches() -> None:
    core = make_core(max_sequences=1)
    core.add(OWNER, make_request(1))
    core.add(OWNER, make_request(2))
    core.step()
    core.cancel(OWNER, 1, lease=2)
    core.cancel(OTHER, 1, lease=1)
    assert (core.status().running, core.status().rejected) == (1, 1)
    core.cancel(OWNER, 1, lease=1)
    core.cancel(OWNER, 2, lease=2)
    core.cancel(OWNER, 2, lease=2)
    assert core.wait() is None
    assert core.status().free_blocks == 100


def test_a_lost_owner_takes_its_sequences_and_its_errors_along() -> None:
    core = make_core()
    core.add(OWNER, make_request(1))
    core.add(OWNER, make_request(2, max_tokens=0))
    core.add(OTHER, make_request(3))
    core.owner_lost(OWNER)
    steps = run(core)
    assert {to for step in steps for to in step} == {(OTHER, 0)}
    core.add(OWNER, make_request(1))
    assert tokens_of(run(core)) == [3, 4, 5, 6]


def test_shutting_down_ends_everything_with_an_error() -> None:
    core = make_core(max_sequences=1)
    core.add(OWNER, make_request(1))
    core.add(OTHER, make_request(2))
    core.step()
    core.shut_down()
    errors = errors_of(run(core))
    assert [(error.stream_id, error.code) for error in errors] == [
        (1, "overloaded"),
        (2, "overloaded"),
    ]
    assert core.status().free_blocks == 100


def test_watchers_are_told_what_is_cached_and_what_changes() -> None:
    core = make_core(blocks=8)
    core.watch_blocks(OWNER)
    assert core.block_events() == {OWNER: BlockEvents(0, [], [])}
    core.add(OWNER, make_request(1, prompt=[1] * 9, max_tokens=1))
    run(core)
    hashes: list[bytes] = []
    extend_hashes(hashes, root_hash(""), [1] * 9, 4, 9)
    core.watch_blocks(OTHER)
    told = core.block_events()
    assert told[OWNER] == BlockEvents(1, hashes, [])
    assert (told[OTHER].number, set(told[OTHER].stored)) == (0, set(hashes))
    core.owner_lost(OTHER)
    core.add(OWNER, make_request(2, prompt=[2] * 25, max_tokens=1))
    run(core)
    told = core.block_events()
    assert list(told) == [OWNER]
    assert (told[OWNER].number, len(told[OWNER].stored)) == (2, 6)
    # The end of the first prompt had to make room, its beginning could stay.
    assert told[OWNER].removed == [hashes[1]]


class CoreMachine(RuleBasedStateMachine):
    """Requests of two owners in a small pool: every stream is told its tokens in order, and ends
    once; cancelled and lost ones are not heard of again."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        scheduler = make_scheduler(10, max_sequences=3, max_step_tokens=6)
        self.scheduler = scheduler
        self.core = ModelCore(INFO, RuleRunner(), scheduler, lambda: 0, max_waiting=4)
        self.next_id = 0
        self.expected: dict[tuple[Owner, int], list[int]] = {}

    @rule(
        target=streams,
        owner=st.sampled_from([OWNER, OTHER]),
        size=st.integers(1, 39),
        max_tokens=st.integers(1, 12),
        poisoned=st.booleans(),
    )
    def add(self, owner: Owner, size: int, max_tokens: int, poisoned: bool) -> tuple[Owner, int]:
        self.next_id += 1
        prompt = [POISON if poisoned and size % 3 == 0 else 1] * size
        self.core.add(owner, make_request(self.next_id, prompt=prompt, max_tokens=max_tokens))
        self.expected[owner, self.next_id] = list(range(size, size + max_tokens))
        return owner, self.next_id

    @rule(stream=streams)
    def cancel(self, stream: tuple[Owner, int]) -> None:
        # What the last requests were refused with is said before.
        self.hear(self.core.step())
        owner, stream_id = stream
        self.core.cancel(owner, stream_id, stream_id)
        self.expected.pop(stream, None)

    @rule(owner=st.sampled_from([OWNER, OTHER]))
    def lose(self, owner: Owner) -> None:
        self.core.owner_lost(owner)
        self.expected = {key: value for key, value in self.expected.items() if key[0] != owner}

    @rule()
    def step(self) -> None:
        self.hear(self.core.step())

    def hear(self, steps: Steps) -> None:
        for (owner, _), step in steps.items():
            for tokens in step.tokens:
                expected = self.expected[owner, tokens.stream_id]
                assert tokens.ids == [expected.pop(0)]
                assert (tokens.finish is not None) == (not expected)
                if tokens.finish:
                    del self.expected[owner, tokens.stream_id]
            for error in step.errors:
                del self.expected[owner, error.stream_id]

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.scheduler.check()

    def teardown(self) -> None:
        for _ in range(5000):
            if self.core.wait() is None:
                break
            self.hear(self.core.step())
        assert not self.expected
        assert self.core.status().free_blocks == 10


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

"""The scheduler: conservation and progress under any load, and its decisions by example."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv_cache import KvCache
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence
from tests.engine.builders import BLOCK, make_scheduler, make_sequence

WINDOWS = [(None,), (None, 6), (6,), (None, 3, 9)]


def run_step(scheduler: Scheduler) -> Plan:
    """Schedule, compute, and generate token 0 wherever a sequence is caught up with."""
    plan = scheduler.schedule()
    scheduler.check()
    # Costs with which it is worth while to hold tenants back.
    scheduler.observe(plan.scheduled, 1.0 + sum(item.count for item in plan.scheduled))
    for item in plan.scheduled:
        samples = item.samples
        scheduler.advance(item)
        if samples and item.sequence.append(0) is not None:
            scheduler.remove(item.sequence)
    scheduler.check()
    return plan


def chunks(plan: Plan) -> dict[Sequence, int]:
    return {item.sequence: item.count for item in plan.scheduled}


class SchedulerMachine(RuleBasedStateMachine):
    """Sequences of several tenants, some with the same beginnings, come, run, are cancelled and
    end, in a pool that is too small for them."""

    @initialize(windows=st.sampled_from(WINDOWS))
    def start(self, windows: tuple[int | None, ...]) -> None:
        self.blocks = 14 * len(windows)
        self.scheduler = make_scheduler(self.blocks, windows=windows, weights={"b": 2.0})
        self.alive: list[Sequence] = []

    @rule(
        shared=st.integers(0, 30),
        own=st.integers(1, 30),
        max_tokens=st.integers(1, 30),
        tenant=st.sampled_from("abc"),
        priority=st.integers(-1, 1),
    )
    def add(self, shared: int, own: int, max_tokens: int, tenant: str, priority: int) -> None:
        prompt = [1] * shared + make_sequence(own).tokens
        sequence = make_sequence(prompt, max_tokens, tenant, priority)
        self.scheduler.add(sequence)
        self.alive.append(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.scheduler.remove(sequence)
        self.alive.remove(sequence)
        with pytest.raises(KeyError):
            self.scheduler.remove(sequence)

    @rule()
    def step(self) -> None:
        before = list(self.alive)
        plan = run_step(self.scheduler)
        counts = [item.count for item in plan.scheduled]
        assert all(count > 0 for count in counts)
        assert sum(counts) <= 8
        assert len(chunks(plan)) == len(counts) <= 4
        assert counts or plan.outgrown or not before
        self.alive = [s for s in before if s not in plan.outgrown and not _ended(s)]
        assert len(self.alive) == len(self.scheduler.running) + self.scheduler.waiting

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        """Whatever the state, all sequences end, and every block is free or idle again."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.alive:
                break
            self.step()
        assert not self.alive
        assert self.scheduler.cache.free_blocks == self.blocks


def _ended(sequence: Sequence) -> bool:
    return len(sequence.tokens) >= sequence.length_limit


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_prompt_is_computed_in_chunks_beside_what_runs() -> None:
    scheduler = make_scheduler(blocks=40, max_step_tokens=8)
    short, long = make_sequence(2), make_sequence(20)
    scheduler.add(short)
    run_step(scheduler)
    scheduler.add(long)
    counts = [list(chunks(run_step(scheduler)).values()) for _ in range(4)]
    assert counts == [[1, 7], [1, 7], [1, 6], [1, 1]]
    assert (short.output_tokens, long.output_tokens) == (5, 2)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8)
    long, short, shorter = make_sequence(100), make_sequence(3), make_sequence(2)
    scheduler.add(long)
    assert chunks(run_step(scheduler)) == {long: 8}
    scheduler.add(short)
    scheduler.add(shorter)
    assert chunks(run_step(scheduler)) == {long: 4, short: 2, shorter: 2}
    assert chunks(run_step(scheduler)) == {long: 6, short: 1, shorter: 1}
    assert (short.output_tokens, shorter.output_tokens) == (1, 2)


def test_the_youngest_is_preempted_and_goes_on_from_what_is_still_cached() -> None:
    scheduler = make_scheduler(blocks=6, max_sequences=2, max_step_tokens=20)
    old, young = make_sequence(8), make_sequence(8)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preemptions:
        run_step(scheduler)
    assert scheduler.running == [old]
    assert scheduler.waiting == 1
    assert (young.computed, young.tables) == (0, [])
    assert young.output_tokens > 0
    scheduler.remove(old)
    [again] = run_step(scheduler).scheduled
    assert again.sequence is young
    assert again.count < len(young.tokens) - 1


def test_a_lone_sequence_that_outgrows_the_pool_ends() -> None:
    scheduler = make_scheduler(blocks=2)
    sequence = make_sequence(3)
    scheduler.add(sequence)
    plans = [run_step(scheduler) for _ in range(7)]
    assert [plan.outgrown for plan in plans] == [[]] * 6 + [[sequence]]
    assert len(sequence.tokens) == 2 * BLOCK + 1
    assert scheduler.cache.free_blocks == 2


def test_a_prompt_larger_than_the_pool_ends_and_holds_up_nobody() -> None:
    scheduler = make_scheduler(blocks=2)
    big, small = make_sequence(9), make_sequence(2)
    scheduler.add(big)
    scheduler.add(small)
    plan = scheduler.schedule()
    assert plan.outgrown == [big]
    assert list(chunks(plan)) == [small]


def test_sequences_wait_in_order_while_their_first_does_not_fit() -> None:
    scheduler = make_scheduler(blocks=6)
    running, big, small = make_sequence(8), make_sequence(20), make_sequence(1)
    for sequence in (running, big, small):
        scheduler.add(sequence)
    assert list(chunks(run_step(scheduler))) == [running]
    assert scheduler.waiting == 2


def test_the_step_budget_covers_every_running_sequence() -> None:
    with pytest.raises(ValueError, match="a token for each"):
        make_scheduler(max_sequences=9, max_step_tokens=8)


def test_a_limited_step_recovers_token_by_token() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8)
    scheduler.add(make_sequence(100))
    scheduler.limit_step(5)
    counts = [run_step(scheduler).scheduled[0].count for _ in range(4)]
    assert counts == [6, 7, 8, 8]
    scheduler.limit_step(0)
    assert run_step(scheduler).scheduled[0].count == 5


def test_sliding_layers_hold_their_window_only() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8, windows=(6,))
    sequence = make_sequence(60, max_tokens=40)
    scheduler.add(sequence)
    most = 0
    while sequence.output_tokens < 30:
        run_step(scheduler)
        most = max(most, scheduler.cache.held(sequence))
    # A chunk of 8 and the 5 tokens before it lie in up to 5 blocks, a token and 5 others in 3.
    assert most <= 5
    assert scheduler.cache.held(sequence) <= 3


# --- prefixes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_second_prompt_is_computed_from_where_it_differs(windows: tuple[int | None, ...]) -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=64, windows=windows)
    first = make_sequence([7] * 30, max_tokens=1)
    scheduler.add(first)
    run_step(scheduler)
    second = make_sequence([7] * 30 + [8] * 10, max_tokens=1)
    scheduler.add(second)
    assert chunks(run_step(scheduler)) == {second: 12}
    assert second.cached_tokens == 28
    assert (scheduler.cache.queried_tokens, scheduler.cache.hit_tokens) == (70, 28)


def test_at_least_one_token_is_computed() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=64)
    for cached in (None, 12):
        sequence = make_sequence([7] * 16, max_tokens=1)
        scheduler.add(sequence)
        run_step(scheduler)
        assert sequence.cached_tokens == (cached or 0)


def test_what_a_window_left_behind_is_not_needed_for_a_hit() -> None:
    scheduler = make_scheduler(blocks=24, max_step_tokens=8, windows=(None, 6))
    scheduler.add(first := make_sequence([7] * 40, max_tokens=1))
    while first.output_tokens < 1:
        run_step(scheduler)
    # Of the sliding layers only the last blocks are left when others need the room.
    scheduler.add(other := make_sequence(20, max_tokens=1))
    while other.output_tokens < 1:
        run_step(scheduler)
    scheduler.add(again := make_sequence([7] * 41, max_tokens=1))
    run_step(scheduler)
    assert scheduler.cache.blocks.evictions > 0
    assert again.cached_tokens == 40


@pytest.mark.parametrize("difference", [{"tenant": "other"}, {"cache_salt": "x"}])
def test_nothing_is_shared_with_other_tenants_or_salts(difference: dict[str, str]) -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=64)
    scheduler.add(make_sequence([7] * 30, max_tokens=1, tenant="one"))
    run_step(scheduler)
    sequence = make_sequence([7] * 30, max_tokens=1, tenant="one")
    for name, value in difference.items():
        setattr(sequence, name, value)
    scheduler.add(sequence)
    run_step(scheduler)
    assert sequence.cached_tokens == 0


def test_the_same_prompt_is_computed_once_when_it_comes_twice_at_once() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8)
    first, second, other = make_sequence([7] * 30), make_sequence([7] * 30), make_sequence(3)
    for sequence in (first, second, other):
        scheduler.add(sequence)
    assert list(chunks(run_step(scheduler))) == [first, other]
    while second.cached_tokens is None:
        run_step(scheduler)
    assert second.cached_tokens == 28


def test_a_sequence_does_not_wait_for_one_that_left() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8)
    first, second = make_sequence([7] * 30), make_sequence([7] * 30)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    scheduler.remove(first)
    assert chunks(run_step(scheduler)) == {second: 8}
    assert second.cached_tokens == 8


# --- priorities and tenants ----------------------------------------------------------------------


def test_a_tenants_requests_go_by_priority() -> None:
    scheduler = make_scheduler(max_sequences=1)
    low, high, first = make_sequence(1), make_sequence(1, priority=-1), make_sequence(1)
    scheduler.add(low)
    scheduler.add(high)
    scheduler.add(first)
    assert list(chunks(run_step(scheduler))) == [high]
    scheduler.remove(high)
    assert list(chunks(run_step(scheduler))) == [low]


def test_the_lowest_priority_is_preempted_first() -> None:
    scheduler = make_scheduler(blocks=6, max_sequences=2, max_step_tokens=20)
    low, high = make_sequence(8, priority=1), make_sequence(8)
    scheduler.add(low)
    scheduler.add(high)
    while not scheduler.preemptions:
        run_step(scheduler)
    assert scheduler.running == [high]


def test_a_priority_means_nothing_to_other_tenants() -> None:
    scheduler = make_scheduler(max_sequences=1)
    other = make_sequence(1, tenant="a")
    scheduler.add(other)
    scheduler.add(make_sequence(1, tenant="b", priority=-9))
    assert list(chunks(run_step(scheduler))) == [other]


def test_prompts_of_two_tenants_are_computed_in_turns() -> None:
    scheduler = make_scheduler(blocks=200, max_sequences=8)
    flood = [make_sequence(40, tenant="a") for _ in range(6)]
    for sequence in flood:
        scheduler.add(sequence)
    run_step(scheduler)
    run_step(scheduler)
    scheduler.add(late := make_sequence(40, tenant="b"))
    steps = 0
    while not late.output_tokens:
        run_step(scheduler)
        steps += 1
    # Alone it would take 5 steps.
    assert steps <= 10


def test_weights_are_shares() -> None:
    scheduler = make_scheduler(blocks=2000, max_sequences=8, max_step_tokens=64, weights={"b": 3.0})
    for _ in range(10):
        scheduler.add(make_sequence(500, tenant="a", max_tokens=1))
        scheduler.add(make_sequence(500, tenant="b", max_tokens=1))
    computed = {"a": 0, "b": 0}
    for _ in range(40):
        for sequence, count in chunks(run_step(scheduler)).items():
            computed[sequence.tenant] += count
    assert 2.5 < computed["b"] / computed["a"] < 3.5


def test_a_tenant_without_its_share_takes_a_place_from_a_flood() -> None:
    scheduler = make_scheduler(blocks=100, max_sequences=4)
    flood = [make_sequence(1, tenant="a") for _ in range(20)]
    for sequence in flood:
        scheduler.add(sequence)
    run_step(scheduler)
    late = [make_sequence(1, tenant="b") for _ in range(4)]
    for sequence in late:
        scheduler.add(sequence)
    for _ in range(3):
        run_step(scheduler)
    assert scheduler.running == [*flood[:2], *late[:2]]
    assert scheduler.preemptions == 2
    run_step(scheduler)
    assert scheduler.preemptions == 2


def test_a_tenant_without_its_share_takes_blocks_from_a_flood() -> None:
    scheduler = make_scheduler(blocks=12, max_sequences=8, max_step_tokens=64)
    flood = [make_sequence(12, tenant="a") for _ in range(20)]
    for sequence in flood:
        scheduler.add(sequence)
    run_step(scheduler)
    assert len(scheduler.running) == 3
    scheduler.add(late := make_sequence(12, tenant="b"))
    run_step(scheduler)
    assert late in scheduler.running
    assert late.output_tokens == 1


def test_nothing_is_looked_up_for_those_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long prompt in the cache that would take milliseconds of every step."""
    scheduler = make_scheduler(blocks=100, max_sequences=2)
    for tenant in ("a", "b", "c", "c"):
        scheduler.add(make_sequence(4, tenant=tenant))
    run_step(scheduler)
    assert (len(scheduler.running), scheduler.waiting) == (2, 2)
    monkeypatch.setattr(KvCache, "match", None)
    assert [item.count for item in run_step(scheduler).scheduled] == [1, 1]


def test_a_tenant_that_comes_back_has_saved_up_nothing() -> None:
    scheduler = make_scheduler(blocks=100, max_sequences=8)
    scheduler.add(make_sequence(1, tenant="b", max_tokens=1))
    run_step(scheduler)
    scheduler.add(make_sequence(100, tenant="a"))
    for _ in range(8):
        run_step(scheduler)
    scheduler.add(make_sequence(100, tenant="b"))
    shares = {"a": 0, "b": 0}
    for _ in range(4):
        for sequence, count in chunks(run_step(scheduler)).items():
            shares[sequence.tenant] += count
    assert shares == {"a": 16, "b": 16}


def test_weights_are_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        make_scheduler(weights={"a": 0.0})


def test_what_does_not_fit_holds_up_no_other_tenant_within_its_share() -> None:
    scheduler = make_scheduler(blocks=60, max_sequences=8, max_step_tokens=300)
    for _ in range(3):
        scheduler.add(make_sequence(40, 400, tenant="a"))
    run_step(scheduler)
    large, small = make_sequence(160, tenant="b"), make_sequence(4, 8, tenant="c")
    scheduler.add(large)
    run_step(scheduler)
    scheduler.add(small)
    run_step(scheduler)
    assert small.admitted
    assert not large.admitted


def test_what_does_not_fit_is_not_passed_by_for_ever() -> None:
    """Small sequences of another tenant keep coming, and leave no time at which it fits."""
    scheduler = make_scheduler(blocks=60, max_sequences=8, max_step_tokens=300)
    small = [make_sequence(16, 30, tenant="c") for _ in range(4)]
    for sequence in small:
        scheduler.add(sequence)
    run_step(scheduler)
    large = make_sequence(216, tenant="b")
    scheduler.add(large)
    steps = 0
    while not large.admitted and steps < 10_000:
        steps += 1
        run_step(scheduler)
        while sum(sequence.admitted or sequence in waiting(scheduler) for sequence in small) < 4:
            small.append(make_sequence(16, 30, tenant="c"))
            scheduler.add(small[-1])
            small = [s for s in small if s.admitted or s in waiting(scheduler)]
    assert 20 < steps < 10_000


def waiting(scheduler: Scheduler) -> list[Sequence]:
    return [sequence for tenant in scheduler._tenants for sequence in tenant.waiting]

"""The scheduler: conservation and progress under any load, and its few decisions by example."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence
from tests.engine.builders import make_sequence

BLOCK = 4


def make_scheduler(blocks: int = 12, max_sequences: int = 4, max_step_tokens: int = 8) -> Scheduler:
    return Scheduler(BlockPool(blocks), BLOCK, max_sequences, max_step_tokens)


def run_step(scheduler: Scheduler) -> Plan:
    """Schedule, compute, and generate token 0 wherever a sequence is caught up with."""
    plan = scheduler.schedule()
    scheduler.check()
    for item in plan.scheduled:
        samples = item.samples
        item.sequence.computed += item.count
        if samples and item.sequence.append(0) is not None:
            scheduler.remove(item.sequence)
    scheduler.check()
    return plan


class SchedulerMachine(RuleBasedStateMachine):
    """Sequences come, run, are cancelled and end, in a pool that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler()

    @property
    def alive(self) -> list[Sequence]:
        return [*self.scheduler.running, *self.scheduler.waiting]

    @rule(prompt_tokens=st.integers(1, 60), max_tokens=st.integers(1, 30))
    def add(self, prompt_tokens: int, max_tokens: int) -> None:
        self.scheduler.add(make_sequence(prompt_tokens, max_tokens))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.scheduler.remove(sequence)
        assert sequence not in self.alive
        with pytest.raises(ValueError, match="not in deque"):
            self.scheduler.remove(sequence)

    @rule()
    def step(self) -> None:
        before = self.alive
        plan = run_step(self.scheduler)
        counts = [item.count for item in plan.scheduled]
        assert all(count > 0 for count in counts)
        assert sum(counts) <= 8
        assert len({id(item.sequence) for item in plan.scheduled}) == len(counts) <= 4
        assert counts or plan.outgrown or not before
        for sequence in plan.outgrown:
            assert len(sequence.tokens) > 12 * BLOCK

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.scheduler.check()

    def teardown(self) -> None:
        """Whatever the state, all sequences end, and every block is free again."""
        for _ in range(20_000):
            if not self.alive:
                break
            run_step(self.scheduler)
        assert not self.alive
        assert self.scheduler.pool.free_blocks == 12


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_a_prompt_is_computed_in_chunks_beside_what_runs() -> None:
    scheduler = make_scheduler(blocks=40, max_step_tokens=8)
    short, long = make_sequence(2), make_sequence(20)
    scheduler.add(short)
    run_step(scheduler)
    scheduler.add(long)
    counts = [[item.count for item in run_step(scheduler).scheduled] for _ in range(4)]
    assert counts == [[1, 7], [1, 7], [1, 6], [1, 1]]
    assert (short.output_tokens, long.output_tokens) == (5, 2)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = make_scheduler(blocks=100, max_step_tokens=8)
    long, short, shorter = make_sequence(100), make_sequence(3), make_sequence(2)
    scheduler.add(long)
    assert [item.count for item in run_step(scheduler).scheduled] == [8]
    scheduler.add(short)
    scheduler.add(shorter)
    assert [item.count for item in run_step(scheduler).scheduled] == [4, 2, 2]
    assert [item.count for item in run_step(scheduler).scheduled] == [6, 1, 1]
    assert (short.output_tokens, shorter.output_tokens) == (1, 2)


def test_the_youngest_is_preempted_and_recomputed() -> None:
    scheduler = make_scheduler(blocks=6, max_sequences=2, max_step_tokens=20)
    old, young = make_sequence(8), make_sequence(8)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preemptions:
        run_step(scheduler)
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [young]
    assert (young.computed, young.table) == (0, [])
    assert young.output_tokens > 0
    scheduler.remove(old)
    assert [item.count for item in run_step(scheduler).scheduled] == [len(young.tokens) - 1]


def test_a_lone_sequence_that_outgrows_the_pool_ends() -> None:
    scheduler = make_scheduler(blocks=2)
    sequence = make_sequence(3)
    scheduler.add(sequence)
    plans = [run_step(scheduler) for _ in range(7)]
    assert [plan.outgrown for plan in plans] == [[]] * 6 + [[sequence]]
    assert len(sequence.tokens) == 2 * BLOCK + 1
    assert scheduler.pool.free_blocks == 2


def test_a_prompt_larger_than_the_pool_ends_and_holds_up_nobody() -> None:
    scheduler = make_scheduler(blocks=2)
    big, small = make_sequence(9), make_sequence(2)
    scheduler.add(big)
    scheduler.add(small)
    plan = scheduler.schedule()
    assert plan.outgrown == [big]
    assert [item.sequence for item in plan.scheduled] == [small]


def test_sequences_wait_in_order_while_their_first_does_not_fit() -> None:
    scheduler = make_scheduler(blocks=6)
    running, big, small = make_sequence(8), make_sequence(20), make_sequence(1)
    for sequence in (running, big, small):
        scheduler.add(sequence)
    assert [item.sequence for item in run_step(scheduler).scheduled] == [running]
    assert list(scheduler.waiting) == [big, small]


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

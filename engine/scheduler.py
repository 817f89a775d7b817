"""Which tokens of which sequences the next step computes.

There are no phases. Each step, a sequence's computed tokens catch up with its tokens, by as many
as the step's token budget allows: a prompt in chunks, a generated token at once. While others
have to catch up too, one takes at most half of what is left of the budget, so that a short prompt
does not wait for a long one. When blocks run out, the sequence that was admitted last is
preempted: its blocks are freed, it waits in front of all others, and all of its tokens are
computed again.

    waiting --schedule, blocks for all its tokens--> running
    running --preempted----------------------------> waiting
    waiting, running --remove-----------------------> gone
"""

from collections import deque
from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`count` tokens of a sequence, from its computed ones on."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether the sequence's next token can be sampled after this."""
        return self.count == self.sequence.remaining


@dataclass(slots=True)
class Plan:
    """One step. `outgrown` are sequences that the whole pool cannot hold; they are removed."""

    scheduled: list[Scheduled] = field(default_factory=list)
    outgrown: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Waiting and running sequences, and the pool that their blocks come from."""

    def __init__(
        self, pool: BlockPool, block_size: int, max_sequences: int, max_step_tokens: int
    ) -> None:
        if not 1 <= max_sequences <= max_step_tokens:
            raise ValueError("a step needs a token for each of at least one running sequence")
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._max_step_tokens = self._step_tokens = max_step_tokens

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its turn."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running, and free its blocks. Raises ValueError if it
        is neither."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def limit_step(self, tokens: int) -> None:
        """Plan at most so many tokens in the next step, but one for each sequence that may run,
        and then one more each step, up to the budget."""
        self._step_tokens = min(self._step_tokens, max(tokens, self._max_sequences))

    def schedule(self) -> Plan:
        """Plan a step. Every running sequence computes at least one token in it; the caller adds
        what was computed to `Sequence.computed`."""
        plan = Plan()
        self._step_tokens = min(self._step_tokens + 1, self._max_step_tokens)
        budget = self._continue_running(plan)
        while self._admits(budget):
            sequence = self.waiting.popleft()
            if self._blocks_missing(sequence) > self.pool.total:
                plan.outgrown.append(sequence)
                continue
            self._allocate(sequence)
            self.running.append(sequence)
            budget -= self._plan(plan, sequence, budget, shared=self._admits(budget))
        return plan

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or in exactly one table."""
        assert not any(sequence.table for sequence in self.waiting)
        used = [block for sequence in self.running for block in sequence.table]
        assert sorted(self.pool.free_list() + used) == list(range(self.pool.total))
        assert len(used) + self.pool.free_blocks == self.pool.total

    def _continue_running(self, plan: Plan) -> int:
        """Plan the running sequences, oldest first; returns what is left of the budget."""
        budget = self._step_tokens
        behind = sum(sequence.remaining > 1 for sequence in self.running)
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if not self._make_room(sequence, plan):
                continue
            index += 1
            behind -= sequence.remaining > 1
            # A token is kept for each sequence after this one.
            most = budget - (len(self.running) - index)
            budget -= self._plan(plan, sequence, most, shared=behind > 0 or self._admits(most))
        return budget

    def _plan(self, plan: Plan, sequence: Sequence, most: int, shared: bool) -> int:
        """Schedule up to `most` tokens, or half of them if `shared`; returns how many."""
        count = min(sequence.remaining, max(1, most // 2) if shared else most)
        plan.scheduled.append(Scheduled(sequence, count))
        return count

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Allocate what the sequence lacks, preempting younger ones; False if it had to go."""
        while self._blocks_missing(sequence) > self.pool.free_blocks:
            if self.running == [sequence]:
                self.remove(sequence)
                plan.outgrown.append(sequence)
                return False
            youngest = self.running.pop()
            self._release(youngest)
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            if youngest is sequence:
                return False
        self._allocate(sequence)
        return True

    def _admits(self, budget: int) -> bool:
        if not self.waiting or not budget or len(self.running) >= self._max_sequences:
            return False
        missing = self._blocks_missing(self.waiting[0])
        # A block for each running sequence stays free, or the newcomer would soon be preempted.
        return missing + len(self.running) <= self.pool.free_blocks or missing > self.pool.total

    def _blocks_missing(self, sequence: Sequence) -> int:
        """Blocks without which not all of its tokens can be computed."""
        return -(-len(sequence.tokens) // self._block_size) - len(sequence.table)

    def _allocate(self, sequence: Sequence) -> None:
        missing = self._blocks_missing(sequence)
        if missing > 0:
            after = sequence.table[-1] if sequence.table else None
            sequence.table += self.pool.allocate(missing, after)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.table)
        sequence.table = []
        sequence.computed = 0

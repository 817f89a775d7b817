"""Which tokens of which sequences the next step computes.

There are no phases. Each step, a sequence's computed tokens catch up with its tokens, by as many
as the step's token budget allows: a generated token at once, a prompt in chunks. Those that
generate come first; the others, running or waiting, take turns by what their tenants have had,
each taking half of what is left of the budget, so that a short prompt does not wait for a long one.

When blocks run out, a sequence is preempted: its blocks are given back (they stay cached while
there is room), it waits in its old place, and what is not cached any more is computed again. It
is the last in order of the tenant with the largest share of the engine. A tenant that has less
than its share and cannot start takes room from the largest in the same way; one that waits for more
room than there is lets others within their shares pass by for a while. How much of each
tenant's work a step has, `engine.fair_steps` says; its sequences then take turns.

    waiting --schedule, blocks for all its tokens--> running
    running --preempted----------------------------> waiting
    waiting, running --remove-----------------------> gone
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from engine.fair_steps import LATENCY_FACTOR, Load, StepShare, fair_step
from engine.kv_cache import KvCache, Match
from engine.sequence import Sequence
from engine.step_costs import StepCosts
from engine.tenants import Tenant, Tenants

LOOK_AHEAD = 16
"""Of the sequences of one tenant, how many are looked at for one that need not wait for another
to compute the same beginning."""

PASSES = 100
"""So many sequences start before one that does not fit; then what becomes free is kept for it."""
TRIED = 4
"""So many tenants' sequences that do not fit are looked at in a step."""

_ORDER = attrgetter("order")
_LAST_STEP = attrgetter("last_step")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`count` tokens of a sequence, from its computed ones on."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether the sequence's next token can be sampled after this."""
        return self.count == self.sequence.remaining

    @property
    def generating(self) -> bool:
        """Whether it is the token that was generated last."""
        return self.sequence.remaining == 1 and self.sequence.output_tokens > 0


@dataclass(slots=True)
class Plan:
    """One step. `outgrown` are sequences that the whole pool cannot hold; they are removed."""

    scheduled: list[Scheduled] = field(default_factory=list)
    outgrown: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Waiting and running sequences, and the cache that their blocks come from.

    A step takes at most `latency_factor` times as long as with the work alone of the tenant that
    has least; 0 is no limit.
    """

    def __init__(
        self,
        cache: KvCache,
        max_sequences: int,
        max_step_tokens: int,
        weights: Mapping[str, float] | None = None,
        latency_factor: float = LATENCY_FACTOR,
    ) -> None:
        if not 1 <= max_sequences <= max_step_tokens:
            raise ValueError("a step needs a token for each of at least one running sequence")
        self.cache = cache
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._tenants = Tenants(weights or {})
        self._max_sequences = max_sequences
        self._max_step_tokens = self._step_tokens = max_step_tokens
        self._latency_factor = latency_factor
        self._costs = StepCosts()
        self._steps = 0
        self._turns = _Turns([])

    @property
    def waiting(self) -> int:
        """How many sequences wait."""
        return self._tenants.waiting

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its turn."""
        self._tenants.arrive(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running, and free its blocks. Raises KeyError if it is
        neither."""
        if sequence.admitted:
            self.running.remove(sequence)
            self.cache.release(sequence)
        self._tenants.leave(sequence)

    def limit_step(self, tokens: int) -> None:
        """Plan at most so many tokens in the next step, but one for each sequence that may run,
        and then one more each step, up to the budget."""
        self._step_tokens = min(self._step_tokens, max(tokens, self._max_sequences))

    def schedule(self) -> Plan:
        """Plan a step; the caller runs it and hands each item to `advance`."""
        plan = Plan()
        self._steps += 1
        self._step_tokens = min(self._step_tokens + 1, self._max_step_tokens)
        self._balance(plan)
        while True:
            self._make_all_room(plan)
            share = self._step_share()
            generating = self._generating(share)
            counts = dict.fromkeys(generating, 1)
            self._catch_up(counts, plan, share)
            if counts or not self.running:
                break
            # Prompts alone are running, and none has room to go on.
            self._preempt_worst(plan)
        for sequence in generating:
            sequence.last_step = self._steps
            self._tenants.charge(sequence, 1)
        plan.scheduled = [Scheduled(sequence, count) for sequence, count in counts.items()]
        return plan

    def advance(self, item: Scheduled) -> None:
        """Count a planned item as computed."""
        self.cache.advance(item.sequence, item.count)

    def observe(self, scheduled: Iterable[Scheduled], seconds: float) -> None:
        """Learn how long it took to run these, which are not yet advanced."""
        counts = [(item.generating, item.count) for item in scheduled]
        generating = sum(one for one, _ in counts)
        self._costs.observe(generating, sum(count for one, count in counts if not one), seconds)

    def check(self) -> None:
        """Raise AssertionError unless the books agree with each other."""
        waiting = [sequence for tenant in self._tenants for sequence in tenant.waiting]
        assert len(waiting) == self.waiting
        assert not any(sequence.tables or sequence.admitted for sequence in waiting)
        assert all(sequence.admitted for sequence in self.running)
        assert sum(tenant.running for tenant in self._tenants) == len(self.running)
        self.cache.check(self.running)

    # --- those that run -------------------------------------------------------------------------

    def _make_all_room(self, plan: Plan) -> None:
        """Let every sequence that generates have room for its token, preempting others for it."""
        for sequence in tuple(self.running):
            while sequence.admitted and sequence.remaining == 1 and not self._has_room(sequence):
                self._preempt_worst(plan)

    def _has_room(self, sequence: Sequence) -> bool:
        end = len(sequence.tokens)
        if sequence.room < end:
            if self.cache.missing(sequence, end) > self.cache.free_blocks:
                return False
            self.cache.reserve(sequence, end)
        return True

    def _preempt_worst(self, plan: Plan) -> None:
        """Preempt one sequence; one that is alone and still lacks room is removed."""
        if len(self.running) == 1:
            [outgrown] = self.running
            self.remove(outgrown)
            plan.outgrown.append(outgrown)
            return
        usage = self._usage()
        largest = max(usage.values(), key=self._share)
        self._preempt(max(largest.sequences, key=_ORDER))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence)
        self._tenants.preempt(sequence)
        self.preemptions += 1

    def _step_share(self) -> StepShare | None:
        """How much of each tenant's work the step has, if it cannot have all of it."""
        if not self._latency_factor or len(self._tenants) < 2 or not self._costs.known:
            return None
        return fair_step(self._loads(), self._costs, self._latency_factor, self._step_tokens)

    def _loads(self) -> dict[str, Load]:
        generating = dict.fromkeys((tenant.name for tenant in self._tenants), 0)
        prompts = {
            tenant.name: len(tenant.waiting[0].tokens) if tenant.waiting else 0
            for tenant in self._tenants
        }
        for sequence in self.running:
            if sequence.remaining == 1:
                generating[sequence.tenant] += 1
            else:
                prompts[sequence.tenant] += sequence.remaining
        return {
            tenant.name: Load(
                generating[tenant.name],
                prompts[tenant.name],
                tenant.weight,
                # As far as was seen in the last step.
                held_up=not self._turns.may_start(tenant) and not tenant.running,
            )
            for tenant in self._tenants
        }

    def _generating(self, share: StepShare | None) -> list[Sequence]:
        """The sequences whose generated token the step computes; where not all can be, those that
        have waited for it longest."""
        able = [sequence for sequence in self.running if sequence.remaining == 1]
        if share is None:
            return able
        able.sort(key=_LAST_STEP)
        left = dict(share.generating)
        chosen = []
        for sequence in able:
            if left[sequence.tenant]:
                left[sequence.tenant] -= 1
                chosen.append(sequence)
        return chosen

    # --- those that have to catch up ------------------------------------------------------------

    def _catch_up(self, counts: dict[Sequence, int], plan: Plan, share: StepShare | None) -> None:
        """Share out what is left of the budget among the prompts that run and that wait."""
        budget = self._step_tokens - len(counts) if share is None else share.prompt_tokens
        self._turns = turns = _Turns(self.running)
        chunks: dict[Sequence, int] = {}
        while budget > 0:
            tenant = turns.next_tenant(self._tenants)
            if tenant is None:
                break
            sequence = turns.running(tenant) or self._start_next(tenant, turns, plan)
            if sequence is not None:
                most = budget if turns.next_tenant(self._tenants) is None else -(-budget // 2)
                chunks[sequence] = self._take(sequence, 0, most)
                budget -= chunks[sequence]
        for sequence, count in chunks.items():
            # What nobody else could use.
            more = self._take(sequence, count, budget)
            budget -= more
            if count + more:
                counts[sequence] = count + more

    def _take(self, sequence: Sequence, taken: int, most: int) -> int:
        """Reserve and charge up to `most` tokens after those taken already; returns how many."""
        wanted = min(sequence.remaining, taken + most)
        count = self.cache.coverable(sequence, wanted) - taken
        self.cache.reserve(sequence, sequence.computed + taken + count)
        self._tenants.charge(sequence, count)
        return count

    def _start_next(self, tenant: Tenant, turns: "_Turns", plan: Plan) -> Sequence | None:
        if len(self.running) >= self._max_sequences:
            turns.starting = False
            return None
        found = self._next_waiting(tenant, plan)
        if found is None:
            turns.skipped.add(tenant.name)
            return None
        sequence, match = found
        if not self._can_start(match):
            turns.hold_up(tenant)
            return None
        if turns.held_up and not self._stays_within_share(sequence):
            turns.skipped.add(tenant.name)
            return None
        self._start(sequence, match)
        turns.pass_by(tenant)
        return sequence

    def _stays_within_share(self, sequence: Sequence) -> bool:
        """Whether a tenant uses no more than its part of the engine with one more sequence."""
        tenant = self._tenants.of(sequence)
        own = self._usage().get(tenant.name, _Usage(tenant.weight))
        own.add(sequence)
        return self._share(own) * sum(other.weight for other in self._tenants) <= 1

    def _next_waiting(self, tenant: Tenant, plan: Plan) -> tuple[Sequence, Match] | None:
        """The first of a tenant's sequences that is not better off waiting for another one."""
        for sequence in tenant.waiting[:LOOK_AHEAD]:
            if not self.cache.fits_alone(sequence):
                self._tenants.leave(sequence)
                plan.outgrown.append(sequence)
                continue
            match = self.cache.match(sequence)
            if not match.awaited:
                return sequence, match
        return None

    def _can_start(self, match: Match) -> bool:
        if len(self.running) >= self._max_sequences:
            return False
        # A block for each running sequence stays free, or the newcomer would soon be preempted.
        return match.needed + len(self.running) <= self.cache.free_blocks

    def _start(self, sequence: Sequence, match: Match) -> None:
        self.cache.start(sequence, match)
        self._tenants.admit(sequence)
        self.running.append(sequence)

    # --- shares of the engine -------------------------------------------------------------------

    def _balance(self, plan: Plan) -> None:
        """Start a sequence of the tenant with the smallest share, in the place of others."""
        if not self._tenants.waiting or len(self._tenants) == 1:
            return
        waiting = [tenant for tenant in self._tenants if tenant.waiting]
        usage = self._usage()
        tenant = min(waiting, key=lambda t: self._share(usage.get(t.name, _Usage(t.weight))))
        # Before what is cached is looked up: for a long prompt that takes milliseconds.
        if not self._may_take(tenant, usage):
            return
        found = self._next_waiting(tenant, plan)
        if found is None or self._can_start(found[1]):
            return
        victims = self._victims(tenant, *found, usage)
        for victim in victims:
            self._preempt(victim)
        if victims:
            self._start(found[0], self.cache.match(found[0]))

    def _may_take(self, tenant: Tenant, usage: "Mapping[str, _Usage]") -> bool:
        """Whether anybody has more than the tenant would have with its shortest sequence."""
        own = _Usage(tenant.weight)
        for sequence in usage.get(tenant.name, own).sequences:
            own.add(sequence)
        own.add(min(tenant.waiting[:LOOK_AHEAD], key=lambda one: len(one.tokens)))
        others = (used for name, used in usage.items() if name != tenant.name)
        return max(map(self._share, others), default=0.0) > self._share(own)

    def _victims(
        self, tenant: Tenant, sequence: Sequence, match: Match, usage: "dict[str, _Usage]"
    ) -> list[Sequence]:
        """Whom to preempt so that the sequence can start; nobody, if that would be unfair."""
        own = usage.pop(tenant.name, _Usage(tenant.weight))
        own.add(sequence)
        free, running = self.cache.free_blocks, len(self.running)
        victims: list[Sequence] = []
        while running >= self._max_sequences or match.needed + running > free:
            largest = max(usage.values(), key=self._share, default=None)
            if largest is None or self._share(largest) <= self._share(own):
                return []
            victim = max(largest.sequences, key=_ORDER)
            largest.remove(victim)
            victims.append(victim)
            free += self.cache.held(victim)
            running -= 1
        return victims

    def _usage(self) -> "dict[str, _Usage]":
        usage: dict[str, _Usage] = {}
        for sequence in self.running:
            own = usage.get(sequence.tenant)
            if own is None:
                own = usage[sequence.tenant] = _Usage(self._tenants.of(sequence).weight)
            own.add(sequence)
        return usage

    def _share(self, usage: "_Usage") -> float:
        """What part of the engine a tenant uses, of sequences or of the cache, by its weight."""
        sequences = len(usage.sequences) / self._max_sequences
        return max(sequences, usage.tokens / self.cache.tokens) / usage.weight


@dataclass(slots=True)
class _Usage:
    """The running sequences of one tenant."""

    weight: float
    sequences: list[Sequence] = field(default_factory=list)
    tokens: int = 0

    def add(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)
        self.tokens += len(sequence.tokens)

    def remove(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self.tokens -= len(sequence.tokens)


class _Turns:
    """Who can still catch up in this step. `held_up` are tenants whose next sequence does not fit:
    others that stay within their share may pass by, some times, and not many of them are tried."""

    def __init__(self, running: list[Sequence]) -> None:
        self.starting = True
        self.skipped: set[str] = set()
        self.held_up: list[Tenant] = []
        self._behind: dict[str, list[Sequence]] = {}
        for sequence in running:
            if sequence.remaining > 1:
                self._behind.setdefault(sequence.tenant, []).append(sequence)
        for sequences in self._behind.values():
            sequences.sort(key=_ORDER, reverse=True)

    def hold_up(self, tenant: Tenant) -> None:
        """The next sequence of a tenant does not fit."""
        self.held_up.append(tenant)
        self.skipped.add(tenant.name)
        if tenant.passed_by >= PASSES or len(self.held_up) == TRIED:
            self.starting = False

    def pass_by(self, tenant: Tenant) -> None:
        """A sequence of a tenant has started before those that are held up."""
        tenant.passed_by = 0
        for other in self.held_up:
            other.passed_by += 1

    def next_tenant(self, tenants: Tenants) -> Tenant | None:
        """The least served tenant that has a sequence left."""
        able = [tenant for tenant in tenants if self._is_able(tenant)]
        return min(able, key=lambda tenant: (tenant.served, tenant.running), default=None)

    def running(self, tenant: Tenant) -> Sequence | None:
        """The next of a tenant's running sequences."""
        sequences = self._behind.get(tenant.name)
        return sequences.pop() if sequences else None

    def _is_able(self, tenant: Tenant) -> bool:
        if self._behind.get(tenant.name):
            return True
        return bool(tenant.waiting) and self.may_start(tenant)

    def may_start(self, tenant: Tenant) -> bool:
        """Whether a waiting sequence of the tenant was not refused."""
        return self.starting and tenant.name not in self.skipped

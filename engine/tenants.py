"""Whose turn it is: each tenant's sequences in their order, and the tenants by what they had.

A tenant's service is counted in computed tokens, divided by its weight, and the one that had least
is next. One that comes back is taken to have had as much as the least served of the others, so
that nobody saves up for later. (Virtual token counters: Sheng et al., OSDI 2024, "Fairness in
Serving Large Language Models"; the order is that of deficit round robin, without its quantum.)
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from engine.sequence import Sequence

_ORDER = attrgetter("order")


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant with sequences: those that wait, in order, and how many run. `passed_by` counts
    others' that started while its next one did not fit."""

    name: str
    weight: float
    served: float
    waiting: list[Sequence] = field(default_factory=list)
    running: int = 0
    passed_by: int = 0


class Tenants:
    """All tenants that have a sequence, waiting or running. A weight is 1 unless given."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        if any(weight <= 0 for weight in weights.values()):
            raise ValueError("a tenant's weight must be above 0")
        self._weights = weights
        self._tenants: dict[str, Tenant] = {}
        self._arrivals = count()
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def arrive(self, sequence: Sequence) -> None:
        """Let a new sequence wait, behind its tenant's others of the same priority."""
        sequence.order = (sequence.priority, next(self._arrivals))
        self._wait(sequence)

    def of(self, sequence: Sequence) -> Tenant:
        """The tenant of a sequence that is here."""
        return self._tenants[sequence.tenant]

    def admit(self, sequence: Sequence) -> None:
        """Let a waiting sequence run."""
        tenant = self._take(sequence)
        tenant.running += 1
        sequence.admitted = True

    def preempt(self, sequence: Sequence) -> None:
        """Let a running sequence wait again, in its old place."""
        self.of(sequence).running -= 1
        sequence.admitted = False
        self._wait(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence. Raises KeyError if it is not here."""
        if sequence.admitted:
            tenant = self.of(sequence)
            tenant.running -= 1
            sequence.admitted = False
        else:
            tenant = self._take(sequence)
        if not tenant.running and not tenant.waiting:
            del self._tenants[tenant.name]

    def charge(self, sequence: Sequence, tokens: int) -> None:
        """Count tokens that are computed for a sequence's tenant."""
        tenant = self._tenants[sequence.tenant]
        tenant.served += tokens / tenant.weight

    def _wait(self, sequence: Sequence) -> None:
        tenant = self._tenants.get(sequence.tenant)
        if tenant is None:
            least = min((other.served for other in self), default=0.0)
            weight = self._weights.get(sequence.tenant, 1.0)
            tenant = self._tenants[sequence.tenant] = Tenant(sequence.tenant, weight, least)
        insort(tenant.waiting, sequence, key=_ORDER)
        self.waiting += 1

    def _take(self, sequence: Sequence) -> Tenant:
        tenant = self._tenants[sequence.tenant]
        place = bisect_left(tenant.waiting, sequence.order, key=_ORDER)
        if place == len(tenant.waiting) or tenant.waiting[place] is not sequence:
            raise KeyError(f"the sequence does not wait: {sequence.order}")
        del tenant.waiting[place]
        self.waiting -= 1
        return tenant

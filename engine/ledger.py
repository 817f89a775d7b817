"""Whose sequences are alive: the books that both engine cores, model and scripted, keep."""

from typing import Generic, Protocol, TypeVar

from ipc.messages import GenerationRequest, Owner


class Leased(Protocol):
    """What the ledger needs to know of a sequence."""

    @property
    def owner(self) -> Owner: ...
    @property
    def stream_id(self) -> int: ...
    @property
    def lease(self) -> int: ...


S = TypeVar("S", bound=Leased)


class Ledger(Generic[S]):
    """Live sequences by owner and stream id, and the highest lease seen of each owner.

    `stale` counts requests whose lease is not new and cancels whose lease does not match.
    """

    def __init__(self) -> None:
        self._live: dict[Owner, dict[int, S]] = {}
        self._highest: dict[Owner, int] = {}
        self.stale = 0

    def __len__(self) -> int:
        return sum(map(len, self._live.values()))

    def hello(self, owner: Owner) -> None:
        """Make room for an owner."""
        self._live.setdefault(owner, {})

    def admits(self, owner: Owner, request: GenerationRequest) -> bool:
        """Whether the request's lease is new; if so it is the owner's highest from now on."""
        if request.lease <= self._highest.get(owner, -1):
            self.stale += 1
            return False
        self._highest[owner] = request.lease
        return True

    def add(self, sequence: S) -> None:
        """Enter a live sequence."""
        self._live.setdefault(sequence.owner, {})[sequence.stream_id] = sequence

    def find(self, owner: Owner, stream_id: int) -> S | None:
        """The live sequence of this stream."""
        return self._live.get(owner, {}).get(stream_id)

    def match(self, owner: Owner, stream_id: int, lease: int) -> S | None:
        """The live sequence of this stream if the lease is its own; a mismatch is counted."""
        sequence = self.find(owner, stream_id)
        if sequence is None or sequence.lease == lease:
            return sequence
        self.stale += 1
        return None

    def remove(self, sequence: S) -> None:
        """Strike out a live sequence. Raises KeyError if it is not."""
        del self._live[sequence.owner][sequence.stream_id]

    def forget(self, owner: Owner) -> list[S]:
        """Strike out all that the owner has, and its lease; returns its sequences."""
        self._highest.pop(owner, None)
        return list(self._live.pop(owner, {}).values())

    def everything(self) -> list[S]:
        """All live sequences."""
        return [sequence for streams in self._live.values() for sequence in streams.values()]

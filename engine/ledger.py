"""Whose streams are known, and all that was said of each: the books that both engine cores keep.

What a sequence says goes through here to the frontend and worker that its stream is with. It is
kept until the frontend cancels the stream, also when the sequence has ended, so that it can be
said again to another worker: a worker may die between the last token and the last byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ipc.messages import (
    ErrorResponse,
    Finish,
    GenerationRequest,
    Owner,
    Reassign,
    Step,
    TokenLogprobs,
    Tokens,
)

S = TypeVar("S")

Destination = tuple[Owner, int]
"""Owner and worker index."""
Steps = dict[Destination, Step]
ErrorCode = Literal["invalid_request", "context_length_exceeded", "overloaded", "internal"]

SHUTTING_DOWN = "the engine is shutting down"
UNKNOWN_STREAM = "the engine does not know this stream any more"


@dataclass(slots=True, eq=False)
class Entry(Generic[S]):
    """One stream. `said` are its output tokens so far, `logprobs` theirs if they were asked for;
    `sequence` is None once it has ended, by `finish` or by `error`, a code and a message."""

    owner: Owner
    stream_id: int
    lease: int
    worker: int
    sequence: S | None = None
    said: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    error: tuple[ErrorCode, str] | None = None


class Ledger(Generic[S]):
    """Entries by owner and stream id, the highest lease seen of each owner, and what is to be
    sent with the next step.

    `stale` counts messages whose lease is not new, or does not match; `errors` the error endings.
    """

    def __init__(self) -> None:
        self.stale = 0
        self.errors = 0
        self._entries: dict[Owner, dict[int, Entry[S]]] = {}
        self._highest: dict[Owner, int] = {}
        self._tokens: dict[Destination, list[Tokens]] = {}
        self._errors: dict[Destination, list[ErrorResponse]] = {}

    @property
    def unsent(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._tokens or self._errors)

    def hello(self, owner: Owner) -> None:
        """Make room for an owner."""
        self._entries.setdefault(owner, {})

    def open(
        self, owner: Owner, request: GenerationRequest, drop: Callable[[S], None]
    ) -> Entry[S] | None:
        """A new entry, without a sequence yet; None if the request's lease is not new.

        It replaces an earlier entry of the stream, whose sequence, if it still has one, is handed
        to `drop`.
        """
        if not self._is_new(owner, request.lease):
            return None
        replaced = self.close(owner, request.stream_id)
        if replaced is not None:
            drop(replaced)
        entry = Entry[S](owner, request.stream_id, request.lease, request.worker)
        self._entries.setdefault(owner, {})[request.stream_id] = entry
        return entry

    def find(self, owner: Owner, stream_id: int) -> Entry[S] | None:
        """The entry of a stream."""
        return self._entries.get(owner, {}).get(stream_id)

    def close(self, owner: Owner, stream_id: int, lease: int | None = None) -> S | None:
        """Strike a stream out, if the lease is its own; returns the sequence that it still has.

        Without a lease the stream is struck out in any case.
        """
        entry = self.find(owner, stream_id)
        if entry is None:
            return None
        if lease is not None and entry.lease != lease:
            self.stale += 1
            return None
        del self._entries[owner][stream_id]
        return entry.sequence

    def forget(self, owner: Owner) -> list[S]:
        """Strike out all that the owner has, and its lease; returns its sequences."""
        self._highest.pop(owner, None)
        for waiting in (self._tokens, self._errors):
            for destination in [d for d in waiting if d[0] == owner]:
                del waiting[destination]
        entries = self._entries.pop(owner, {})
        return [e.sequence for e in entries.values() if e.sequence is not None]

    def live(self) -> list[Entry[S]]:
        """The entries whose sequences have not ended."""
        entries = [entry for streams in self._entries.values() for entry in streams.values()]
        return [entry for entry in entries if entry.sequence is not None]

    @property
    def kept(self) -> int:
        """How many entries there are of sequences that have ended."""
        return sum(map(len, self._entries.values())) - len(self.live())

    def say(
        self,
        entry: Entry[S],
        ids: list[int],
        finish: Finish | None,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> None:
        """Say new tokens of a sequence, and that it ends with them. A stream's tokens have
        logprobs all or none."""
        start = len(entry.said)
        entry.said += ids
        if logprobs is not None:
            entry.logprobs = (entry.logprobs or []) + logprobs
        self._say_tokens(entry, start, ids, finish, logprobs)
        if finish is not None:
            entry.finish, entry.sequence = finish, None

    def shut_down(self, drop: Callable[[S], None]) -> None:
        """Say that every sequence ends by an error; each is given to `drop`."""
        for entry in self.live():
            if entry.sequence is not None:
                drop(entry.sequence)
            self.say_error(entry, "overloaded", SHUTTING_DOWN)

    def say_error(self, entry: Entry[S], code: ErrorCode, message: str) -> None:
        """Say that a sequence ends by an error."""
        self.errors += 1
        entry.error, entry.sequence = (code, message), None
        self._say_error(entry, code, message)

    def reassign(self, owner: Owner, message: Reassign) -> None:
        """Say a stream again, to another worker and under a new lease."""
        if not self._is_new(owner, message.lease):
            return
        entry = self.find(owner, message.stream_id)
        if entry is None:
            unknown = Entry[S](owner, message.stream_id, message.lease, message.worker)
            self._say_error(unknown, "internal", UNKNOWN_STREAM)
            return
        entry.worker, entry.lease = message.worker, message.lease
        # Also without a token: the worker's answer to this tells that the stream has arrived.
        logprobs = None if entry.logprobs is None else entry.logprobs.copy()
        self._say_tokens(entry, 0, entry.said.copy(), entry.finish, logprobs)
        if entry.error is not None:
            self._say_error(entry, *entry.error)

    def take(self) -> Steps:
        """All that was said since the last call."""
        tokens, errors = self._tokens, self._errors
        self._tokens, self._errors = {}, {}
        return {
            destination: Step(tokens.get(destination, []), tuple(errors.get(destination, ())))
            for destination in tokens | errors
        }

    def _is_new(self, owner: Owner, lease: int) -> bool:
        if lease <= self._highest.get(owner, -1):
            self.stale += 1
            return False
        self._highest[owner] = lease
        return True

    def _say_tokens(
        self,
        entry: Entry[S],
        start: int,
        ids: list[int],
        finish: Finish | None,
        logprobs: list[TokenLogprobs] | None,
    ) -> None:
        cached = 0 if start else entry.cached_tokens
        message = Tokens(entry.stream_id, entry.lease, start, ids, finish, cached, logprobs)
        self._tokens.setdefault((entry.owner, entry.worker), []).append(message)

    def _say_error(self, entry: Entry[S], code: ErrorCode, message: str) -> None:
        response = ErrorResponse(entry.stream_id, entry.lease, code, message)
        self._errors.setdefault((entry.owner, entry.worker), []).append(response)

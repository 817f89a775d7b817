"""What one step says, grouped by the frontend and worker that it goes to."""

from typing import Literal, Protocol

from ipc.messages import ErrorResponse, Finish, Owner, Step, Tokens

Destination = tuple[Owner, int]
"""Owner and worker index."""
Steps = dict[Destination, Step]
ErrorCode = Literal["invalid_request", "context_length_exceeded", "overloaded", "internal"]


class Addressed(Protocol):
    """What names a sequence to its worker: the request's own fields."""

    @property
    def stream_id(self) -> int: ...
    @property
    def lease(self) -> int: ...
    @property
    def worker(self) -> int: ...


class Outbox:
    """Collects tokens and errors until they are taken."""

    def __init__(self) -> None:
        self._tokens: dict[Destination, list[Tokens]] = {}
        self._errors: dict[Destination, list[ErrorResponse]] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens or self._errors)

    def tokens(
        self, owner: Owner, to: Addressed, start: int, ids: list[int], finish: Finish | None
    ) -> None:
        """Say new tokens of a sequence."""
        message = Tokens(to.stream_id, to.lease, start, ids, finish)
        self._tokens.setdefault((owner, to.worker), []).append(message)

    def error(self, owner: Owner, to: Addressed, code: ErrorCode, message: str) -> None:
        """Say that a sequence ends by an error."""
        response = ErrorResponse(to.stream_id, to.lease, code, message)
        self._errors.setdefault((owner, to.worker), []).append(response)

    def discard(self, owner: Owner) -> None:
        """Drop what waits for an owner that is gone."""
        for waiting in (self._tokens, self._errors):
            for destination in [d for d in waiting if d[0] == owner]:
                del waiting[destination]

    def take(self) -> Steps:
        """All that was said since the last call."""
        tokens, errors = self._tokens, self._errors
        self._tokens, self._errors = {}, {}
        return {
            destination: Step(tokens.get(destination, []), tuple(errors.get(destination, ())))
            for destination in tokens | errors
        }

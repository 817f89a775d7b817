"""A frontend that checks all it hears: each stream's tokens in order, its end once, its worker."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from ipc.messages import (
    Cancel,
    Constraint,
    ErrorResponse,
    GenerationRequest,
    Heartbeat,
    Reassign,
    Refused,
    Sampling,
    TokenLogprobs,
    Tokens,
)
from tests.engine.client import Client

PROMPT = [5, 6, 7]


class Stream(NamedTuple):
    """One life of a stream."""

    stream_id: int
    lease: int
    worker: int


@dataclass(slots=True)
class Said:
    """All that was said of one life of a stream. Adding to it fails on what must not follow."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    end: str | None = None
    message: str = ""
    workers: set[int] = field(default_factory=set)
    parts: int = 0

    def add_tokens(self, tokens: Tokens) -> None:
        assert self.end is None, "tokens after the end"
        assert tokens.start == len(self.ids), "a gap, or tokens said twice"
        assert tokens.logprobs is None or len(tokens.logprobs) == len(tokens.ids)
        self.cached_tokens += tokens.cached_tokens
        self.parts += 1
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs or []
        if tokens.finish is not None:
            self.end = tokens.finish.reason

    def add_error(self, error: ErrorResponse) -> None:
        assert self.end is None, "an error after the end"
        self.end, self.message = error.code, error.message


class Frontend(Client):
    """A client that mints leases and keeps what was said by stream and lease."""

    said: dict[tuple[int, int], Said]

    def __init__(self, *arguments: Any) -> None:
        self.said = defaultdict(Said)
        self._read = 0
        self._leases = count(1)
        super().__init__(*arguments)

    def generate(
        self,
        prompt: list[int] | None = None,
        *,
        stream_id: int | None = None,
        worker: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        constraint: Constraint | None = None,
        **sampling: Any,
    ) -> Stream:
        """Ask for a sequence; the stream's id is its first lease unless one is given."""
        lease = next(self._leases)
        stream = Stream(lease if stream_id is None else stream_id, lease, worker)
        self.send(
            GenerationRequest(
                *stream,
                prompt=PROMPT if prompt is None else prompt,
                sampling=Sampling(**({"max_tokens": 4} | sampling)),
                cache_salt=cache_salt,
                tenant=tenant,
                constraint=constraint,
            )
        )
        return stream

    def cancel(self, stream: Stream) -> None:
        """The stream is over."""
        self.send(Cancel(stream.stream_id, stream.lease))

    def reassign(self, stream: Stream, worker: int) -> Stream:
        """Move a stream to a worker; its next life."""
        moved = Stream(stream.stream_id, next(self._leases), worker)
        self.send(Reassign(moved.stream_id, worker, moved.lease))
        return moved

    def hear(self, stream: Stream, at_least: int | None = None) -> Said:
        """What is said of a stream until it ends, or until there are `at_least` tokens."""
        said = self._of(stream)
        while said.end is None and (at_least is None or len(said.ids) < at_least):
            self.hear_step()
            said = self._of(stream)
        assert said.workers <= {stream.worker}
        return said

    def complete(self, prompt: list[int] | None = None, **sampling: Any) -> Said:
        """Ask for a sequence, hear it to its end and cancel it, as a frontend does."""
        stream = self.generate(prompt, **sampling)
        said = self.hear(stream)
        self.cancel(stream)
        return said

    def settle(self) -> None:
        """Hear all that the messages up to now have brought: it is said with the end of a request
        that comes after them, at the latest. The answer to a heartbeat can overtake it."""
        self.complete(max_tokens=1)
        self.status()

    def heard(self, stream: Stream) -> int:
        """How many messages about a stream were heard so far."""
        said = self._of(stream)
        return said.parts + (said.message != "")

    def wait_until_refused(self) -> None:
        """Wait until the engine has read all that was sent, the Goodbye last of it."""
        self.send(Heartbeat())
        while not isinstance(self.hear_answer(), Refused):
            pass

    def _of(self, stream: Stream) -> Said:
        for worker, step in self.steps[self._read :]:
            for tokens in step.tokens:
                said = self.said[tokens.stream_id, tokens.lease]
                said.add_tokens(tokens)
                said.workers.add(worker)
            for error in step.errors:
                said = self.said[error.stream_id, error.lease]
                said.add_error(error)
                said.workers.add(worker)
        self._read = len(self.steps)
        return self.said[stream.stream_id, stream.lease]

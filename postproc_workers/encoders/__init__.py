"""Encoders: messages of a Harmony stream in, the bytes of one API out."""

from typing import Literal, NamedTuple, Protocol

from ipc.messages import TokenLogprobs
from postproc_workers.harmony import MessageSink

Status = Literal["stop", "length"]


class Usage(NamedTuple):
    """Token counts of a turn. `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Failure(NamedTuple):
    """An error as clients see it: OpenAI's `type` and `code`, and the HTTP status it has when
    nothing was sent before it."""

    status: int
    type: str
    code: str
    message: str


def server_error(message: str) -> Failure:
    """A fault of ours."""
    return Failure(500, "server_error", "server_error", message)


CANCELLED = "cancelled"
"""The code of the failure that is none: somebody asked for the end."""


class Encoder(MessageSink, Protocol):
    """One stream's encoder: appends bytes to `pieces`, whose reader clears it.

    Exactly one of `finish` and `fail` ends it. For an unstreamed request nothing comes before.
    `logprob` is called for each token of a message's text, before that text, if the request asked
    for log-probabilities. `stop_sequence` is the stop string that ended the turn.
    """

    pieces: list[bytes]
    next_sequence: int
    reasoning_tokens: int

    def open(self) -> None: ...
    def logprob(self, token: int, entry: TokenLogprobs) -> None: ...
    def finish(
        self, status: Status, usage: Usage, now: int, stop_sequence: str | None = None
    ) -> None: ...
    def fail(self, failure: Failure, now: int) -> None: ...

"""One stream's post-processing: its token stream, its turn's limits and its encoder, as one."""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, assert_never

from ipc.messages import (
    ChatFormat,
    CompletionFormat,
    Ending,
    ErrorResponse,
    Fail,
    Finish,
    MessagesFormat,
    Open,
    ResponsesFormat,
    TokenLogprobs,
)
from ipc.vocabulary import FIRST_SPECIAL
from postproc_workers.encoders import CANCELLED, Encoder, Failure, Usage, server_error
from postproc_workers.encoders.chat import ChatEncoder
from postproc_workers.encoders.completions import CompletionEncoder
from postproc_workers.encoders.messages import MessagesEncoder
from postproc_workers.encoders.responses import ResponsesEncoder
from postproc_workers.harmony import HarmonyStream, MessageSink
from postproc_workers.record import make_record
from postproc_workers.text_stream import TextStream
from postproc_workers.tokens import token_table
from postproc_workers.turn_limits import TurnLimits

_ENGINE_FAILURES = {
    "invalid_request": (400, "invalid_request_error", "invalid_prompt"),
    "context_length_exceeded": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (503, "server_error", "overloaded"),
    "internal": (500, "server_error", "server_error"),
}


def engine_failure(error: ErrorResponse) -> Failure:
    """How clients see an engine's error."""
    return Failure(*_ENGINE_FAILURES[error.code], error.message)


def frontend_failure(fail: Fail) -> Failure:
    """How clients see an end that the frontend ordered."""
    if fail.code == "overloaded":
        return Failure(503, "server_error", "overloaded", fail.message)
    if fail.code == CANCELLED:
        return Failure(499, "invalid_request_error", CANCELLED, fail.message)
    return server_error(fail.message)


def make_encoder(opening: Open) -> Encoder:
    """The encoder of the API that the stream was opened for."""
    match opening.format:
        case ResponsesFormat():
            return ResponsesEncoder(opening, opening.format)
        case ChatFormat():
            return ChatEncoder(opening, opening.format)
        case MessagesFormat():
            return MessagesEncoder(opening, opening.format)
        case CompletionFormat():
            return CompletionEncoder(opening, opening.format)
        case _:
            assert_never(opening.format)


class TokenStream(Protocol):
    """Reads the tokens of a turn into the messages of a sink."""

    consumed: int
    ended_early: bool
    recovered: Counter[str]

    @property
    def in_text(self) -> bool: ...
    def feed(self, tokens: Sequence[int]) -> bool: ...
    def finish(self, cut: bool) -> None: ...


def make_stream(opening: Open, sink: MessageSink) -> TokenStream:
    """What reads the stream's tokens: as plain text, or as Harmony."""
    if isinstance(opening.format, CompletionFormat):
        return TextStream(sink, token_table())
    return HarmonyStream(sink, token_table(), opening.tools)


def _packed(tokens: list[int]) -> "array[int]":
    """Token ids in a tenth of a list's memory. What is too large for it is no token, as -1 is."""
    try:
        return array("i", tokens)
    except OverflowError:
        return array("i", [token if abs(token) < 2**31 else -1 for token in tokens])


class PostProcessor:
    """Turns the tokens of one stream into the bytes for its client.

    Its output depends on its Open, its tokens and its ending alone, not on how the tokens were
    cut into steps. `take` hands over the bytes since the last time; they stay whole if a later
    call raises. `now` is in unix seconds and only dates the end. `ended_early` says that the
    answer is complete though the engine goes on, `next_sequence` is the number of the next event;
    `cached_tokens` of the prompt are set once the engine has told them. `record` is what an ended
    stream can be made of again, empty unless its Open says to keep that.
    """

    def __init__(self, opening: Open) -> None:
        self._opening = opening
        self._encoder = make_encoder(opening)
        limited = bool(opening.stop) or not opening.parallel_tool_calls
        self._limits = (
            TurnLimits(self._encoder, opening.stop, opening.parallel_tool_calls)
            if limited
            else None
        )
        self._stream = make_stream(opening, self._limits or self._encoder)
        self.ended_early = False
        self.cached_tokens = 0
        self.next_sequence = 0
        self.record = b""
        self._keep = opening.keep
        self._tokens = array("i")
        self._logprobs: list[TokenLogprobs] | None = None

    def open(self) -> None:
        self._encoder.open()

    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None:
        if self._keep:
            self._tokens += _packed(tokens)
            if logprobs is not None:
                self._logprobs = (self._logprobs or []) + logprobs
        if logprobs is None:
            self.ended_early = self._stream.feed(tokens)
            return
        for token, entry in zip(tokens, logprobs, strict=True):
            if self._stream.in_text and 0 <= token < FIRST_SPECIAL:
                self._encoder.logprob(token, entry)
            self.ended_early = self._stream.feed((token,))

    def finish(self, finish: Finish, now: int) -> None:
        self._stream.finish(cut=finish.reason == "length")
        status = "stop" if self._stream.ended_early else finish.reason
        self._remember(Ending(now, finish, cut=status == "length"))
        usage = Usage(self._opening.prompt_tokens, self.cached_tokens, self.output_tokens)
        stop_sequence = self._limits.stop_sequence if self._limits else None
        self._encoder.finish(status, usage, now, stop_sequence)

    def fail(self, failure: Failure, now: int) -> None:
        self._remember(Ending(now, failure=(*failure,)))
        self._encoder.fail(failure, now)

    def _remember(self, ending: Ending) -> None:
        if self._keep:
            self.record = make_record(
                self._opening, self._tokens.tolist(), ending, self.cached_tokens, self._logprobs
            )

    def take(self) -> bytes:
        pieces = self._encoder.pieces
        taken = b"".join(pieces)
        pieces.clear()
        self.next_sequence = self._encoder.next_sequence
        return taken

    def renumber(self, next_sequence: int) -> None:
        """Give the next event this number."""
        self._encoder.next_sequence = next_sequence

    @property
    def output_tokens(self) -> int:
        """Tokens of the turn so far, without those beyond an early end."""
        return self._stream.consumed

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning that has ended."""
        return self._encoder.reasoning_tokens

    @property
    def recovered(self) -> Counter[str]:
        """How often which sort of malformed markup was mended."""
        return self._stream.recovered

"""A registry's reference model: the lifecycle told in the plainest way, to run beside a real one.

It keeps every token of every live stream and remakes the whole output from the start at each
message, which is what invariant L6 says the output is: a function of the Open, the tokens and the
ending. Any `make_processor` can be tested, if what it makes is deterministic.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ipc.messages import (
    Abort,
    ErrorResponse,
    Fail,
    Finish,
    Goodbye,
    Hello,
    Open,
    Owner,
    Step,
    TokenLogprobs,
    Tokens,
)
from postproc_workers.encoders import Failure
from postproc_workers.post_processor import engine_failure, frontend_failure
from postproc_workers.registry import Processor

ModelMessage = Hello | Open | Step | Fail | Abort | Goodbye


def raised(error: ValueError) -> Failure:
    """What a client is told of an exception in post-processing."""
    return Failure(500, "server_error", "server_error", str(error))


class ScriptedProcessor:
    """Post-processing of which everything is known: a numbered line for each token.

    It raises at `BAD` and ends early at `STOP`; an Open for the model `fails to open`, `to make`,
    or `to fail` raises there.
    """

    BAD = 13
    STOP = 7

    def __init__(self, opening: Open) -> None:
        if opening.model == "fails to make":
            raise ValueError("made to fail")
        self.ended_early = False
        self.next_sequence = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens = 0
        self.record = b""
        self.recovered: Counter[str] = Counter()
        self._opening = opening
        self._lines: list[str] = []

    def open(self) -> None:
        self._say(f"open {self._opening.stream_id}")
        if self._opening.model == "fails to open":
            raise ValueError("made to fail")

    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None:
        for token in tokens:
            if self.ended_early:
                return
            if token == self.BAD:
                raise ValueError("a token made it fail")
            self.output_tokens += 1
            self._say(f"token {token}")
            self.ended_early = token == self.STOP

    def finish(self, finish: Finish, now: int) -> None:
        self._say(f"end {finish.reason}")

    def fail(self, failure: Failure, now: int) -> None:
        if self._opening.model == "fails to fail":
            raise ValueError("made to fail")
        self._say(f"error {failure.message}")

    def renumber(self, next_sequence: int) -> None:
        self.next_sequence = next_sequence

    def take(self) -> bytes:
        taken = "".join(self._lines).encode()
        self._lines.clear()
        return taken

    def _say(self, text: str) -> None:
        self._lines.append(f"{self.next_sequence} {text}\n")
        self.next_sequence += 1


@dataclass
class ModelStream:
    """One life of a stream: all that its output depends on, and all that its client has.

    `known` is how many of its tokens a moved stream passed over silently, once they have come.
    """

    owner: Owner
    opening: Open
    tokens: list[int] = field(default_factory=list)
    known: int | None = None
    ending: Finish | Failure | None = None
    sent: bytes = b""
    released: str | None = None
    terminal_sent: bool = False
    idle: bool = False

    def expected_output(self, make_processor: Callable[[Open], Processor]) -> bytes:
        """What the client must have by now."""
        try:
            processor = make_processor(self.opening)
        except ValueError:
            return b""
        failure = self.ending if isinstance(self.ending, Failure) else None
        resume = self.opening.resume
        behind = resume is not None and resume.begun
        try:
            processor.open()
            if behind:
                processor.take()
            if behind and self.known is not None:
                processor.feed(self.tokens[: self.known])
                self._skip(processor)
                behind = False
            processor.feed(self.tokens[self.known or 0 :])
            if isinstance(self.ending, Finish):
                processor.finish(self.ending, 0)
        except ValueError as error:
            failure = failure or raised(error)
        if failure is not None:
            if behind:
                self._skip(processor)
            with suppress(ValueError):
                processor.fail(failure, 0)
        return processor.take()

    def _skip(self, processor: Processor) -> None:
        """Drop what the client of a moved stream has, and go on with its numbers."""
        assert self.opening.resume is not None
        processor.take()
        processor.renumber(self.opening.resume.next_sequence)


@dataclass
class ModelFrontend:
    """What is known of one frontend: its present life, if it is connected, and its leases."""

    epoch: int
    present: bool = True
    highest_lease: int = -1
    live: dict[int, ModelStream] = field(default_factory=dict)


class RegistryModel:
    """Takes the messages that a registry takes and knows what must have become of each stream."""

    def __init__(self, make_processor: Callable[[Open], Processor]) -> None:
        self.make_processor = make_processor
        self.frontends: dict[int, ModelFrontend] = {}
        self.lives: list[ModelStream] = []
        self.released: Counter[str] = Counter()
        self.stale = 0
        self.not_owned = 0
        self.opened = 0

    @property
    def live(self) -> list[ModelStream]:
        return [s for frontend in self.frontends.values() for s in frontend.live.values()]

    @property
    def present(self) -> list[Owner]:
        return [Owner(number, f.epoch) for number, f in self.frontends.items() if f.present]

    def handle(self, owner: Owner, message: ModelMessage) -> None:
        match message:
            case Hello():
                self._hello(owner)
            case Goodbye():
                self.lose(owner)
            case Open():
                self._open(owner, message)
            case Step():
                for entry in message.tokens:
                    self._tokens(owner, entry)
                for error in message.errors:
                    self._fail(owner, error, engine_failure(error))
            case Fail():
                self._fail(owner, message, frontend_failure(message))
            case Abort():
                stream = self._find(owner, message)
                if stream is not None:
                    self._release(stream, "moved" if message.moved else "abort")

    def lose(self, owner: Owner) -> None:
        frontend = self._present(owner)
        if frontend is not None:
            self._lose(frontend)

    def sweep(self) -> list[ModelStream]:
        """Release the streams that got no token since the last sweep."""
        expired = [stream for stream in self.live if stream.idle]
        for stream in expired:
            self._release(stream, "expired")
        for stream in self.live:
            stream.idle = True
        return expired

    def find_life(self, owner: Owner, stream_id: int, lease: int) -> ModelStream:
        """The latest life of a stream under that lease."""
        return next(
            life
            for life in reversed(self.lives)
            if (life.owner, life.opening.stream_id, life.opening.lease) == (owner, stream_id, lease)
        )

    def _hello(self, owner: Owner) -> None:
        known = self.frontends.get(owner.frontend)
        if known is not None and known.present and known.epoch > owner.epoch:
            self.stale += 1
            return
        if known is not None:
            self._lose(known)
        if known is not None and known.epoch == owner.epoch:
            known.present = True
        else:
            self.frontends[owner.frontend] = ModelFrontend(owner.epoch)

    def _open(self, owner: Owner, opening: Open) -> None:
        frontend = self._present(owner)
        if frontend is None:
            self.not_owned += 1
            return
        if opening.lease <= frontend.highest_lease:
            self.stale += 1
            return
        frontend.highest_lease = opening.lease
        if opening.stream_id in frontend.live:
            self._release(frontend.live[opening.stream_id], "moved")
        self.opened += 1
        stream = ModelStream(owner, opening)
        self.lives.append(stream)
        frontend.live[opening.stream_id] = stream
        try:
            self.make_processor(opening).open()
        except ValueError as error:
            self._end(stream, raised(error))

    def _tokens(self, owner: Owner, entry: Tokens) -> None:
        stream = self._find(owner, entry)
        if stream is None:
            return
        place = len(stream.tokens)
        if entry.start > place:
            lost = f"tokens {place} to {entry.start - 1} of the stream were lost"
            self._end(stream, Failure(500, "server_error", "server_error", lost))
            return
        if entry.start < place:
            self.stale += 1
        new = entry.ids[place - entry.start :]
        if stream.known is None and stream.opening.resume is not None:
            stream.known = min(len(new), stream.opening.resume.tokens)
        stream.tokens += new
        stream.idle = stream.idle and not new
        processor = self.make_processor(stream.opening)
        processor.open()
        try:
            processor.feed(stream.tokens)
        except ValueError as error:
            self._end(stream, raised(error))
            return
        if processor.ended_early or entry.finish is not None:
            self._end(stream, entry.finish or Finish("stop"))

    def _fail(self, owner: Owner, about: Fail | ErrorResponse, failure: Failure) -> None:
        stream = self._find(owner, about)
        if stream is not None:
            self._end(stream, failure)

    def _end(self, stream: ModelStream, ending: Finish | Failure) -> None:
        stream.ending = ending
        self._release(stream, "final" if isinstance(ending, Finish) else "error")

    def _release(self, stream: ModelStream, reason: str) -> None:
        assert stream.released is None
        stream.released = reason
        self.released[reason] += 1
        del self.frontends[stream.owner.frontend].live[stream.opening.stream_id]

    def _lose(self, frontend: ModelFrontend) -> None:
        frontend.present = False
        for stream in list(frontend.live.values()):
            self._release(stream, "owner_lost")

    def _present(self, owner: Owner) -> ModelFrontend | None:
        frontend = self.frontends.get(owner.frontend)
        present = frontend is not None and frontend.present and frontend.epoch == owner.epoch
        return frontend if present else None

    def _find(
        self, owner: Owner, about: Tokens | Fail | Abort | ErrorResponse
    ) -> ModelStream | None:
        frontend = self._present(owner)
        if frontend is None:
            self.not_owned += 1
            return None
        stream = frontend.live.get(about.stream_id)
        if stream is not None and stream.opening.lease == about.lease:
            return stream
        others = [f for f in self.frontends.values() if f is not frontend]
        if stream is None and any(about.stream_id in f.live for f in others):
            self.not_owned += 1
        else:
            self.stale += 1
        return None

"""The streams of one worker: the only place where stream state is created and released.

A stream is found by its owner and its id, and acted on only under its lease; all else is dropped
and counted. Of a released stream nothing stays but the highest lease of its owner, which is how
a late or repeated Open of it is known as stale. See lifecycle.py for what each event does.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, assert_never

from ipc.messages import (
    Abort,
    Fail,
    Finish,
    FrontendToWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Open,
    Output,
    Outputs,
    Owner,
    Released,
    Resume,
    Step,
    Terminal,
    TokenLogprobs,
    Tokens,
    WorkerStatus,
)
from postproc_workers.encoders import Failure, server_error
from postproc_workers.lifecycle import TRANSITIONS, Event, Reason, State
from postproc_workers.post_processor import PostProcessor, engine_failure, frontend_failure

_logger = logging.getLogger(__name__)


class Processor(Protocol):
    """What a registry needs of a stream's post-processing; PostProcessor is the real one."""

    ended_early: bool
    next_sequence: int
    cached_tokens: int
    record: bytes

    def open(self) -> None: ...
    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None: ...
    def finish(self, finish: Finish, now: int) -> None: ...
    def fail(self, failure: Failure, now: int) -> None: ...
    def take(self) -> bytes: ...
    def renumber(self, next_sequence: int) -> None: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def recovered(self) -> Counter[str]: ...


class LostTokensError(Exception):
    """A step that begins beyond the tokens that have come: some were lost on the way."""

    def __init__(self, position: int, start: int) -> None:
        super().__init__(f"tokens {position} to {start - 1} of the stream were lost")


@dataclass(slots=True)
class _OwnerStreams:
    """What one frontend holds; `highest_lease` outlasts the loss of its connection."""

    epoch: int
    highest_lease: int = -1
    present: bool = True
    live: dict[int, "_Stream"] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    stream_id: int
    lease: int
    processor: Processor
    owned: _OwnerStreams
    resume: Resume | None = None
    position: int = 0
    position_at_sweep: int = -1


class Registry:
    """Messages in, outputs out. Never raises for anything that a message holds.

    `make_processor` builds a stream's post-processing from its Open; `now` arguments are unix
    seconds.
    """

    def __init__(self, make_processor: Callable[[Open], Processor] = PostProcessor) -> None:
        self.opened = 0
        self.released: Counter[str] = Counter({reason.value: 0 for reason in Reason})
        self.stale = 0
        self.not_owned = 0
        self.recovered: Counter[str] = Counter()
        self._make_processor = make_processor
        self._frontends: dict[int, _OwnerStreams] = {}

    @property
    def live(self) -> int:
        """Streams whose state is held now."""
        return sum(len(owned.live) for owned in self._frontends.values())

    def statistics(self) -> WorkerStatus:
        """The counters; `rejected` is the socket's to fill in."""
        return WorkerStatus(
            live=self.live,
            opened=self.opened,
            released=dict(self.released),
            stale=self.stale,
            not_owned=self.not_owned,
            rejected=0,
            recovered=dict(self.recovered),
        )

    def handle(
        self, owner: Owner, message: FrontendToWorker, now: int
    ) -> Outputs | Released | WorkerStatus | None:
        """Act on any message that a frontend sends; what is returned goes back to `owner`."""
        match message:
            case Step():
                return self.step(owner, message, now)
            case Open():
                return self.open(owner, message, now)
            case Abort():
                self.abort(owner, message)
            case Fail():
                return self.fail(owner, message, now)
            case Hello():
                self.owner_arrived(owner)
            case Goodbye():
                self.owner_lost(owner)
            case Heartbeat():
                return self.statistics()
            case _:
                assert_never(message)
        return None

    def owner_arrived(self, owner: Owner) -> None:
        """Make room for an owner; earlier lives of the same frontend are lost."""
        known = self._frontends.get(owner.frontend)
        if known is not None:
            if known.present and known.epoch > owner.epoch:
                self.stale += 1
                return
            self._lose(known)
            if known.epoch == owner.epoch:
                known.present = True
                return
        self._frontends[owner.frontend] = _OwnerStreams(owner.epoch)

    def owner_lost(self, owner: Owner) -> None:
        """Release all that the owner holds."""
        owned = self._owned(owner)
        if owned is not None:
            self._lose(owned)

    def open(self, owner: Owner, opening: Open, now: int) -> Outputs | Released | None:
        """Create a stream's state; its opening events are the output."""
        owned = self._owned(owner)
        if owned is None:
            self.not_owned += 1
            return Released(opening.stream_id, opening.lease, "not_owned")
        if opening.lease <= owned.highest_lease:
            self.stale += 1
            return None
        owned.highest_lease = opening.lease
        earlier = owned.live.get(opening.stream_id)
        if earlier is not None:
            self._release(earlier, Event.OPEN)
        self.opened += 1
        try:
            processor = self._make_processor(opening)
        except Exception as error:
            return self._never_began(opening, error)
        stream = _Stream(opening.stream_id, opening.lease, processor, owned, opening.resume)
        owned.live[opening.stream_id] = stream
        try:
            processor.open()
        except Exception as error:
            return Outputs([self._end_by_exception(stream, error, now)])
        if opening.resume is not None and opening.resume.begun:
            processor.take()
        output = _output(stream)
        return None if output is None else Outputs([output])

    def step(self, owner: Owner, step: Step, now: int) -> Outputs | None:
        """Process what one engine step brought for this worker's streams of `owner`."""
        owned = self._owned(owner)
        if owned is None:
            self.not_owned += len(step.tokens) + len(step.errors)
            return None
        live = owned.live
        outputs: list[Output] = []
        for entry in step.tokens:
            stream = live.get(entry.stream_id)
            if stream is None or stream.lease != entry.lease:
                self._count_foreign(owned, entry.stream_id)
                continue
            try:
                output = self._tokens(stream, entry, now)
            except Exception as error:
                output = self._end_by_exception(stream, error, now)
            if output is not None:
                outputs.append(output)
        for response in step.errors:
            stream = self._find(owner, response.stream_id, response.lease)
            if stream is not None:
                outputs.append(self._end_by_failure(stream, engine_failure(response), now))
        return Outputs(outputs) if outputs else None

    def fail(self, owner: Owner, fail: Fail, now: int) -> Outputs | None:
        """End a stream with an error that its client is told."""
        stream = self._find(owner, fail.stream_id, fail.lease)
        if stream is None:
            return None
        return Outputs([self._end_by_failure(stream, frontend_failure(fail), now)])

    def abort(self, owner: Owner, abort: Abort) -> None:
        """End a stream without a word."""
        stream = self._find(owner, abort.stream_id, abort.lease)
        if stream is not None:
            self._release(stream, Event.MOVED if abort.moved else Event.ABORT)

    def release_idle(self) -> list[tuple[Owner, Released]]:
        """Release the streams that got no token since the last call."""
        expired = []
        for frontend, owned in self._frontends.items():
            for stream in list(owned.live.values()):
                if stream.position == stream.position_at_sweep:
                    self._release(stream, Event.IDLE)
                    notice = Released(stream.stream_id, stream.lease, "expired")
                    expired.append((Owner(frontend, owned.epoch), notice))
                stream.position_at_sweep = stream.position
        return expired

    def _tokens(self, stream: _Stream, entry: Tokens, now: int) -> Output | None:
        ids, logprobs = entry.ids, entry.logprobs
        if entry.start != stream.position:
            if entry.start > stream.position:
                raise LostTokensError(stream.position, entry.start)
            self.stale += 1
            ids, logprobs = _from(stream.position - entry.start, ids, logprobs)
        processor = stream.processor
        if entry.cached_tokens:
            processor.cached_tokens = entry.cached_tokens
        resumed = stream.resume is not None
        if stream.resume is not None:
            ids, logprobs = _catch_up(stream, stream.resume, ids, logprobs)
        processor.feed(ids, logprobs)
        stream.position += len(ids)
        finish = entry.finish
        if finish is None and not processor.ended_early:
            return _output(stream, resumed)
        processor.finish(finish or Finish("stop"), now)
        self._release(stream, Event.FINAL)
        return _last_output(stream, "final", 200, stopped_early=finish is None)

    def _end_by_exception(self, stream: _Stream, error: Exception, now: int) -> Output:
        _logger.error("stream %d: post-processing failed", stream.stream_id, exc_info=error)
        message = str(error) or type(error).__name__
        failure = server_error(message)
        return self._end_by_failure(stream, failure, now, Event.EXCEPTION)

    def _end_by_failure(
        self, stream: _Stream, failure: Failure, now: int, event: Event = Event.FAIL
    ) -> Output:
        self._release(stream, event)
        if stream.resume is not None:
            _skip_known_output(stream, stream.resume)
        try:
            stream.processor.fail(failure, now)
        except Exception:
            # The encoder itself is broken; a terminal output without a word still ends the stream.
            _logger.exception("stream %d: its failure cannot be encoded", stream.stream_id)
        return _last_output(stream, "error", failure.status)

    def _never_began(self, opening: Open, error: Exception) -> Outputs:
        _logger.exception("stream %d cannot be opened", opening.stream_id)
        self.released[Reason.ERROR.value] += 1
        terminal = Terminal("error", 500, 0, message=str(error) or type(error).__name__)
        return Outputs([Output(opening.stream_id, opening.lease, 0, 0, b"", terminal)])

    def _find(self, owner: Owner, stream_id: int, lease: int) -> _Stream | None:
        """The live stream that a message is about, if it is its owner's and under its lease."""
        owned = self._owned(owner)
        if owned is None:
            self.not_owned += 1
            return None
        stream = owned.live.get(stream_id)
        if stream is None or stream.lease != lease:
            self._count_foreign(owned, stream_id)
            return None
        return stream

    def _count_foreign(self, owned: _OwnerStreams, stream_id: int) -> None:
        """Count a message about a stream that its sender does not hold under that lease."""
        others = (other.live for other in self._frontends.values() if other is not owned)
        if stream_id not in owned.live and any(stream_id in live for live in others):
            self.not_owned += 1
        else:
            self.stale += 1

    def _owned(self, owner: Owner) -> _OwnerStreams | None:
        """What `owner` holds, or None if it has not arrived or is lost."""
        owned = self._frontends.get(owner.frontend)
        if owned is None or owned.epoch != owner.epoch or not owned.present:
            return None
        return owned

    def _lose(self, owned: _OwnerStreams) -> None:
        owned.present = False
        for stream in list(owned.live.values()):
            self._release(stream, Event.OWNER_LOST)

    def _release(self, stream: _Stream, event: Event) -> None:
        reason = TRANSITIONS[State.LIVE][event].reason
        assert reason is not None, f"{event} releases nothing"
        del stream.owned.live[stream.stream_id]
        self.released[reason.value] += 1
        recovered = stream.processor.recovered
        if recovered:
            _logger.debug("stream %d: mended %s", stream.stream_id, dict(recovered))
            self.recovered.update(recovered)


def _output(stream: _Stream, resumed: bool = False) -> Output | None:
    processor = stream.processor
    body = processor.take()
    if not body and not resumed:
        return None
    next_sequence = processor.next_sequence
    return Output(
        stream.stream_id, stream.lease, stream.position, next_sequence, body, None, resumed
    )


def _from(
    place: int, ids: list[int], logprobs: list[TokenLogprobs] | None
) -> tuple[list[int], list[TokenLogprobs] | None]:
    """The tokens from a place on."""
    return ids[place:], None if logprobs is None else logprobs[place:]


def _catch_up(
    stream: _Stream, resume: Resume, ids: list[int], logprobs: list[TokenLogprobs] | None
) -> tuple[list[int], list[TokenLogprobs] | None]:
    """Process silently the tokens whose output the client has; returns the others.

    The first tokens of a moved stream are all that there were when it moved, so this is once.
    """
    known = max(0, resume.tokens - stream.position)
    stream.processor.feed(ids[:known], None if logprobs is None else logprobs[:known])
    stream.position += len(ids[:known])
    _skip_known_output(stream, resume)
    return _from(known, ids, logprobs)


def _skip_known_output(stream: _Stream, resume: Resume) -> None:
    stream.resume = None
    if resume.begun:
        stream.processor.take()
        stream.processor.renumber(resume.next_sequence)


def _last_output(
    stream: _Stream, reason: Literal["final", "error"], status: int, stopped_early: bool = False
) -> Output:
    processor = stream.processor
    body = processor.take()
    return Output(
        stream.stream_id,
        stream.lease,
        stream.position,
        processor.next_sequence,
        body,
        Terminal(
            reason,
            status,
            processor.output_tokens,
            stopped_early,
            cached_tokens=processor.cached_tokens,
            reasoning_tokens=processor.reasoning_tokens,
            record=processor.record,
        ),
    )

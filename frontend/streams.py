"""The frontend's streams: who waits for which bytes, where each stream is, and what to tell engine
and workers. What is to be sent goes to the handed-in pool and engine; only a stream's reader waits.

Every stream that is opened here is closed here, exactly once, and its worker and the engine are
told. In between it may move: when its worker is lost or drained, it is opened on another one,
which is told how far its client has come, and the engine says its tokens again. Streams arrive at
a worker one after another, so that of moved streams only the one that was just arriving can have
killed a worker. If it has been on another one that was lost, it is not moved again.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from ipc.messages import (
    Abort,
    Cancel,
    Constraint,
    Ending,
    Fail,
    FailCode,
    GenerationRequest,
    Open,
    Output,
    Reassign,
    Released,
    Resume,
    Sampling,
    Terminal,
)
from postproc_workers.encoders import Failure, server_error
from postproc_workers.post_processor import frontend_failure, make_encoder
from postproc_workers.record import make_record

MAX_BUFFERED_BYTES = 16 * 1024 * 1024
"""A client that lags so far behind its stream is given up."""
PATIENCE_SECONDS = 30.0
"""How long a stream waits for a worker, or for an engine, in place of a lost one."""
POISON = "processing this response has ended two workers"


class Workers(Protocol):
    """What streams need of a pool."""

    load: dict[int, int]

    @property
    def up(self) -> list[int]: ...
    def send(self, worker: int, message: Open | Fail | Abort) -> None: ...


class Engine(Protocol):
    """What streams need of an engine."""

    @property
    def up(self) -> bool: ...
    def send(self, message: GenerationRequest | Cancel | Reassign) -> None: ...


class NoWorkerError(Exception):
    """Every post-processing worker is gone."""


class NoEngineError(Exception):
    """The engine is gone."""


class TooManyStreamsError(Exception):
    """As many streams are live as are allowed at once."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated; `opening`'s stream id and lease are filled in by `Streams`."""

    prompt: list[int]
    sampling: Sampling
    make_open: Callable[[int, int], Open]
    priority: int = 0
    cache_salt: str = ""
    constraint: Constraint | None = None


class StreamHandle:
    """One client's stream: bytes to send come out of `take` in order, then the `terminal`.

    `overflowed` is set when the client lags too far behind. `close` must be called. `worker` is
    None, and `waits_since` set, while the stream is between two workers; `lost_workers` counts
    those that were lost while it was on them; `asked` is False when its engine was lost before the
    client had anything of its answer; `failure` is what its worker was told to end it with.
    `changed` is set with all that comes.
    """

    def __init__(
        self,
        generation: Generation,
        opening: Open,
        opened_at: float,
        close: Callable[["StreamHandle"], None],
    ) -> None:
        self.generation = generation
        self.opening = opening
        self.opened_at = opened_at
        self.worker: int | None = None
        self.waits_since: float | None = None
        self.lost_workers = 0
        self.asked = False
        self.failure: Failure | None = None
        self.terminal: Terminal | None = None
        self.overflowed = asyncio.Event()
        self.closed = False
        self.begun = False
        self.tokens = 0
        self.next_sequence = 0
        self._close = close
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self.changed = asyncio.Event()

    @property
    def name(self) -> str:
        """What the log calls it."""
        return str(self.opening.stream_id)

    async def wait(self) -> None:
        """Wait until there is something to take, or nothing more will come."""
        while not self._pieces and self.terminal is None:
            self.changed.clear()
            await self.changed.wait()

    def deliver(self, output: Output) -> None:
        """Take one output of the worker; nothing after the terminal one, or after closing."""
        if self.closed or self.terminal is not None:
            return
        self.begun = True
        self.tokens, self.next_sequence = output.tokens, output.next_sequence
        self.terminal = output.terminal
        if output.body:
            self._pieces.append(output.body)
            self._buffered += len(output.body)
            if self._buffered > MAX_BUFFERED_BYTES:
                self.overflowed.set()
        self.changed.set()

    def take(self) -> bytes:
        """All bytes that have come since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        return taken

    @property
    def has_bytes(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._pieces)

    def fail(self, failure: Failure, now: int) -> None:
        """End the stream here, because its worker cannot."""
        encoder = make_encoder(self.opening)
        encoder.next_sequence = self.next_sequence
        encoder.fail(failure, now)
        opening = self.opening
        record = b""
        if opening.keep:
            record = make_record(opening, [], Ending(now, failure=(*failure,)))
        self.deliver(
            Output(
                opening.stream_id,
                opening.lease,
                self.tokens,
                encoder.next_sequence,
                b"".join(encoder.pieces),
                Terminal("error", failure.status, 0, record=record),
            )
        )

    def close(self) -> None:
        """Release whatever is still held for this stream anywhere; idempotent."""
        if not self.closed:
            self.closed = True
            self._pieces.clear()
            self._close(self)


class Streams:
    """All live streams of one frontend; it mints their ids and leases.

    A stream may take `max_seconds`, or as long as it likes. `clock` gives unix seconds.
    """

    def __init__(
        self,
        pool: Workers,
        engine: Engine,
        max_streams: int,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ended: Counter[str] = Counter()
        self.moved = 0
        self.stale_outputs = 0
        self.none_live = asyncio.Event()
        self.none_live.set()
        self._pool = pool
        self._engine = engine
        self._max_streams = max_streams
        self._max_seconds = max_seconds
        self._clock = clock
        self._live: dict[int, StreamHandle] = {}
        self._homeless: deque[StreamHandle] = deque()
        self._arriving: dict[int, StreamHandle] = {}
        self._leases = count(1)

    @property
    def live(self) -> int:
        return len(self._live)

    def open(self, generation: Generation) -> StreamHandle:
        """Open a stream on the least loaded worker and start its generation.

        Raises NoWorkerError, NoEngineError or TooManyStreamsError; then nothing was opened.
        """
        if len(self._live) >= self._max_streams:
            raise TooManyStreamsError(f"{self._max_streams} streams are live")
        worker = min(self._pool.up, key=self._pool.load.__getitem__, default=None)
        if worker is None:
            raise NoWorkerError("no post-processing worker is up")
        if not self._engine.up:
            raise NoEngineError("the engine is gone")
        stream_id = lease = next(self._leases)
        opening = generation.make_open(stream_id, lease)
        handle = StreamHandle(generation, opening, self._clock(), self._closed)
        self._live[stream_id] = handle
        self.none_live.clear()
        self._settle(handle, worker)
        return handle

    def worker_output(self, worker: int, output: Output) -> None:
        """Hand an output to its stream; one for a stream that is gone or moved is dropped."""
        handle = self._find(worker, output.stream_id, output.lease)
        if handle is None:
            return
        terminal = output.terminal
        if terminal is not None and terminal.message and handle.begun:
            # Its new worker could not even make its state; its client waits for an end.
            self._fail_here(handle, server_error(terminal.message))
        else:
            handle.deliver(output)
        if output.resumed or terminal is not None:
            self._arrived(handle)

    def worker_released(self, worker: int, released: Released) -> None:
        """A worker does not hold a stream, or no longer: its client is told."""
        handle = self._find(worker, released.stream_id, released.lease)
        if handle is not None:
            reason = f"the stream's state was released: {released.reason}"
            self._fail_here(handle, server_error(reason))

    def worker_up(self, worker: int) -> None:
        """A worker has come that can take streams."""
        self._settle_homeless()

    def worker_lost(self, worker: int, reason: str) -> None:
        """Move the streams of a worker that is gone; but not again one that has killed two."""
        suspect = self._arriving.pop(worker, None)
        for handle in self._on(worker):
            self._leave(handle)
            if handle is suspect and handle.lost_workers:
                self._fail_here(handle, server_error(POISON))
            handle.lost_workers += 1
        self._settle_homeless()

    def worker_drained(self, worker: int) -> None:
        """Move the streams of a worker that is to take no more and is not `up` any longer."""
        self._arriving.pop(worker, None)
        for handle in self._on(worker):
            self._withdraw(handle)
        self._settle_homeless()

    def engine_up(self) -> None:
        """An engine has come, which knows no stream."""
        self._settle_homeless()

    def engine_lost(self, reason: str) -> None:
        """End the streams that had begun; the others begin anew with a new engine."""
        self._arriving.clear()
        for handle in list(self._live.values()):
            if handle.tokens and handle.opening.streaming:
                self._fail(handle, "server_error", f"the engine was lost: {reason}")
            elif handle.terminal is None:
                # Its worker may have read tokens that come no more, as others may in their place.
                handle.asked = False
                handle.tokens = 0
                if handle.worker is not None:
                    self._withdraw(handle)

    def cancel(self, handle: StreamHandle) -> None:
        """End a stream because somebody asked for that; what it has said so far is kept."""
        self._fail(handle, "cancelled", "the response was cancelled")

    def fail_all(self, code: FailCode, message: str) -> None:
        """End all streams that have not ended, with an error."""
        for handle in list(self._live.values()):
            self._fail(handle, code, message)

    def tick(self) -> None:
        """To be called about every second: give up what has waited too long."""
        now = self._clock()
        most = self._max_seconds
        for handle in list(self._live.values()):
            if most is not None and now - handle.opened_at > most:
                self._fail(handle, "server_error", f"the request took longer than {most:g} seconds")
            elif handle.waits_since is not None and now - handle.waits_since > PATIENCE_SECONDS:
                self._fail(handle, "server_error", "no worker or engine came to go on with it")

    def _settle(self, handle: StreamHandle, worker: int) -> None:
        """Open a stream on a worker, and have the engine send its tokens there."""
        handle.worker, handle.waits_since = worker, None
        self._pool.load[worker] += 1
        opening, generation = handle.opening, handle.generation
        self._pool.send(worker, opening)
        if handle.asked:
            self._engine.send(Reassign(opening.stream_id, worker, opening.lease))
            return
        handle.asked = True
        self._engine.send(
            GenerationRequest(
                opening.stream_id,
                opening.lease,
                worker,
                generation.prompt,
                generation.sampling,
                opening.tenant,
                generation.priority,
                generation.cache_salt,
                generation.constraint,
            )
        )

    def _withdraw(self, handle: StreamHandle) -> None:
        """Take a stream off a worker that lives."""
        assert handle.worker is not None
        if handle.terminal is None:
            place = (handle.opening.stream_id, handle.opening.lease)
            self._pool.send(handle.worker, Abort(*place, moved=True))
        self._leave(handle)

    def _leave(self, handle: StreamHandle) -> None:
        """Take a stream off its worker; unless it has ended, it is to be settled on another."""
        assert handle.worker is not None
        self._pool.load[handle.worker] -= 1
        handle.worker = None
        if handle.failure is not None:
            self._fail_here(handle, handle.failure)
        elif handle.terminal is None:
            handle.waits_since = self._clock()
            self._homeless.append(handle)

    def _settle_homeless(self) -> None:
        """Open streams again; those that are replayed one at a time on each worker."""
        while self._homeless and self._engine.up:
            handle = self._homeless[0]
            workers = [w for w in self._pool.up if not (handle.asked and w in self._arriving)]
            if not workers:
                return
            self._homeless.popleft()
            if handle.terminal is None and not handle.closed:
                self._reopen(handle, min(workers, key=self._pool.load.__getitem__))

    def _reopen(self, handle: StreamHandle, worker: int) -> None:
        self.moved += 1
        handle.opening = replace(
            handle.opening,
            lease=next(self._leases),
            resume=Resume(handle.tokens, handle.next_sequence, handle.begun),
        )
        if handle.asked:
            self._arriving[worker] = handle
        self._settle(handle, worker)

    def _arrived(self, handle: StreamHandle) -> None:
        """A moved stream has caught up, or has ended: the next one can come."""
        if handle.worker is not None and self._arriving.get(handle.worker) is handle:
            del self._arriving[handle.worker]
            self._settle_homeless()

    def _on(self, worker: int) -> list[StreamHandle]:
        return [handle for handle in self._live.values() if handle.worker == worker]

    def _find(self, worker: int, stream_id: int, lease: int) -> StreamHandle | None:
        handle = self._live.get(stream_id)
        if handle is None or handle.opening.lease != lease or handle.worker != worker:
            self.stale_outputs += 1
            return None
        return handle

    def _fail(self, handle: StreamHandle, code: FailCode, message: str) -> None:
        """Have its worker end a stream with an error, or end it here if it has none."""
        if handle.terminal is not None or handle.failure is not None:
            return
        fail = Fail(handle.opening.stream_id, handle.opening.lease, code, message)
        handle.waits_since = None
        handle.failure = frontend_failure(fail)
        if handle.worker is None:
            self._fail_here(handle, handle.failure)
        else:
            self._pool.send(handle.worker, fail)

    def _fail_here(self, handle: StreamHandle, failure: Failure) -> None:
        handle.fail(failure, int(self._clock()))

    def _closed(self, handle: StreamHandle) -> None:
        opening, terminal = handle.opening, handle.terminal
        del self._live[opening.stream_id]
        if not self._live:
            self.none_live.set()
        self._arrived(handle)
        if handle.worker is not None:
            self._pool.load[handle.worker] -= 1
            if terminal is None:
                self._pool.send(handle.worker, Abort(opening.stream_id, opening.lease))
        self._engine.send(Cancel(opening.stream_id, opening.lease))
        self.ended["abort" if terminal is None else terminal.reason] += 1

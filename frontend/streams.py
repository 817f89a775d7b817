"""The frontend's streams: who waits for which bytes, and what to tell engine and worker when one
ends. What is to be sent goes to the handed-in pool and engine; only a stream's reader waits.

Every stream that is opened here is closed here, exactly once; its worker and the engine are told
unless they ended it themselves.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ipc.messages import (
    Abort,
    Cancel,
    Fail,
    GenerationRequest,
    Open,
    Output,
    Released,
    Sampling,
    Terminal,
)
from postproc_workers.encoders import Failure
from postproc_workers.post_processor import make_encoder

MAX_BUFFERED_BYTES = 16 * 1024 * 1024
"""A client that lags so far behind its stream is given up."""


class Workers(Protocol):
    """What streams need of a pool."""

    load: list[int]

    def least_loaded(self) -> int | None: ...
    def send(self, worker: int, message: Open | Fail | Abort) -> None: ...


class Engine(Protocol):
    """What streams need of an engine."""

    def send(self, message: GenerationRequest | Cancel) -> None: ...


class NoWorkerError(Exception):
    """Every post-processing worker is gone."""


class TooManyStreamsError(Exception):
    """As many streams are live as are allowed at once."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated; `opening`'s stream id and lease are filled in by `Streams`."""

    prompt: list[int]
    sampling: Sampling
    make_open: Callable[[int, int], Open]


class StreamHandle:
    """One client's stream: bytes to send come out of `take` in order, then the `terminal`.

    `overflowed` is set when the client lags too far behind. `close` must be called.
    """

    def __init__(self, opening: Open, worker: int, close: Callable[["StreamHandle"], None]) -> None:
        self.opening = opening
        self.worker = worker
        self.terminal: Terminal | None = None
        self.overflowed = asyncio.Event()
        self.closed = False
        self.next_sequence = 0
        self._close = close
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is something to take, or nothing more will come."""
        while not self._pieces and self.terminal is None:
            self._changed.clear()
            await self._changed.wait()

    def deliver(self, output: Output) -> None:
        """Take one output of the worker; nothing after the terminal one, or after closing."""
        if self.closed or self.terminal is not None:
            return
        self.next_sequence = output.next_sequence
        self.terminal = output.terminal
        if output.body:
            self._pieces.append(output.body)
            self._buffered += len(output.body)
            if self._buffered > MAX_BUFFERED_BYTES:
                self.overflowed.set()
        self._changed.set()

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
        self.deliver(
            Output(
                opening.stream_id,
                opening.lease,
                0,
                encoder.next_sequence,
                b"".join(encoder.pieces),
                Terminal("error", failure.status, 0),
            )
        )

    def close(self) -> None:
        """Release whatever is still held for this stream anywhere; idempotent."""
        if not self.closed:
            self.closed = True
            self._pieces.clear()
            self._close(self)


class Streams:
    """All live streams of one frontend; it mints their ids and leases."""

    def __init__(
        self,
        pool: Workers,
        engine: Engine,
        max_streams: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ended: Counter[str] = Counter()
        self.stale_outputs = 0
        self.none_live = asyncio.Event()
        self.none_live.set()
        self._pool = pool
        self._engine = engine
        self._max_streams = max_streams
        self._clock = clock
        self._live: dict[int, StreamHandle] = {}
        self._minted = 0

    @property
    def live(self) -> int:
        return len(self._live)

    def open(self, generation: Generation) -> StreamHandle:
        """Open a stream on the least loaded worker and start its generation.

        Raises NoWorkerError or TooManyStreamsError; then nothing was opened.
        """
        if len(self._live) >= self._max_streams:
            raise TooManyStreamsError(f"{self._max_streams} streams are live")
        worker = self._pool.least_loaded()
        if worker is None:
            raise NoWorkerError("no post-processing worker is up")
        self._minted += 1
        stream_id = lease = self._minted
        opening = generation.make_open(stream_id, lease)
        handle = StreamHandle(opening, worker, self._closed)
        self._live[stream_id] = handle
        self.none_live.clear()
        self._pool.load[worker] += 1
        self._pool.send(worker, opening)
        self._engine.send(
            GenerationRequest(
                stream_id, lease, worker, generation.prompt, generation.sampling, opening.tenant
            )
        )
        return handle

    def worker_output(self, worker: int, output: Output) -> None:
        """Hand an output to its stream; one for a stream that is gone or moved is dropped."""
        handle = self._find(worker, output.stream_id, output.lease)
        if handle is not None:
            handle.deliver(output)

    def worker_released(self, worker: int, released: Released) -> None:
        """A worker does not hold a stream, or no longer: its client is told."""
        handle = self._find(worker, released.stream_id, released.lease)
        if handle is not None:
            self._fail_here(handle, f"the stream's state was released: {released.reason}")

    def worker_lost(self, worker: int, reason: str) -> None:
        """End the streams of a worker that is gone."""
        for handle in [h for h in self._live.values() if h.worker == worker]:
            self._fail_here(handle, f"the stream's post-processing worker was lost: {reason}")

    def engine_lost(self, reason: str) -> None:
        """Have the workers end all streams, as no token will come any more."""
        self.fail_all("server_error", f"the engine was lost: {reason}")

    def fail_all(self, code: Literal["server_error", "overloaded"], message: str) -> None:
        """Have the workers end all streams that have not ended, with an error."""
        for handle in self._live.values():
            if handle.terminal is None:
                opening = handle.opening
                fail = Fail(opening.stream_id, opening.lease, code, message)
                self._pool.send(handle.worker, fail)

    def _find(self, worker: int, stream_id: int, lease: int) -> StreamHandle | None:
        handle = self._live.get(stream_id)
        if handle is None or handle.opening.lease != lease or handle.worker != worker:
            self.stale_outputs += 1
            return None
        return handle

    def _fail_here(self, handle: StreamHandle, message: str) -> None:
        failure = Failure(500, "server_error", "server_error", message)
        handle.fail(failure, int(self._clock()))

    def _closed(self, handle: StreamHandle) -> None:
        opening, terminal = handle.opening, handle.terminal
        del self._live[opening.stream_id]
        if not self._live:
            self.none_live.set()
        self._pool.load[handle.worker] -= 1
        if terminal is None:
            self._pool.send(handle.worker, Abort(opening.stream_id, opening.lease))
        if terminal is None or terminal.reason == "error" or terminal.stopped_early:
            self._engine.send(Cancel(opening.stream_id, opening.lease))
        self.ended["abort" if terminal is None else terminal.reason] += 1

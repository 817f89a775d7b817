"""The worker process: a Listener in front of a Registry. It holds no decisions."""

import gc
import time
from collections.abc import Callable

import msgspec
import zmq

from ipc import codec, messages, security
from ipc.listener import Listener, Lost
from ipc.messages import FrontendToWorker, Goodbye, Owner, WorkerInfo, WorkerStatus
from postproc_workers.registry import Registry
from postproc_workers.tokens import token_table

IDLE_SECONDS = 3600.0
"""A stream that got no token for one to two of these spans is released as expired."""
_POLL_SECONDS = 0.2
_MESSAGES_A_TURN = 1_000
"""Messages handled before the worker looks up: is it to stop, can it send what had to wait?"""


class Worker:
    """Serves one registry at `address` until `stop` is called."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        info: WorkerInfo,
        *,
        key: security.CurveKey | None = None,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = Registry()
        self.listener: Listener[FrontendToWorker] = Listener(
            context, address, codec.frontend_to_worker, info, key=key
        )
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._next_sweep = clock() + idle_seconds
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped. The socket is closed at the end."""
        token_table()
        gc.freeze()
        try:
            while not self._stopping:
                self.listener.poll(_POLL_SECONDS)
                self.drain()
        finally:
            self.listener.close()

    def drain(self) -> None:
        """Handle what has come, up to a limit, and send what had to wait."""
        self.listener.flush()
        for _ in range(_MESSAGES_A_TURN):
            event = self.listener.receive()
            if event is None:
                break
            owner, message = event
            if isinstance(message, Lost):
                self.registry.owner_lost(owner)
                continue
            self._handle(owner, message)
        now = self._clock()
        if now >= self._next_sweep:
            self._next_sweep = now + self._idle_seconds
            for owner, released in self.registry.release_idle():
                self.listener.send(owner, [codec.encode(released)])

    def _handle(self, owner: Owner, message: FrontendToWorker) -> None:
        reply = self.registry.handle(owner, message, int(self._clock()))
        if isinstance(reply, WorkerStatus):
            reply = msgspec.structs.replace(
                reply,
                rejected=self.listener.rejections.count,
                not_owned=reply.not_owned + self.listener.not_owned,
            )
        if reply is not None:
            self.listener.send(owner, [codec.encode(reply)])
        if isinstance(message, Goodbye):
            self.listener.forget(owner)


def worker_info(worker: int, pid: int) -> WorkerInfo:
    """What a worker says of itself."""
    return WorkerInfo(messages.PROTOCOL_VERSION, worker, pid)

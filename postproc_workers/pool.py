"""The frontend's side of the workers: which are up, which is least loaded, and what they send.

`LinkedPool` talks to worker processes, `InlinePool` runs one registry in this process
(`--num-postprocess-workers 0`). Both are driven by the event loop and never wait.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import zmq

from ipc import codec, security
from ipc.link import RECONNECT_SECONDS, Link
from ipc.messages import (
    Abort,
    Fail,
    FrontendToWorker,
    Goodbye,
    Heartbeat,
    Open,
    Output,
    Outputs,
    Owner,
    Refused,
    Released,
    WorkerInfo,
    WorkerStatus,
)
from ipc.rejections import Rejections
from postproc_workers.registry import Registry

_logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""How long after a worker's loss it is told. Of workers that die together all are noticed by then,
so that no stream is moved from one to the next, and blamed for the end of each."""
UNANSWERED_HEARTBEATS = 10
"""After so many, about a second each, a worker counts as lost. ZeroMQ's own heartbeat does not find
out a hanging peer whose socket is full."""


class PoolEvents(Protocol):
    """What a pool tells the frontend's streams."""

    def worker_output(self, worker: int, output: Output) -> None: ...
    def worker_released(self, worker: int, released: Released) -> None: ...
    def worker_up(self, worker: int) -> None: ...
    def worker_lost(self, worker: int, reason: str) -> None: ...


class Pool(ABC):
    """Workers by number. `load` is the frontend's own count of the streams it has on each;
    `refused` says why a worker cannot be connected to for good, if one cannot."""

    def __init__(self) -> None:
        self.load: dict[int, int] = {}
        self.refused: str | None = None
        self.status: dict[int, WorkerStatus | None] = {}

    @property
    @abstractmethod
    def up(self) -> list[int]:
        """The workers that can take streams."""

    @abstractmethod
    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        """Send a message about one stream."""

    @abstractmethod
    def forward(self, worker: int, frame: bytes) -> None:
        """Pass an engine's step frame on, undecoded."""

    @abstractmethod
    async def refresh(self, timeout: float) -> None:
        """Bring `status` up to date, waiting at most `timeout` seconds."""

    @abstractmethod
    def heartbeat(self) -> None:
        """To be called about every second."""

    @abstractmethod
    def close(self) -> None:
        """Take leave of the workers."""


class InlinePool(Pool):
    """One registry in this process. Output comes with the next turn of the event loop."""

    def __init__(self, owner: Owner, events: PoolEvents) -> None:
        super().__init__()
        self.load[0], self.status[0] = 0, None
        self.registry = Registry()
        self.rejections = Rejections("inline worker")
        self._owner = owner
        self._events = events
        self._loop = asyncio.get_running_loop()
        self.registry.owner_arrived(owner)

    @property
    def up(self) -> list[int]:
        return [0]

    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        self._handle(message)

    def forward(self, worker: int, frame: bytes) -> None:
        try:
            self._handle(codec.frontend_to_worker(frame))
        except codec.MalformedMessage as error:
            self.rejections.add(error)

    async def refresh(self, timeout: float) -> None:
        self.status[0] = self.registry.statistics()

    def heartbeat(self) -> None:
        self.status[0] = self.registry.statistics()

    def close(self) -> None:
        self.registry.owner_lost(self._owner)

    def _handle(self, message: FrontendToWorker) -> None:
        reply = self.registry.handle(self._owner, message, int(time.time()))
        if isinstance(reply, Outputs):
            self._loop.call_soon(self._deliver, reply)

    def _deliver(self, outputs: Outputs) -> None:
        for output in outputs.outputs:
            self._events.worker_output(0, output)


@dataclass(slots=True)
class _Connection:
    """One worker's link; `answered` is set while it has answered our Hello."""

    address: str
    link: Link | None = None
    retired: bool = False
    unanswered: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    refreshed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def up(self) -> bool:
        return self.answered.is_set() and not self.retired

    def leave(self) -> None:
        if self.link is not None:
            self.link.send((codec.encode(Goodbye()),))
            self.link.close(linger=1.0)
            self.link = None
        self.answered.clear()


class LinkedPool(Pool):
    """Worker processes at `addresses`, by number; lost ones are connected to again.

    Workers can be added and removed at any time.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        addresses: Mapping[int, str],
        owner: Owner,
        events: PoolEvents,
        *,
        key: security.CurveKey | None = None,
    ) -> None:
        super().__init__()
        self.rejections = Rejections("workers")
        self._context = context
        self._owner = owner
        self._events = events
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, _Connection] = {}
        for worker, address in addresses.items():
            self.add(worker, address)

    @property
    def up(self) -> list[int]:
        return [number for number, c in self._connections.items() if c.up]

    def add(self, worker: int, address: str) -> None:
        """Connect to one more worker."""
        self.load[worker], self.status[worker] = 0, None
        connection = self._connections[worker] = _Connection(address)
        self._connect(worker, connection)

    def retire(self, worker: int) -> None:
        """Give a worker no more streams, though it is still there for those that it has."""
        self._connections[worker].retired = True

    def remove(self, worker: int) -> None:
        """Take leave of a worker that has no streams."""
        connection = self._connections.pop(worker)
        del self.load[worker], self.status[worker]
        connection.leave()

    async def wait_until_up(self, worker: int, timeout: float) -> bool:
        """Whether a worker answers within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._connections[worker].answered.wait()
        except TimeoutError:
            return False
        return True

    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        self.forward(worker, codec.encode(message))

    def forward(self, worker: int, frame: bytes) -> None:
        connection = self._connections.get(worker)
        if connection is None:
            self.rejections.add(f"a message for worker {worker}, which there is not")
        elif connection.link is not None:
            connection.link.send((frame,))

    async def refresh(self, timeout: float) -> None:
        waiting = [self._connections[worker].refreshed for worker in self.up]
        for event in waiting:
            event.clear()
        self._ask()
        try:
            async with asyncio.timeout(timeout):
                for event in waiting:
                    await event.wait()
        except TimeoutError:
            _logger.warning("a worker did not tell its status within %.1f s", timeout)

    def heartbeat(self) -> None:
        for worker in self.up:
            connection = self._connections[worker]
            if connection.unanswered >= UNANSWERED_HEARTBEATS:
                self._drop(worker, "it does not answer")
            connection.unanswered += 1
        self._ask()

    def _ask(self) -> None:
        for worker in self.up:
            self.forward(worker, codec.encode(Heartbeat()))

    def close(self) -> None:
        for worker in list(self._connections):
            self.remove(worker)

    def _connect(self, worker: int, connection: _Connection) -> None:
        """Connect, unless this worker has been removed since, though one of its number be there."""
        if self._connections.get(worker) is not connection:
            return
        try:
            connection.link = Link(
                self._context,
                connection.address,
                self._owner,
                lambda parts: self._receive(worker, parts[-1]),
                lambda reason: self._lost(worker, reason),
                key=self._key,
            )
        except security.SecurityError as error:
            self.refused = str(error)

    def _receive(self, worker: int, frame: bytes) -> None:
        try:
            message = codec.worker_to_frontend(frame)
        except codec.MalformedMessage as error:
            self.rejections.add(error)
            return
        match message:
            case Outputs():
                for output in message.outputs:
                    self._events.worker_output(worker, output)
            case Released():
                self._events.worker_released(worker, message)
            case WorkerStatus():
                self.status[worker] = message
                self._connections[worker].unanswered = 0
                self._connections[worker].refreshed.set()
            case WorkerInfo():
                self._connections[worker].answered.set()
                self._connections[worker].unanswered = 0
                self._events.worker_up(worker)
            case Refused():
                if message.permanent:
                    self.refused = message.reason
                self._drop(worker, f"it refuses this frontend: {message.reason}")

    def _drop(self, worker: int, reason: str) -> None:
        link = self._connections[worker].link
        if link is not None:
            link.close()
            self._lost(worker, reason)

    def _lost(self, worker: int, reason: str) -> None:
        connection = self._connections[worker]
        was_up = connection.answered.is_set()
        connection.link = None
        connection.answered.clear()
        connection.refreshed.set()
        self.status[worker] = None
        if was_up:
            _logger.warning("worker %d is lost: %s", worker, reason)
            self._loop.call_later(GATHER_SECONDS, self._tell_lost, worker, connection, reason)
        else:
            self._loop.call_later(RECONNECT_SECONDS, self._connect, worker, connection)

    def _tell_lost(self, worker: int, connection: _Connection, reason: str) -> None:
        if self._connections.get(worker) is connection:
            self._events.worker_lost(worker, reason)
            self._loop.call_later(RECONNECT_SECONDS, self._connect, worker, connection)

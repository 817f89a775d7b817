"""One frontend's links and streams, from start to stop. Holds what the routes work with."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from frontend.engine_client import EngineClient
from frontend.errors import OverloadedError
from frontend.keys import KeyRing
from frontend.prompt import PromptRenderer
from frontend.resizing import SHUTTING_DOWN, Resizer
from frontend.settings import FrontendSettings
from frontend.state.responses import ResponseState
from frontend.store import Store
from frontend.streams import Streams
from ipc.messages import EngineInfo, Output, Owner, Released
from ipc.security import CurveKey
from postproc_workers.pool import InlinePool, LinkedPool, Pool
from postproc_workers.sealing import make_key

_logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
FAREWELL_SECONDS = 2.0
"""How long the last clients get to read that the server is shutting down."""


class Service:
    """Made inside the running event loop; `stop` takes leave of engine and workers.

    `refused` is called with the reason if engine or worker do not fit this frontend.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        renderer: PromptRenderer,
        refused: Callable[[str], None],
        *,
        keys: KeyRing | None = None,
        admin_keys: KeyRing | None = None,
        curve_key: CurveKey | None = None,
        store: Store | None = None,
        seal_key: bytes | None = None,
    ) -> None:
        self.settings = settings
        self.renderer = renderer
        self.keys = keys
        self.admin_keys = admin_keys
        self.draining = False
        self._refused = refused
        owner = Owner(0, time.time_ns())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.pool: Pool = (
            LinkedPool(self._context, settings.workers, owner, self, key=curve_key)
            if settings.workers
            else InlinePool(owner, self)
        )
        self.engine = EngineClient(self._context, settings.engine, owner, self, key=curve_key)
        self.streams = Streams(
            self.pool, self.engine, settings.max_streams, settings.max_stream_seconds
        )
        self.responses = ResponseState(store, self.streams, seal_key or make_key())
        self.resizer: Resizer | None = None
        if isinstance(self.pool, LinkedPool) and settings.control is not None:
            self.resizer = Resizer(self.pool, self.streams, Path(settings.control))
        self._heart = asyncio.get_running_loop().create_task(self._beat())

    async def start(self) -> None:
        """Find the workers that there are by now. Raises ControlError."""
        if self.resizer is not None:
            await self.resizer.adopt()

    @property
    def ready(self) -> bool:
        """Whether a request can be served: the engine and a worker are there."""
        return self.engine.info is not None and bool(self.pool.up) and not self.draining

    @property
    def health(self) -> str:
        """`ok`, or why requests are not served or not in time."""
        if self.draining:
            return "stopping"
        if self.engine.state != "up":
            return f"engine {self.engine.state}"
        return "ok" if self.pool.up else "no workers"

    @property
    def model(self) -> EngineInfo:
        """The model that is served. Raises OverloadedError while the server is not ready."""
        if self.engine.info is None or not self.ready:
            raise OverloadedError("The server is starting, stopping or has lost its engine.")
        return self.engine.info

    async def refresh(self, timeout: float) -> None:
        """Bring the status of workers and engine up to date, in at most `timeout` seconds."""
        await asyncio.gather(self.pool.refresh(timeout), self.engine.refresh(timeout))

    async def drain(self) -> None:
        """Take no more requests, and let the running ones end, the last of them by an error."""
        self.draining = True
        if self.resizer is not None:
            self.resizer.stop()
        if not await _within(self.settings.drain_seconds, self.streams.none_live):
            self.streams.fail_all("overloaded", SHUTTING_DOWN)
            await _within(FAREWELL_SECONDS, self.streams.none_live)

    async def stop(self) -> None:
        """Leave; what is still live is released."""
        self.draining = True
        self._heart.cancel()
        await self.responses.close()
        self.pool.close()
        self.engine.close()
        self._context.term()

    def engine_step(self, worker: int, frame: bytes) -> None:
        self.pool.forward(worker, frame)

    def engine_up(self) -> None:
        self.streams.engine_up()

    def engine_lost(self, reason: str) -> None:
        self.streams.engine_lost(reason)

    def worker_output(self, worker: int, output: Output) -> None:
        self.streams.worker_output(worker, output)

    def worker_released(self, worker: int, released: Released) -> None:
        self.streams.worker_released(worker, released)

    def worker_up(self, worker: int) -> None:
        self.streams.worker_up(worker)

    def worker_lost(self, worker: int, reason: str) -> None:
        self.streams.worker_lost(worker, reason)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self.pool.heartbeat()
            self.engine.heartbeat()
            self.streams.tick()
            self.responses.tick()
            reason = self.engine.refused or self.pool.refused
            if reason is not None:
                self._refused(reason)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether the event comes in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True

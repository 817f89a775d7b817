"""The frontend's side of the engine: requests out, step frames straight on to the workers."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal, Protocol

import zmq

from ipc import codec, security
from ipc.link import RECONNECT_SECONDS, Link
from ipc.messages import (
    Cancel,
    EngineInfo,
    EngineStatus,
    GenerationRequest,
    Goodbye,
    Heartbeat,
    Owner,
    Reassign,
    Refused,
)
from ipc.rejections import Rejections

_logger = logging.getLogger(__name__)

UNRESPONSIVE_SECONDS = 10.0
"""How long a heartbeat may go unanswered; an engine answers between two steps."""

EngineState = Literal["loading", "up", "unresponsive", "lost"]


class EngineEvents(Protocol):
    """What the engine's client tells the frontend."""

    def engine_step(self, worker: int, frame: bytes) -> None: ...
    def engine_up(self) -> None: ...
    def engine_lost(self, reason: str) -> None: ...


class EngineClient:
    """One engine at `address`; connected to again when it is lost. `info` is None until it has
    answered, and while it is gone."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        owner: Owner,
        events: EngineEvents,
        *,
        key: security.CurveKey | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info: EngineInfo | None = None
        self.status: EngineStatus | None = None
        self.refused: str | None = None
        self.rejections = Rejections("engine")
        self._context = context
        self._address = address
        self._owner = owner
        self._events = events
        self._key = key
        self._clock = clock
        self._unanswered: float | None = None
        self._ever_up = False
        self._loop = asyncio.get_running_loop()
        self._refreshed = asyncio.Event()
        self._link: Link | None = None
        self._closed = False
        self._connect()

    def send(self, message: GenerationRequest | Cancel | Reassign | Heartbeat) -> None:
        """Send a message; while the engine is gone, to nobody."""
        if self._link is not None:
            self._link.send((codec.encode(message),))

    @property
    def up(self) -> bool:
        """Whether the engine has answered, and is not gone since."""
        return self.info is not None

    @property
    def state(self) -> EngineState:
        """For the operator: `loading` until it has answered for the first time."""
        if self.info is None:
            return "lost" if self._ever_up else "loading"
        asked = self._unanswered
        waited = 0.0 if asked is None else self._clock() - asked
        return "unresponsive" if waited > UNRESPONSIVE_SECONDS else "up"

    def heartbeat(self) -> None:
        """To be called about every second."""
        if self._unanswered is None and self.info is not None:
            self._unanswered = self._clock()
        self.send(Heartbeat())

    async def refresh(self, timeout: float) -> None:
        """Bring `status` up to date, waiting at most `timeout` seconds."""
        if self.info is None:
            return
        self._refreshed.clear()
        self.send(Heartbeat())
        try:
            async with asyncio.timeout(timeout):
                await self._refreshed.wait()
        except TimeoutError:
            _logger.info("the engine did not tell its status within %.1f s", timeout)

    def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.send((codec.encode(Goodbye()),))
            self._link.close(linger=1.0)
            self._link = None

    def _connect(self) -> None:
        if self._closed:
            return
        try:
            self._link = Link(
                self._context, self._address, self._owner, self._receive, self._lost, key=self._key
            )
        except security.SecurityError as error:
            self.refused = str(error)

    def _receive(self, parts: list[bytes]) -> None:
        self._unanswered = None
        route, payload = parts[0], parts[-1]
        if route.isdigit():
            self._events.engine_step(int(route), payload)
            return
        try:
            message = codec.engine_to_frontend(payload)
        except codec.MalformedMessage as error:
            self.rejections.add(error)
            return
        match message:
            case EngineStatus():
                self.status = message
                self._refreshed.set()
            case EngineInfo():
                self.info, self._ever_up = message, True
                self._events.engine_up()
            case Refused():
                if message.permanent:
                    self.refused = message.reason
                if self._link is not None:
                    self._link.close()
                    self._lost(f"it refuses this frontend: {message.reason}")

    def _lost(self, reason: str) -> None:
        was_up = self.info is not None
        self._link, self.info, self.status = None, None, None
        self._unanswered = None
        self._refreshed.set()
        self._loop.call_later(RECONNECT_SECONDS, self._connect)
        if was_up:
            _logger.warning("the engine is lost: %s", reason)
            self._events.engine_lost(reason)

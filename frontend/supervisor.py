"""The parent process: starts engine, workers and frontend, starts again what dies, and ends them.

Children run in sessions of their own, so that Ctrl-C reaches only the supervisor, and hold the
other end of a pipe, so that they end when it is gone, however it went.
"""

import asyncio
import logging
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from frontend.control import (
    Refusal,
    Reply,
    Request,
    StartWorker,
    StopWorker,
    Workers,
    serve_control,
)
from frontend.settings import (
    FrontendSettings,
)
from ipc.process import EXIT_CONFIGURATION, EXIT_USAGE, WATCH_PARENT
from ipc.security import CurveKey, SecurityError, make_run_directory

_logger = logging.getLogger(__name__)

FIRST_RESTART_SECONDS = 0.2
LONGEST_RESTART_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A process that lived so long is started again without delay, as if for the first time."""
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """One run: what to serve and with how many processes. `engine_arguments` follow
    `python -m`, and `--listen ADDRESS` is added to them."""

    engine_arguments: tuple[str, ...]
    frontend: FrontendSettings
    """But for the addresses, which are made here."""
    workers: int = 1
    tcp: bool = False


class StartError(Exception):
    """The run cannot be: a process said that it will not come up however often it is started."""


class Child:
    """One process that is kept alive: started again, later and later, whenever it ends."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.starts = 0
        self.process: asyncio.subprocess.Process | None = None
        self._arguments = [sys.executable, "-m", *arguments, WATCH_PARENT]
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Run until stopped. Raises StartError if the process gives up on its configuration."""
        delay = FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            status = await self._run()
            if self._stopping.is_set():
                return
            if status in (EXIT_CONFIGURATION, EXIT_USAGE):
                raise StartError(f"{self.name} cannot start; its message is above")
            if time.monotonic() - started > STEADY_SECONDS:
                delay = FIRST_RESTART_SECONDS
            _logger.error("%s ended with status %d; starting it again", self.name, status)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            delay = min(2 * delay, LONGEST_RESTART_SECONDS)

    async def stop(self, patience: float = STOP_SECONDS) -> None:
        """End it: by SIGTERM, and after `patience` seconds by SIGKILL."""
        self._stopping.set()
        if self.process is None or self.process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(patience):
                await self.process.wait()
        except TimeoutError:
            _logger.warning("%s does not end; killing it", self.name)
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        self._stopping.set()
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def ended(self) -> None:
        """Wait until it has ended; at once if it was never started."""
        if self.process is not None:
            await self.process.wait()

    async def _run(self) -> int:
        self.process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self.starts += 1
        _logger.info("%s is process %d", self.name, self.process.pid)
        if self._stopping.is_set():
            # Told to stop while it was being started, when there was nothing to end yet.
            self.kill()
        return await self.process.wait()


class Supervisor:
    """All processes of one run. Raises StartError if there is no place for their sockets."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        try:
            self._directory = make_run_directory()
        except SecurityError as error:
            raise StartError(str(error)) from error
        self._signals = 0
        self._stop_asked = asyncio.Event()
        key = self._make_key() if settings.tcp else None
        self._common = ["--curve-key", str(key)] if key else []
        self._common += ["--log-level", settings.frontend.log_level]
        self._group: asyncio.TaskGroup | None = None
        self.workers: dict[int, Child] = {}
        self._addresses: dict[int, str] = {}
        engine = self._address("engine")
        for number in range(settings.workers):
            self._add_worker(number)
        frontend = msgspec.structs.replace(
            settings.frontend,
            engine=engine,
            workers=self._addresses,
            control=str(self._control) if settings.workers else None,
            curve_key=str(key) if key else None,
        )
        told = msgspec.json.encode(frontend).decode()
        arguments = [*settings.engine_arguments, "--listen", engine, *self._common]
        self.engine = Child("engine", arguments)
        self.frontend = Child("frontend", ["frontend.server", "--settings", told])

    @property
    def children(self) -> list[Child]:
        """In the order of their end: first whoever sends work to the others."""
        return [self.frontend, self.engine, *self.workers.values()]

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; the second of them kills at once. Raises StartError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            async with (
                await serve_control(self._control, self._carry_out),
                asyncio.TaskGroup() as self._group,
            ):
                for child in self.children:
                    self._group.create_task(child.keep())
                self._group.create_task(self._stop_when_asked())
        except* StartError as failed:
            raise StartError(str(failed.exceptions[0])) from failed
        finally:
            for child in self.children:
                child.kill()
            await asyncio.gather(*(child.ended() for child in self.children))
            shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stop_asked.set()

    async def _stop_when_asked(self) -> None:
        await self._stop_asked.wait()
        await self.frontend.stop(patience=self._settings.frontend.drain_seconds + STOP_SECONDS)
        await asyncio.gather(*(child.stop() for child in self.children))

    async def _carry_out(self, request: Request) -> Reply:
        """What the frontend asks for: workers, started and ended while serving."""
        if self._stop_asked.is_set():
            return Refusal("the server is stopping")
        match request:
            case StartWorker():
                number = next(n for n in count() if n not in self.workers)
                self._add_worker(number)
                assert self._group is not None
                self._group.create_task(self.workers[number].keep())
            case StopWorker(number):
                if number not in self._addresses:
                    return Refusal(f"there is no worker {number}")
                del self._addresses[number]
                await self.workers[number].stop()
                # Only now can its number, and with it its address, be another's.
                del self.workers[number]
        return Workers(self._addresses)

    def _add_worker(self, number: int) -> None:
        address = self._addresses[number] = self._address(f"worker-{number}")
        place = ["--listen", address, "--worker", f"{number}"]
        arguments = ["postproc_workers", *place, *self._common]
        self.workers[number] = Child(f"worker {number}", arguments)

    @property
    def _control(self) -> Path:
        return self._directory / "control"

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self.stop()
        else:
            for child in self.children:
                child.kill()

    def _address(self, name: str) -> str:
        if self._settings.tcp:
            return f"tcp://127.0.0.1:{_free_port()}"
        return f"ipc://{self._directory / name}"

    def _make_key(self) -> Path:
        path = self._directory / "curve-key"
        CurveKey.generate().save(path)
        return path


def _free_port() -> int:
    """A port that nothing listens on now; whoever is started next is to bind it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

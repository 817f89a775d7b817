"""Changes the number of workers while serving: no stream is lost by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from frontend.control import ListWorkers, StartWorker, StopWorker, ask
from frontend.streams import Streams
from postproc_workers.pool import LinkedPool

START_SECONDS = 30.0
SHUTTING_DOWN = "the server is shutting down"


class ResizeError(Exception):
    """The pool cannot be changed so."""


class Resizer:
    """Has the supervisor start and end workers, and moves the streams of those that go.

    One change at a time. The methods raise ResizeError and ControlError.
    """

    def __init__(self, pool: LinkedPool, streams: Streams, control: Path) -> None:
        self._pool = pool
        self._streams = streams
        self._control = control
        self._changing = asyncio.Lock()
        self._stopping = False
        self._change: asyncio.Timeout | None = None

    def stop(self) -> None:
        """Give up the change that is being made, and make no more."""
        self._stopping = True
        if self._change is not None:
            self._change.reschedule(asyncio.get_running_loop().time())

    async def adopt(self) -> None:
        """Connect to the workers that there are: more or fewer than when the run was started."""
        async with self._one_change():
            self._follow(await ask(self._control, ListWorkers()))

    async def set_count(self, workers: int) -> None:
        """Start or drain as many workers as it takes."""
        if workers < 1:
            raise ResizeError("at least one worker is needed")
        async with self._one_change():
            while len(self._pool.load) < workers:
                await self._start()
            while len(self._pool.load) > workers:
                await self._drain(max(self._pool.load))

    async def drain(self, worker: int) -> None:
        """Move a worker's streams to the others, and end it."""
        async with self._one_change():
            await self._drain(worker)

    @asynccontextmanager
    async def _one_change(self) -> AsyncIterator[None]:
        async with self._changing:
            if self._stopping:
                raise ResizeError(SHUTTING_DOWN)
            try:
                async with asyncio.timeout(None) as self._change:
                    yield
            except TimeoutError as error:
                raise ResizeError(SHUTTING_DOWN) from error
            finally:
                self._change = None

    async def _start(self) -> None:
        for worker in self._follow(await ask(self._control, StartWorker())):
            if not await self._pool.wait_until_up(worker, START_SECONDS):
                raise ResizeError(f"worker {worker} did not come up in {START_SECONDS:.0f} s")

    async def _drain(self, worker: int) -> None:
        if worker not in self._pool.load:
            raise ResizeError(f"there is no worker {worker}")
        if not [other for other in self._pool.up if other != worker]:
            raise ResizeError("no other worker is up to take its streams")
        self._leave(worker)
        await ask(self._control, StopWorker(worker))

    def _follow(self, addresses: dict[int, str]) -> list[int]:
        """Have the workers that the supervisor has; returns those that are new here. There can be
        several: the supervisor has also those that it could not be asked to end."""
        for worker in self._pool.load.keys() - addresses.keys():
            self._leave(worker)
        new = sorted(addresses.keys() - self._pool.load.keys())
        for worker in new:
            self._pool.add(worker, addresses[worker])
        return new

    def _leave(self, worker: int) -> None:
        self._pool.retire(worker)
        self._streams.worker_drained(worker)
        self._pool.remove(worker)

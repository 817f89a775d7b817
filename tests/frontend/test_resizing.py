"""The Resizer between a pool whose workers answer at once and a supervisor that may refuse."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from frontend.control import (
    ControlError,
    ListWorkers,
    Refusal,
    Reply,
    Request,
    StartWorker,
    StopWorker,
    Workers,
    serve_control,
)
from frontend.resizing import ResizeError, Resizer
from frontend.streams import Streams
from ipc import codec
from ipc.messages import PROTOCOL_VERSION, Owner, WorkerInfo
from postproc_workers.pool import LinkedPool
from tests.frontend.test_streams import Peers
from tests.ipc.test_pool import Events


class PlayedLink:
    """A link to a worker that answers Hello with the next turn of the loop."""

    def __init__(
        self,
        context: object,
        address: str,
        owner: Owner,
        on_message: Callable[[list[bytes]], None],
        on_lost: Callable[[str], None],
        *,
        key: object,
    ) -> None:
        info = codec.encode(WorkerInfo(PROTOCOL_VERSION, 0, 1))
        asyncio.get_running_loop().call_soon(on_message, [info])

    def send(self, parts: object) -> None: ...
    def close(self, linger: float = 0.0) -> None: ...


class PlayedSupervisor:
    """Has two workers; it ends none while it `refuses`, and late if it `hangs`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hangs = False
        self.goes_on = asyncio.Event()
        self.addresses = {0: "ipc:///0", 1: "ipc:///1"}
        self.refuses = False

    async def carry_out(self, request: Request) -> Reply:
        match request:
            case StopWorker(number):
                if self.hangs:
                    self.asked.set()
                    await self.goes_on.wait()
                if self.refuses:
                    return Refusal("not now")
                del self.addresses[number]
            case StartWorker():
                number = len(self.addresses)
                self.addresses[number] = f"ipc:///{number}"
            case ListWorkers():
                pass
        return Workers(self.addresses)


def test_a_worker_that_the_supervisor_did_not_end_is_found_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("postproc_workers.pool.Link", PlayedLink)

    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        supervisor = PlayedSupervisor()
        pool = LinkedPool(context, supervisor.addresses, Owner(0, 1), Events())
        control = tmp_path / "control"
        resizer = Resizer(pool, Streams(pool, Peers.Engine([]), 1), control)
        async with await serve_control(control, supervisor.carry_out):
            await resizer.adopt()
            supervisor.refuses = True
            with pytest.raises(ControlError, match="not now"):
                await resizer.set_count(1)
            await resizer.set_count(3)
            assert pool.load.keys() == supervisor.addresses.keys() == {0, 1, 2}
            supervisor.refuses = False
            await resizer.set_count(1)
            assert pool.load.keys() == supervisor.addresses.keys() == {0}
        context.term()

    asyncio.run(scenario())


def test_a_shutdown_gives_up_the_change_that_is_being_made_and_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("postproc_workers.pool.Link", PlayedLink)

    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        supervisor = PlayedSupervisor()
        supervisor.hangs = True
        pool = LinkedPool(context, supervisor.addresses, Owner(0, 1), Events())
        control = tmp_path / "control"
        resizer = Resizer(pool, Streams(pool, Peers.Engine([]), 1), control)
        async with await serve_control(control, supervisor.carry_out):
            await resizer.adopt()
            changes = [resizer.set_count(1), resizer.set_count(3)]
            gathered = asyncio.gather(*changes, return_exceptions=True)
            await supervisor.asked.wait()
            resizer.stop()
            assert [type(told) for told in await gathered] == [ResizeError, ResizeError]
            assert supervisor.addresses.keys() == {0, 1}
            supervisor.goes_on.set()
        context.term()

    asyncio.run(scenario())

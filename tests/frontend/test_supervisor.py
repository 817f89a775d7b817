"""The supervisor's children and its control socket, without a process: each is played."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from frontend.control import ControlError, ListWorkers, StartWorker, StopWorker, ask
from frontend.settings import FrontendSettings
from frontend.supervisor import Child, RunSettings, StartError, Supervisor
from ipc.process import EXIT_CONFIGURATION, EXIT_USAGE


class Process:
    """A process that ends when it is told to."""

    pid = 1

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def kill(self) -> None:
        self.returncode = -9
        self._ended.set()

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode


def test_a_child_that_is_stopped_while_it_is_being_started_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        child = Child("child", [])

        async def start(*arguments: object, **options: object) -> Process:
            await child.stop()
            return Process()

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        async with asyncio.timeout(5):
            await child.keep()
        assert child.starts == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [EXIT_CONFIGURATION, EXIT_USAGE])
def test_what_will_not_come_up_is_not_started_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        child = Child("child", [])

        async def start(*arguments: object, **options: object) -> Process:
            process = Process()
            process.kill()
            process.returncode = status
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        async with asyncio.timeout(5):
            with pytest.raises(StartError, match="child cannot start"):
                await child.keep()
        assert child.starts == 1

    asyncio.run(scenario())


class PlayedChild:
    """A child that runs until it is stopped, and ends when the test allows it."""

    all: dict[str, "PlayedChild"]

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.arguments = arguments
        self.stopping = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.all[name] = self

    async def keep(self) -> None:
        await self.ended()

    async def stop(self, patience: float = 0.0) -> None:
        self.stopping.set()
        await self.ended()

    def kill(self) -> None:
        self.stopping.set()
        self.may_end.set()

    async def ended(self) -> None:
        await self.stopping.wait()
        await self.may_end.wait()


class Run:
    """A running supervisor of two workers."""

    def __init__(self) -> None:
        self.children: dict[str, PlayedChild] = {}
        PlayedChild.all = self.children
        self.supervisor = Supervisor(RunSettings((), FrontendSettings(), workers=2))
        told = self.children["frontend"].arguments[-1]
        control = msgspec.json.decode(told, type=FrontendSettings).control
        assert control is not None
        self.control = Path(control)
        self.task = asyncio.get_running_loop().create_task(self.supervisor.run())

    async def listening(self) -> None:
        while not self.control.exists():
            await asyncio.sleep(0)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.supervisor.Child", PlayedChild)


@pytest.mark.usefixtures("played")
def test_a_worker_that_is_still_ending_keeps_its_number_and_address() -> None:
    """Its frontend can die and come back while it ends, and ask for another one."""

    async def scenario() -> None:
        run = Run()
        await run.listening()
        ending = run.children["worker 1"]
        ending.may_end.clear()
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(ask(run.control, StopWorker(1)))
            await ending.stopping.wait()
            assert (await ask(run.control, ListWorkers())).keys() == {0}
            with pytest.raises(ControlError, match="there is no worker 1"):
                await ask(run.control, StopWorker(1))
            assert (await ask(run.control, StartWorker())).keys() == {0, 2}
            ending.may_end.set()
        assert stopped.result().keys() == {0, 2}
        assert (await ask(run.control, StartWorker())).keys() == {0, 1, 2}
        run.supervisor.stop()
        await run.task

    asyncio.run(scenario())


@pytest.mark.usefixtures("played")
def test_no_worker_is_started_once_the_end_has_begun() -> None:
    async def scenario() -> None:
        run = Run()
        await run.listening()
        run.children["frontend"].may_end.clear()
        run.supervisor.stop()
        with pytest.raises(ControlError, match="the server is stopping"):
            await ask(run.control, StartWorker())
        run.children["frontend"].may_end.set()
        await run.task
        assert set(run.children) == {"engine", "frontend", "worker 0", "worker 1"}

    asyncio.run(scenario())


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("rubbish", [b"", b"rubbish\n", b"\xff\n", b"[1]\n", b"x" * 200_000])
def test_rubbish_on_the_control_socket_is_refused_without_a_trace(
    rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        run = Run()
        await run.listening()
        reader, writer = await asyncio.open_unix_connection(run.control)
        writer.write(rubbish)
        writer.write_eof()
        assert b"refusal" in await reader.read()
        writer.close()
        assert (await ask(run.control, ListWorkers())).keys() == {0, 1}
        run.supervisor.stop()
        await run.task

    asyncio.run(scenario())
    assert not caplog.records


@pytest.mark.usefixtures("played")
def test_who_sends_no_request_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.control.REQUEST_SECONDS", 0.0)

    async def scenario() -> None:
        run = Run()
        await run.listening()
        reader, writer = await asyncio.open_unix_connection(run.control)
        assert b"no request came" in await reader.read()
        writer.close()
        run.supervisor.stop()
        await run.task

    asyncio.run(scenario())

"""A LinkedPool against a worker's Listener: when a worker is up, and when it is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from ipc import codec
from ipc.listener import Listener
from ipc.messages import (
    PROTOCOL_VERSION,
    FrontendToWorker,
    Goodbye,
    Output,
    Owner,
    Released,
    WorkerInfo,
    WorkerStatus,
)
from ipc.security import make_run_directory
from postproc_workers.pool import UNANSWERED_HEARTBEATS, LinkedPool

OWNER = Owner(0, 7)
STATUS = WorkerStatus(0, 0, {}, 0, 0, 0, {})


class Events:
    """Notes which workers were lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def worker_output(self, worker: int, output: Output) -> None: ...
    def worker_released(self, worker: int, released: Released) -> None: ...
    def worker_up(self, worker: int) -> None: ...
    def worker_lost(self, worker: int, reason: str) -> None:
        self.lost.append(reason)


class Setting:
    """One pool and where its one worker listens, or does not yet."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", directory: Path) -> None:
        self.events = Events()
        self.address = f"ipc://{directory}/worker"
        self.pool = LinkedPool(context, {0: self.address}, OWNER, self.events)
        self.context = context

    def listen(self) -> Listener[FrontendToWorker]:
        info = WorkerInfo(PROTOCOL_VERSION, 0, 1)
        return Listener(self.context, self.address, codec.frontend_to_worker, info)

    async def until_up(self, listener: Listener[FrontendToWorker]) -> None:
        while not self.pool.up:
            listener.receive()
            await asyncio.sleep(0)


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    directory = make_run_directory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    found = Setting(context, directory)
    try:
        yield found
    finally:
        found.pool.close()
        context.destroy(linger=0)
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


def test_an_address_that_must_not_be_used_is_told() -> None:
    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pool = LinkedPool(context, {0: "ipc:///nonexistent/worker"}, OWNER, Events())
        assert pool.refused == "/nonexistent does not exist"
        pool.close()
        context.term()

    asyncio.run(scenario())


def test_a_worker_that_comes_later_is_found_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with setting() as given:
            assert given.pool.up == []
            listener = given.listen()
            await given.until_up(listener)
            assert given.pool.up == [0]
            assert given.events.lost == []
            listener.close()

    asyncio.run(scenario())
    assert not caplog.records


def test_a_worker_that_answers_no_heartbeat_is_lost_and_found_again() -> None:
    async def scenario() -> None:
        async with setting() as given:
            listener = given.listen()
            await given.until_up(listener)
            for _ in range(UNANSWERED_HEARTBEATS):
                given.pool.heartbeat()
            assert given.pool.up == [0]
            given.pool.heartbeat()
            assert given.pool.up == []
            await given.until_up(listener)
            assert given.events.lost == ["it does not answer"]
            listener.close()

    asyncio.run(scenario())


def test_any_answer_starts_the_count_again() -> None:
    async def scenario() -> None:
        async with setting() as given:
            listener = given.listen()
            await given.until_up(listener)
            for _ in range(UNANSWERED_HEARTBEATS):
                given.pool.heartbeat()
            listener.send(OWNER, [codec.encode(STATUS)])
            while given.pool.status != {0: STATUS}:
                await asyncio.sleep(0)
            given.pool.heartbeat()
            assert given.pool.up == [0]
            given.pool.close()
            listener.close()

    asyncio.run(scenario())


def test_looking_at_the_status_is_no_heartbeat() -> None:
    """However often somebody scrapes the metrics, a worker has ten seconds."""

    async def scenario() -> None:
        async with setting() as given:
            listener = given.listen()
            await given.until_up(listener)
            for _ in range(2 * UNANSWERED_HEARTBEATS):
                await given.pool.refresh(0.0)
            given.pool.heartbeat()
            assert given.pool.up == [0]
            given.pool.close()
            message: object = None
            while message != Goodbye():
                received = listener.receive()
                message = received and received[1]
            listener.close()

    asyncio.run(scenario())


class PlayedLink:
    """A link whose peer the test plays; `made` has all of a test's."""

    made: list["PlayedLink"]

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
        self.receive = on_message
        self.lose = on_lost
        self.made.append(self)

    def send(self, parts: object) -> None: ...
    def close(self, linger: float = 0.0) -> None: ...


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[PlayedLink]:
    PlayedLink.made = []
    monkeypatch.setattr("postproc_workers.pool.Link", PlayedLink)
    monkeypatch.setattr("postproc_workers.pool.RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr("postproc_workers.pool.GATHER_SECONDS", 0.0)
    return PlayedLink.made


async def timers_have_run() -> None:
    """Wait until what was scheduled for now is done."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, done.set)
    await done.wait()


def test_a_new_worker_under_an_old_number_is_connected_to_once(links: list[PlayedLink]) -> None:
    """Also if the old one was just about to be connected to again."""

    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pool = LinkedPool(context, {0: "ipc:///old"}, OWNER, Events())
        links[0].lose("killed")
        pool.remove(0)
        pool.add(0, "ipc:///new")
        await timers_have_run()
        assert len(links) == 2
        links[1].lose("killed")
        await timers_have_run()
        assert len(links) == 3
        context.term()

    asyncio.run(scenario())


def test_of_workers_that_die_together_none_is_up_when_a_loss_is_told(
    links: list[PlayedLink],
) -> None:
    """Otherwise a stream is moved from the first to the second, and blamed for both."""

    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        events = Events()
        pool = LinkedPool(context, {0: "ipc:///0", 1: "ipc:///1"}, OWNER, events)
        for link in links:
            link.receive([codec.encode(WorkerInfo(PROTOCOL_VERSION, 0, 1))])
        links[0].lose("the first")
        assert (pool.up, events.lost) == ([1], [])
        links[1].lose("the second")
        await timers_have_run()
        assert (pool.up, events.lost) == ([], ["the first", "the second"])
        context.term()

    asyncio.run(scenario())

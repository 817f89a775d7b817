"""A Listener and Links over real sockets: handshake, order, loss, refusal, rubbish."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from ipc import codec
from ipc.link import MESSAGES_A_TURN, Link
from ipc.listener import LOST, Listener, Lost
from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    Fail,
    FrontendToWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Owner,
    Refused,
    WorkerInfo,
)
from ipc.security import CurveKey, SecurityError, make_run_directory

OWNER = Owner(0, 7)
INFO = WorkerInfo(PROTOCOL_VERSION, 0, 1)
Context = zmq.Context  # the sockets' own


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def address() -> Iterator[str]:
    directory = make_run_directory()
    yield f"ipc://{directory}/worker"
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


class Peer:
    """A Link that keeps what it receives, and can wait for it."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.link: Link

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        owner: Owner = OWNER,
        *,
        version: int = PROTOCOL_VERSION,
        key: CurveKey | None = None,
        outbox_messages: int = 100,
    ) -> AsyncIterator["Peer"]:
        peer = cls()
        peer.link = Link(
            context,
            address,
            owner,
            peer.received.put_nowait,
            peer.lost.put_nowait,
            version=version,
            key=key,
            outbox_messages=outbox_messages,
        )
        try:
            yield peer
        finally:
            peer.link.close()

    async def message(self) -> object:
        return codec.worker_to_frontend((await self.received.get())[-1])


Serve = Callable[..., Listener[FrontendToWorker]]


@pytest.fixture
def serve(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> Iterator[Serve]:
    opened: list[Listener[FrontendToWorker]] = []

    def start(address: str = address, **options: object) -> Listener[FrontendToWorker]:
        decode = codec.frontend_to_worker
        listener = Listener(context, address, decode, INFO, **options)  # type: ignore[arg-type]
        opened.append(listener)
        return listener

    yield start
    for listener in opened:
        listener.close()


async def next_event(
    listener: Listener[FrontendToWorker],
) -> tuple[Owner, FrontendToWorker | Lost]:
    while True:
        event = listener.receive()
        if event is not None:
            return event
        await asyncio.to_thread(listener.poll, 5.0)


def test_messages_arrive_in_order_after_a_handshake(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address) as peer:
            for number in range(1000):
                peer.link.send([codec.encode(Abort(number, number))])
            assert await next_event(listener) == (OWNER, Hello(PROTOCOL_VERSION, OWNER))
            assert await peer.message() == INFO
            for number in range(1000):
                assert await next_event(listener) == (OWNER, Abort(number, number))
            listener.send(OWNER, [b"a", b"b"])
            assert await peer.received.get() == [b"a", b"b"]

    asyncio.run(scenario())


def test_another_protocol_version_is_refused_by_name(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address, version=99) as peer:
            await asyncio.to_thread(listener.poll, 5.0)
            assert listener.receive() is None
            refused = await peer.message()
            assert isinstance(refused, Refused)
            assert "version 99" in refused.reason
            assert listener.rejections.count == 1

    asyncio.run(scenario())


def test_an_earlier_life_is_refused_and_a_later_one_takes_over(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address, Owner(0, 7)):
            await next_event(listener)
            async with Peer.connect(context, listener.address, Owner(0, 6)) as late:
                await asyncio.to_thread(listener.poll, 5.0)
                assert listener.receive() is None
                refused = await late.message()
                assert isinstance(refused, Refused)
                assert not refused.permanent
            async with Peer.connect(context, listener.address, Owner(0, 8)):
                assert await next_event(listener) == (Owner(0, 7), LOST)
                assert (await next_event(listener))[0] == Owner(0, 8)
            async with Peer.connect(context, listener.address, Owner(1, 1)):
                assert (await next_event(listener))[0] == Owner(1, 1)

    asyncio.run(scenario())


def test_a_silent_owner_is_lost_once_and_a_leaving_one_is_not(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        listener = serve(clock=clock, lost_after=10.0)
        async with (
            Peer.connect(context, listener.address, Owner(0, 1)) as silent,
            Peer.connect(context, listener.address, Owner(1, 1)) as leaving,
        ):
            await next_event(listener)
            await next_event(listener)
            leaving.link.send([codec.encode(Goodbye())])
            assert await next_event(listener) == (Owner(1, 1), Goodbye())
            listener.forget(Owner(1, 1))
            clock.now = 9.0
            silent.link.send([codec.encode(Heartbeat())])
            await next_event(listener)
            clock.now = 18.0
            assert listener.receive() is None
            clock.now = 20.0
            assert listener.receive() == (Owner(0, 1), LOST)
            assert listener.receive() is None
            listener.send(Owner(0, 1), [b"to nobody"])
            # Its messages now come from a stranger.
            silent.link.send([codec.encode(Heartbeat())])
            await asyncio.to_thread(listener.poll, 5.0)
            assert listener.receive() is None
            assert listener.not_owned == 1

    asyncio.run(scenario())


def test_rubbish_is_counted_and_kills_nothing(
    context: "zmq.Context[zmq.Socket[bytes]]",
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address) as peer:
            await next_event(listener)
            for frame in (b"", b"\xc1", b"\x91\xa5hello", b"[1]", codec.encode(INFO)):
                peer.link.send([frame])
            peer.link.send([codec.encode(Fail(1, 1, "server_error", "x"))[:-1]])
            peer.link.send([codec.encode(Abort(1, 2))])
            with caplog.at_level(logging.WARNING):
                assert await next_event(listener) == (OWNER, Abort(1, 2))
            assert listener.rejections.count == 6
            assert len(caplog.records) == 1

    asyncio.run(scenario())


def test_a_flood_of_rubbish_leaves_time_for_other_work(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipc.listener.REJECTIONS_A_CALL", 10)
    listener = serve()
    with context.socket(zmq.DEALER) as flooder:
        flooder.linger = 0
        flooder.connect(listener.address)
        for _ in range(100):
            flooder.send(b"rubbish")
        while (before := listener.rejections.count) < 100:
            listener.poll(0.1)
            assert listener.receive() is None
            assert listener.rejections.count - before <= 10


def test_the_frontend_learns_of_a_lost_peer(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address) as peer:
            await next_event(listener)
            listener.send(OWNER, [codec.encode(Refused("last words"))])
            listener.close()
            assert await peer.lost.get() == "disconnected"
            assert await peer.message() == INFO
            assert await peer.message() == Refused("last words")
            peer.link.send([b"into the void"])
            assert peer.link.unsent == 0

    asyncio.run(scenario())


def test_a_lost_connection_is_not_made_again_unasked(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str
) -> None:
    """libzmq 4.3.5 aborts the process that does so while its receive queue is full."""

    async def scenario() -> None:
        first, second = (context.socket(zmq.ROUTER) for _ in range(2))
        first.bind(address)
        async with Peer.connect(context, address):
            # The event loop is not given back: only ZeroMQ's own thread can act.
            assert len(first.recv_multipart()) == 2
            first.close(linger=0)
            monitor = second.get_monitor_socket(zmq.EVENT_ACCEPTED)
            second.bind(address)
            accepted = monitor.poll(300)  # ZeroMQ's own delay is 100 ms
        second.disable_monitor()
        monitor.close()
        second.close(linger=0)
        assert not accepted

    asyncio.run(scenario())


def test_nobody_at_the_address_is_a_loss(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str
) -> None:
    async def scenario() -> None:
        async with Peer.connect(context, address) as peer:
            assert await peer.lost.get() == "closed"

    asyncio.run(scenario())


def test_a_busy_peer_leaves_the_loop_to_others(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve()
        async with Peer.connect(context, listener.address) as peer:
            await next_event(listener)
            for _ in range(5 * MESSAGES_A_TURN):
                listener.send(OWNER, [b"x"])
            seen = {0}
            while (received := peer.received.qsize()) < 5 * MESSAGES_A_TURN:
                assert received - max(seen) <= 2 * MESSAGES_A_TURN
                seen.add(received)
                await asyncio.sleep(0)
            assert len(seen) >= 3

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_is_lost_not_queued_for_without_bound(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        listener = serve(outbox_messages=100)
        async with Peer.connect(context, listener.address, outbox_messages=100) as peer:
            await next_event(listener)
            frame = codec.encode(Fail(1, 1, "server_error", "x" * 10_000))
            while peer.lost.empty():
                peer.link.send([frame])
                assert peer.link.unsent <= 101
                await asyncio.sleep(0)
            assert await peer.lost.get() == "it does not read"
        reader = context.socket(zmq.DEALER)
        reader.linger = 0
        reader.connect(listener.address)
        reader.send(codec.encode(Hello(PROTOCOL_VERSION, Owner(0, 8))))
        event: object = None
        while event != (Owner(0, 8), Hello(PROTOCOL_VERSION, Owner(0, 8))):
            event = await next_event(listener)
        while event != (Owner(0, 8), LOST):
            listener.send(Owner(0, 8), [b"x" * 10_000])
            assert listener.unsent <= 100
            event = listener.receive()
        reader.close()

    asyncio.run(scenario())


def test_tcp_admits_only_the_holder_of_the_key(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        key = CurveKey.generate()
        listener = serve(address="tcp://127.0.0.1:*", key=key)
        async with Peer.connect(context, listener.address, key=key) as peer:
            assert await next_event(listener) == (OWNER, Hello(PROTOCOL_VERSION, OWNER))
            assert await peer.message() == INFO
        stranger = CurveKey(key.public, CurveKey.generate().secret)
        for wrong in (stranger, CurveKey.generate()):
            async with Peer.connect(context, listener.address, Owner(9, 9), key=wrong) as peer:
                assert (await peer.lost.get()).startswith("handshake failed")
                assert peer.received.empty()

    asyncio.run(scenario())


def test_addresses_must_be_safe(tmp_path: Path) -> None:
    async def scenario() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        tmp_path.chmod(0o755)
        for address in ("tcp://127.0.0.1:1", f"ipc://{tmp_path}/x", "inproc://x", "rubbish"):
            with pytest.raises(SecurityError):
                Link(context, address, OWNER, lambda parts: None, lambda reason: None)
        tmp_path.chmod(0o700)
        with pytest.raises(SecurityError, match="longer"):
            Link(context, f"ipc://{tmp_path}/{'x' * 120}", OWNER, print, print)
        with pytest.raises(SecurityError, match="longer"):
            Link(context, f"ipc:///tmp/{'ü' * 60}", OWNER, print, print)
        with pytest.raises(SecurityError, match="does not exist"):
            Link(context, "ipc:///nonexistent/x", OWNER, print, print)

    asyncio.run(scenario())


def test_the_run_directory_lies_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Path(tempfile.gettempdir())
    monkeypatch.chdir(tmp_path)
    short = Path(tempfile.mkdtemp())
    (tmp_path / "relative").mkdir()
    long = short / ("x" * 60)
    long.mkdir()
    for given, parent in {
        str(short): short,
        "": usual,
        "relative": usual,
        "/nonexistent": usual,
        "/dev/null": usual,
        str(long): usual,
    }.items():
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        made = make_run_directory()
        assert made.parent == parent
        assert made.stat().st_mode & 0o777 == 0o700
        made.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(SecurityError, match="TMPDIR"):
        make_run_directory()
    long.rmdir()
    short.rmdir()


def test_a_failing_callback_does_not_stop_what_comes_after(
    context: "zmq.Context[zmq.Socket[bytes]]", serve: Serve
) -> None:
    async def scenario() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, told: failures.append(told["exception"])
        )
        listener = serve()
        received: asyncio.Queue[bytes] = asyncio.Queue()

        def receive(parts: list[bytes]) -> None:
            received.put_nowait(parts[0])
            raise ValueError(parts[0])

        link = Link(context, listener.address, OWNER, receive, pytest.fail)
        await next_event(listener)
        for text in (b"1", b"2", b"3"):
            listener.send(OWNER, [text])
        await received.get()
        assert [await received.get() for _ in range(3)] == [b"1", b"2", b"3"]
        link.close()
        assert [type(failure) for failure in failures] == [ValueError] * len(failures)
        assert failures

    asyncio.run(scenario())


def test_a_key_file_is_private_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = CurveKey.generate()
    key.save(path)
    assert CurveKey.load(path) == key
    with pytest.raises(FileExistsError):
        key.save(path)
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="can be read by others"):
        CurveKey.load(path)
    path.chmod(0o600)
    path.write_text("rubbish")
    with pytest.raises(SecurityError, match="no CURVE key"):
        CurveKey.load(path)

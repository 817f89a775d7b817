"""Connections of clients that dawdle, pipeline or do not read, over real sockets."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from frontend.connection import MAX_HEAD_BYTES, Connection
from frontend.server import ListenError, listen, raise_file_limit

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\nHi"


class Application:
    """Answers with the length of the body, after `let_end` is set; notes who has left."""

    def __init__(self) -> None:
        self.let_end = asyncio.Event()
        self.let_end.set()
        self.requests = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        self.requests += 1
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            more = message["more_body"]
        await self.let_end.wait()
        body = str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Hanging(Application):
    """Never answers, and notes when its client has left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


@asynccontextmanager
async def serving(
    application: ASGIApp, *, unread_seconds: float = 60.0, send_buffer: int | None = None
) -> AsyncIterator[int]:
    """The port of a server of `application`; `send_buffer` is the kernel's, in bytes."""
    config = uvicorn.Config(application, http=Connection, lifespan="off", log_level="critical")
    config.load()
    state = ServerState()

    def connection() -> Connection:
        return Connection(config=config, server_state=state, app_state={})

    listening = listen("127.0.0.1", 0, unread_seconds)
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    async with await asyncio.get_running_loop().create_server(connection, sock=listening):
        yield listening.getsockname()[1]
        for left in list(state.connections):
            assert isinstance(left, Connection)
            left.transport.abort()


async def exchange(port: int, sent: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b"reset"


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", b"PO", HEAD, REQUEST[:-1], REQUEST + b"P"],
    ids=["nothing", "line end", "method", "head", "body", "after one"],
)
def test_a_request_must_arrive_in_time(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "request_seconds", 0.05)

    async def scenario() -> None:
        async with serving(Application()) as port:
            received = await exchange(port, sent)
            assert received.startswith(b"HTTP/1.1 200") or received in (b"", b"reset")

    asyncio.run(scenario())


def test_a_request_that_came_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "request_seconds", 0.02)

    async def scenario() -> None:
        application = Application()
        application.let_end.clear()
        async with serving(application) as port:
            asyncio.get_running_loop().call_later(0.1, application.let_end.set)
            request = REQUEST.replace(b"Host", b"Connection: close\r\nHost")
            assert (await exchange(port, request)).endswith(b"\r\n\r\n2")

    asyncio.run(scenario())


@pytest.mark.parametrize("head", [HEAD + b"X: " + b"a" * MAX_HEAD_BYTES, b"GET /" + b"a" * 10**6])
def test_a_head_is_short(head: bytes) -> None:
    async def scenario() -> None:
        application = Application()
        async with serving(application) as port:
            received = await exchange(port, head)
            assert received.startswith(b"HTTP/1.1 400") or received == b"reset"
            assert application.requests == 0

    asyncio.run(scenario())


def test_a_body_may_be_long() -> None:
    async def scenario() -> None:
        async with serving(Application()) as port:
            size = 10 * MAX_HEAD_BYTES
            head = HEAD + f"Connection: close\r\nContent-Length: {size}\r\n\r\n".encode()
            assert (await exchange(port, head + b"a" * size)).endswith(str(size).encode())

    asyncio.run(scenario())


def test_pipelined_requests_are_left_to_be_sent_again() -> None:
    async def scenario() -> None:
        application = Application()
        async with serving(application) as port:
            received = await exchange(port, REQUEST * 3)
            assert received.count(b"HTTP/1.1 200") == 1
            assert b"connection: close" in received
            assert received.endswith(b"2")
            assert application.requests == 1

    asyncio.run(scenario())


def test_a_client_that_pipelines_is_seen_to_leave() -> None:
    async def scenario() -> None:
        application = Hanging()
        async with serving(application) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST * 3)
            await writer.drain()
            writer.transport.abort()
            await application.left.wait()

    asyncio.run(scenario())


def test_a_client_that_never_reads_is_given_up() -> None:
    """Even one whose response has ended: its last bytes wait in the server's buffers."""

    class Writer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes(32 * 1024 * 1024))
            transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(exc)

    lost: asyncio.Future[Exception | None]

    async def scenario() -> None:
        nonlocal lost
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        listening = listen("127.0.0.1", 0, unread_seconds=0.3)
        async with await loop.create_server(Writer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            assert isinstance(await lost, TimeoutError)
            writer.transport.abort()
            assert reader is not None

    asyncio.run(scenario())


def test_an_address_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match="already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(ListenError, match=r"nowhere\.invalid"):
        listen("nowhere.invalid", port)
    with listen("::1", 0) as six:
        assert six.getsockname()[0] == "::1"


def test_the_limit_of_open_files_is_raised() -> None:
    limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

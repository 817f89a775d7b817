"""Every ending of a response as ASGI tells it: nothing is held from the moment on that it ends."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from starlette.types import Message, Receive, Scope, Send

import frontend.streams
from frontend.errors import OverloadedError, ServerError
from frontend.generation_response import GenerationResponse
from ipc.messages import (
    ChatFormat,
    ErrorResponse,
    Finish,
    MessagesFormat,
    Open,
    ResponsesFormat,
    TokenLogprobs,
)
from postproc_workers.post_processor import PostProcessor
from postproc_workers.testkit.strategies import encode
from tests.frontend.local_system import LocalSystem, settle
from tests.frontend.test_connection import serving
from tests.postproc_workers.turns import RESPONSES, Format, opening, post_process

TOKENS = encode(
    "<|channel|>analysis<|message|>The user greets me.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hello there, friend.<|return|>"
)
FIRST, REST = TOKENS[:9], TOKENS[9:]
STOP = Finish("stop")
SCOPE: Scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
FORMATS = pytest.mark.parametrize(
    "form", [RESPONSES, ChatFormat(), MessagesFormat()], ids=["responses", "chat", "messages"]
)
STREAMING = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "unstreamed"])


class Client:
    """What is behind the ASGI server: takes what is sent, but no longer from send `stops_at` on;
    `leave` is told as ASGI 2.3 does (a message and a cancellation) or as 2.4 does (a failed send).
    """

    def __init__(self, stops_at: int | None = None) -> None:
        self.messages: list[Message] = []
        self.held: list[dict[str, int]] = []
        self.task: asyncio.Task[None]
        self._stops_at = stops_at
        self._left = asyncio.Event()
        self._sends_fail = asyncio.Event()

    def call(self, system: LocalSystem, form: Format, streaming: bool) -> "asyncio.Task[None]":
        """Begin a request; `held` is what its system held right after it."""

        def make_open(stream_id: int, lease: int) -> Open:
            template = opening(form, streaming=streaming)
            return msgspec.structs.replace(template, stream_id=stream_id, lease=lease)

        response = GenerationResponse(lambda: system.open(make_open), streaming, {})

        async def request() -> None:
            try:
                await response(SCOPE, self._receive, self._send)
            finally:
                self.held.append(system.held)

        self.task = asyncio.create_task(request())
        return self.task

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    def leave(self, how: str) -> None:
        match how:
            case "disconnect":
                self._left.set()
            case "cancel":
                self.task.cancel()
            case "failed send":
                self._sends_fail.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._stops_at == len(self.messages):
            await self._sends_fail.wait()
        if self._sends_fail.is_set():
            raise BrokenPipeError("the client has left")
        self.messages.append(message)


@dataclass(frozen=True)
class Moment:
    """When a client leaves: after so many of two steps, in send `stops_at`, or while what the
    last step brought is still on its way."""

    steps: int
    stops_at: int | None = None
    withheld: bool = False


MOMENTS = {
    (True, "before the response starts"): Moment(0, withheld=True),
    (True, "in the start"): Moment(0, stops_at=0),
    (True, "in the opening events"): Moment(0, stops_at=1),
    (True, "after the opening events"): Moment(0),
    (True, "in an event"): Moment(1, stops_at=2),
    (True, "between two events"): Moment(1),
    (True, "after the last token"): Moment(2, withheld=True),
    (True, "in the final event"): Moment(2, stops_at=3),
    (False, "before the first token"): Moment(0),
    (False, "between two tokens"): Moment(1),
    (False, "after the last token"): Moment(2, withheld=True),
    (False, "in the start"): Moment(2, stops_at=0),
    (False, "in the body"): Moment(2, stops_at=1),
}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["disconnect", "cancel", "failed send"])
@pytest.mark.parametrize(
    ("streaming", "moment"),
    [(streaming, moment) for (streaming, _), moment in MOMENTS.items()],
    ids=[f"{'streamed' if streaming else 'unstreamed'} {name}" for streaming, name in MOMENTS],
)
@FORMATS
def test_a_client_that_leaves(form: Format, streaming: bool, moment: Moment, how: str) -> None:
    async def scenario() -> None:
        system, client = LocalSystem(), Client(moment.stops_at)
        system.withheld = moment.withheld
        task = client.call(system, form, streaming)
        await settle()
        for number, (ids, finish) in enumerate([(FIRST, None), (REST, STOP)][: moment.steps]):
            system.withheld = moment.withheld and number == moment.steps - 1
            system.step({1: ids}, finish)
            await settle()
        assert not task.done()
        client.leave(how)
        if how == "failed send" and moment.stops_at is None:
            await settle()
            system.deliver()
            if moment.steps < 2:
                system.step({1: TOKENS}, STOP)
        if how == "cancel":
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        assert client.held == [{}]
        assert sum(system.released.values()) == 1
        if moment.steps == 2:
            assert system.released == {"final": 1}
        elif how != "failed send":
            assert system.released == {"abort": 1}

    run(scenario)


@FORMATS
@STREAMING
def test_a_whole_answer(form: Format, streaming: bool) -> None:
    async def scenario() -> None:
        system, client = LocalSystem(), Client()
        task = client.call(system, form, streaming)
        await settle()
        for ids, finish in ((FIRST, None), (REST, STOP)):
            system.step({1: ids}, finish)
            await settle()
        await task
        assert client.held == [{}]
        assert client.status == 200
        steps = [FIRST, REST]
        assert client.body == post_process(opening(form, streaming=streaming), steps, STOP)

    run(scenario)


@pytest.mark.parametrize("said", [0, 1], ids=["before the first token", "after some"])
@pytest.mark.parametrize("together", [True, False], ids=["with tokens", "alone"])
@FORMATS
@STREAMING
def test_an_executors_error(form: Format, streaming: bool, said: int, together: bool) -> None:
    async def scenario() -> None:
        system, client = LocalSystem(), Client()
        task = client.call(system, form, streaming)
        await settle()
        if said:
            system.step({1: FIRST})
            await settle()
        error = ErrorResponse(1, 1, "overloaded", "no block is free")
        system.step({1: REST if said else FIRST} if together else {}, errors=[error])
        await task
        assert client.held == [{}]
        assert system.released == {"error": 1}
        assert client.status == (200 if streaming else 503)
        assert_told_once(client.body, form, streaming, "no block is free")

    run(scenario)


def assert_told_once(body: bytes, form: Format, streaming: bool, message: str) -> None:
    """The failure is the last thing that the client is told, whole and once."""
    if not streaming:
        assert json.loads(body)["error"]["message"] == message
        return
    data = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    if isinstance(form, ResponsesFormat):
        assert [event["type"] for event in data[-2:]] == ["error", "response.failed"]
        assert data[-2]["message"] == data[-1]["response"]["error"]["message"] == message
        assert [event["sequence_number"] for event in data] == list(range(len(data)))
        assert body.count(b"event: error") == 1
    else:
        assert data[-1]["error"]["message"] == message
        assert len(re.findall(rb'"error":{', body)) == 1


# --- exceptions in post-processing -------------------------------------------------------------

MARK = encode("<|constrain|>")[0]


class Failing(PostProcessor):
    """Real post-processing that fails at one token."""

    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None:
        if MARK in tokens:
            raise ValueError("the mark cannot be read")
        super().feed(tokens, logprobs)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("said", [0, 1], ids=["at the first token", "mid-stream"])
@FORMATS
@STREAMING
def test_an_exception_in_post_processing(
    form: Format, streaming: bool, said: int, workers: int
) -> None:
    """The client is told the original message; the others of its batch notice nothing."""

    async def scenario() -> None:
        system = LocalSystem(workers, Failing)
        clients = [Client() for _ in range(6)]
        tasks = [client.call(system, form, streaming) for client in clients]
        await settle()
        everyone = range(1, 7)
        if said:
            system.step(dict.fromkeys(everyone, FIRST))
            await settle()
        broken = {2, 5}
        steps = [FIRST, REST] if said else [TOKENS]
        system.step({n: [MARK] if n in broken else steps[-1] for n in everyone}, STOP)
        await asyncio.gather(*tasks)
        assert clients[-1].held == [{}]
        assert system.released == {"final": 4, "error": 2}
        whole = post_process(opening(form, streaming=streaming), steps, STOP)
        for number, client in zip(everyone, clients, strict=True):
            if number in broken:
                assert client.status == (200 if streaming else 500)
                assert_told_once(client.body, form, streaming, "the mark cannot be read")
            else:
                assert client.body == whole

    run(scenario)


class Unopened(PostProcessor):
    """Post-processing that cannot even be set up."""

    def __init__(self, opening: Open) -> None:
        raise ValueError("no such format")


class BrokenEncoder(PostProcessor):
    """Post-processing that fails, and cannot say so."""

    def open(self) -> None:
        raise ValueError("no opening events")

    def fail(self, failure: object, now: int) -> None:
        raise ValueError("no failure either")


@pytest.mark.parametrize("processor", [Unopened, BrokenEncoder])
@FORMATS
@STREAMING
def test_what_cannot_be_encoded_is_an_http_error(
    form: Format, streaming: bool, processor: type[PostProcessor]
) -> None:
    async def scenario() -> None:
        system, client = LocalSystem(1, processor), Client()
        with pytest.raises(ServerError) as raised:
            await client.call(system, form, streaming)
        assert raised.value.message
        assert client.held == [{}]
        assert client.messages == []
        assert system.released == {"error": 1}

    run(scenario)


# --- overload, slow readers --------------------------------------------------------------------


@FORMATS
def test_a_request_too_many_holds_nothing(form: Format) -> None:
    async def scenario() -> None:
        system, client = LocalSystem(), Client()
        system.up.clear()
        with pytest.raises(OverloadedError):
            await client.call(system, form, True)
        assert client.held == [{}]
        assert client.messages == []

    run(scenario)


@FORMATS
def test_a_client_that_lags_too_far(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend.streams, "MAX_BUFFERED_BYTES", 1000)

    async def scenario() -> None:
        system, client = LocalSystem(), Client(stops_at=2)
        task = client.call(system, form, True)
        await settle()
        system.step({1: FIRST})
        await settle()
        ids = encode(" word" * 1000)
        system.step({1: REST[:-1] + ids})
        await task
        assert client.held == [{}]
        assert system.released == {"abort": 1}
        assert len(client.messages) == 2

    run(scenario)


@FORMATS
def test_a_proxy_that_stops_reading(form: Format) -> None:
    """Its client has left, but it keeps its own connection to the server, and reads nothing."""

    async def scenario() -> None:
        system, client = LocalSystem(), Client()
        ended = asyncio.Event()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            client._receive, client._send = receive, send  # type: ignore[method-assign, assignment]
            await client.call(system, form, True)
            ended.set()

        async with serving(application, unread_seconds=0.2, send_buffer=4096) as port:
            proxy = Proxy(port)
            listening = await asyncio.start_server(proxy.relay, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
            writer.transport.abort()
            system.step({1: TOKENS[:-1] + encode(" word" * 20_000)})
            await ended.wait()
            proxy.stop()
            listening.close()
            await listening.wait_closed()
        assert client.held == [{}]
        assert system.released == {"abort": 1}

    run(scenario)


class Proxy:
    """Passes on one request and the beginning of the reply, and then does nothing any more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_connection("127.0.0.1", self._port, limit=64)
        self._writers += [writer, to_server]
        to_server.write(await reader.read(1000))
        writer.write(await upstream.read(100))

    def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

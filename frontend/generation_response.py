"""The ASGI response of a generation, streamed or not.

It opens its stream before it sends anything and closes it whatever ends it: the last event, a
failed send (ASGI 2.4), a cancellation (ASGI 2.3), the client's leaving at any moment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frontend.errors import OverloadedError, ServerError
from frontend.merged import MergedStreams
from frontend.streams import NoEngineError, NoWorkerError, StreamHandle, TooManyStreamsError
from ipc.messages import Terminal

_logger = logging.getLogger(__name__)

Handle = StreamHandle | MergedStreams
OpenStream = Callable[[], Handle]
OnEnd = Callable[[Terminal | None], Awaitable[None]]
"""Told of a stream's end, with None if its client has left before."""
OnOpen = Callable[[], OnEnd]
"""Told that a stream was opened; what it returns is told of its end."""
MakeBody = Callable[[bytes], bytes]


class GenerationResponse(Response):
    """Sends what `open_stream`'s stream brings. Before the first byte errors have an HTTP status.

    What `on_open` returns is called once for a stream that was opened, before its last bytes are
    sent, and `make_body` makes the unstreamed reply of what the stream has brought, unless that
    failed. Raises ApiError, before anything is sent, if the stream cannot be opened.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        streaming: bool,
        headers: dict[str, str],
        on_open: OnOpen | None = None,
        make_body: MakeBody | None = None,
    ) -> None:
        super().__init__(headers=headers)
        self._make_body = make_body
        self._on_open = on_open
        self._on_end: OnEnd | None = None
        self._open_stream = open_stream
        self._streaming = streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._open()
        if self._on_open is not None:
            self._on_end = self._on_open()
        work = asyncio.ensure_future(self._serve(handle, send))
        leave = asyncio.ensure_future(_client_left(receive))
        overflow = asyncio.ensure_future(handle.overflowed.wait())
        tasks = {work, leave, overflow}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First of all the release: it must not depend on how the tasks take their end.
            handle.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._on_end is not None:  # it was not told of an end
                await self._end(handle.terminal)
        if not work.cancelled():
            work.result()

    async def _end(self, terminal: Terminal | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            await on_end(terminal)

    def _open(self) -> Handle:
        try:
            return self._open_stream()
        except (NoWorkerError, NoEngineError, TooManyStreamsError) as error:
            raise OverloadedError(f"The server cannot take this request now: {error}.") from error

    async def _serve(self, handle: Handle, send: Send) -> None:
        try:
            if self._streaming:
                await self._stream(handle, send)
            else:
                await self._send_whole(handle, send)
        except OSError:
            # ASGI 2.4 says so that the client has left; nobody is there to be told.
            _logger.debug("stream %s: the client left", handle.name)

    async def _stream(self, handle: Handle, send: Send) -> None:
        await handle.wait()
        _raise_unless_encoded(handle)
        await self._start(send, 200, b"text/event-stream; charset=utf-8")
        while True:
            over = handle.terminal is not None
            if over:
                await self._end(handle.terminal)
            body = handle.take()
            await send({"type": "http.response.body", "body": body, "more_body": not over})
            if over:
                return
            await handle.wait()

    async def _send_whole(self, handle: Handle, send: Send) -> None:
        while handle.terminal is None:
            await handle.wait()
        _raise_unless_encoded(handle)
        await self._end(handle.terminal)
        body = handle.take()
        if self._make_body is not None and handle.terminal.reason == "final":
            body = self._make_body(body)
        await self._start(send, handle.terminal.status, b"application/json")
        await send({"type": "http.response.body", "body": body})

    async def _start(self, send: Send, status: int, content_type: bytes) -> None:
        headers = [h for h in self.raw_headers if h[0] not in (b"content-length", b"content-type")]
        headers.append((b"content-type", content_type))
        if self._streaming:
            headers.append((b"cache-control", b"no-cache"))
            headers.append((b"x-accel-buffering", b"no"))
        await send({"type": "http.response.start", "status": status, "headers": headers})


def _raise_unless_encoded(handle: Handle) -> None:
    """An end that the worker could not even encode is told as an HTTP error."""
    if handle.terminal is not None and not handle.has_bytes:
        raise ServerError(handle.terminal.message or "The request's answer cannot be prepared.")


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""One client's connection: uvicorn's HTTP/1.1, for clients that do not mean well.

A request must arrive whole in time, its head must be short, and there is one at a time: uvicorn
stops reading while a pipelined request waits, and then does not see the client leave.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 128 * 1024


class Connection(HttpToolsProtocol):
    """What follows a request before its response has ended is not answered; the connection is
    then closed behind that response, and the client has to send it again (RFC 9112, 9.3.2)."""

    request_seconds: ClassVar[float] = 60.0
    """From a request's first byte to its last."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._idle:
            self._await_request()
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's head is too long.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_has_come()
        super().connection_lost(exc)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._idle:
            self._in_head, self._head_bytes = True, 0
        else:
            self._deaf = True
            self.cycle.keep_alive = False

    def on_headers_complete(self) -> None:
        if not self._deaf:
            self._in_head = False
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf:
            self._request_has_come()
            super().on_message_complete()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        # uvicorn declares, wrongly, that there always is a cycle.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _await_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_seconds, self.transport.abort)

    def _request_has_come(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

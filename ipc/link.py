"""The frontend's end of a link: a DEALER socket on the event loop, for the life of one connection.

Nothing is awaited here: frames go out at once or into a bounded outbox, and come in by callback
from the loop's reader. A lost connection, or one that nobody takes, is not mended but told; the
owner makes a new Link.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from ipc import codec, messages, security
from ipc.listener import OUTBOX_MESSAGES, Frame, configure

RECONNECT_SECONDS = 0.1
"""How soon whoever has lost a link should make the next."""

_LOSSES = (
    zmq.EVENT_CLOSED  # nobody listens there
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

MESSAGES_A_TURN = 100
"""Messages received before the event loop's other work has its turn."""


def _option(socket: "zmq.Socket[bytes]", option: int) -> int:
    return cast(int, socket.getsockopt(option))


class Link:
    """Connects to `address`, says Hello, and then hands each message's parts to `on_message`.

    `on_lost` is called at most once, with a reason, and never after `close`. To be made while
    the loop runs. Raises SecurityError if the address must not be used.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        owner: messages.Owner,
        on_message: Callable[[list[Frame]], None],
        on_lost: Callable[[str], None],
        *,
        key: security.CurveKey | None = None,
        version: int = messages.PROTOCOL_VERSION,
        outbox_messages: int = OUTBOX_MESSAGES,
    ) -> None:
        security.check_address(address, key)
        self._on_message = on_message
        self._on_lost = on_lost
        self._outbox: deque[Sequence[Frame]] = deque()
        self._outbox_messages = outbox_messages
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.DEALER)
        configure(self._socket)
        # Not by itself, within this Link's life: libzmq 4.3.5 aborts the process if it connects a
        # socket again whose receive queue is full. (-1, for never, would drop what has come.)
        self._socket.reconnect_ivl = 3_600_000
        if key is not None:
            security.secure_connection(self._socket, key)
        self._monitor = self._socket.get_monitor_socket(_LOSSES)
        self._socket.connect(address)
        self._files = (_option(self._socket, zmq.FD), _option(self._monitor, zmq.FD))
        self._loop.add_reader(self._files[0], self._pump)
        self._loop.add_reader(self._files[1], self._watch)
        # A ZeroMQ descriptor fires only once its socket's events have been looked at.
        self._loop.call_soon(self._watch)
        self.send([codec.encode(messages.Hello(version, owner))])

    def send(self, parts: Sequence[Frame]) -> None:
        """Send one message; a peer that has stopped reading for too long counts as lost."""
        if not self._open:
            return
        if self._outbox or not self._send_now(parts):
            self._outbox.append(parts)
            if len(self._outbox) > self._outbox_messages:
                self._loop.call_soon(self._lose, "it does not read")
                return
        # A send can consume the edge of the descriptor that would have told of new messages.
        if _option(self._socket, zmq.EVENTS) & zmq.POLLIN:
            self._loop.call_soon(self._pump)

    @property
    def unsent(self) -> int:
        """Messages that wait for the peer to read."""
        return len(self._outbox)

    def close(self, linger: float = 0.0) -> None:
        """Leave; what is unsent gets up to `linger` seconds in ZeroMQ's own thread."""
        if not self._open:
            return
        self._open = False
        for file in self._files:
            self._loop.remove_reader(file)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(linger * 1000))

    def _send_now(self, parts: Sequence[Frame]) -> bool:
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _pump(self) -> None:
        """Send what had to wait, and receive until empty, as the descriptor is edge-triggered; in
        turns, so that a busy peer does not keep the loop from others."""
        for _ in range(MESSAGES_A_TURN):
            if not self._open:
                return
            while self._outbox and self._send_now(self._outbox[0]):
                self._outbox.popleft()
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                # Receiving can have used up the edge that told of room to send.
                if self._outbox and _option(self._socket, zmq.EVENTS) & zmq.POLLOUT:
                    continue
                return
            try:
                self._on_message(parts)
            except Exception:
                # What is left must not wait for the descriptor's next edge.
                self._loop.call_soon(self._pump)
                raise
        self._loop.call_soon(self._pump)

    def _watch(self) -> None:
        while self._open and _option(self._monitor, zmq.EVENTS) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            self._pump()
            self._lose(str(zmq.Event(event["event"]).name).lower().replace("_", " "))

    def _lose(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_lost(reason)

"""The serving end of a link: a ROUTER socket that knows its peers by the owner they proved to be.

A frontend's connection begins with `Hello`. A later life of the same frontend, silence for
`lost_after` seconds, or a peer that no longer reads ends what an owner had: `LOST` says so, in
order with the messages.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar, cast

import zmq
from msgspec import Struct
from zmq.auth.thread import ThreadAuthenticator

from ipc import codec, messages, security
from ipc.rejections import Rejections

T = TypeVar("T")

LOST_AFTER_SECONDS = 10.0
OUTBOX_MESSAGES = 10_000
"""Messages kept, beyond ZeroMQ's own queue, for a peer that reads too slowly."""
REJECTIONS_A_CALL = 1_000
"""Messages refused before the caller gets back to its other work."""

Frame = bytes


class Pollable(Protocol):
    """What can be polled along with a socket."""

    def fileno(self) -> int: ...


class Lost(Enum):
    """Stands for the message that a vanished owner could not send."""

    LOST = "lost"


LOST = Lost.LOST


@dataclass(slots=True)
class _Peer:
    identity: bytes
    last_heard: float
    outbox: deque[Sequence[Frame]] = field(default_factory=deque)


def configure(socket: "zmq.Socket[bytes]") -> None:
    """What both ends of a link set: no lingering, a size limit, and ZMTP's own heartbeat, which
    runs in ZeroMQ's thread and so also while this process computes."""
    socket.linger = 0
    socket.maxmsgsize = codec.MAX_MESSAGE_BYTES
    socket.heartbeat_ivl = 2_000
    socket.heartbeat_timeout = int(LOST_AFTER_SECONDS * 1000)


class Listener(Generic[T]):
    """Receives `(owner, message)` pairs and sends frames to owners, without ever blocking.

    `decode` reads this direction's messages, `info` answers each good Hello; `wakeup` ends a poll
    when it is readable. Raises zmq.ZMQError if the address cannot be bound and SecurityError if it
    must not be.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        decode: codec.MessageDecoder[T],
        info: Struct,
        *,
        key: security.CurveKey | None = None,
        lost_after: float = LOST_AFTER_SECONDS,
        outbox_messages: int = OUTBOX_MESSAGES,
        clock: Callable[[], float] = time.monotonic,
        wakeup: Pollable | None = None,
    ) -> None:
        security.check_address(address, key)
        self.rejections = Rejections(f"listener {address}", clock)
        self.not_owned = 0
        self._decode = decode
        self._info = codec.encode(info)
        self._info_parts = (
            [b"", self._info] if isinstance(info, messages.EngineInfo) else [self._info]
        )
        self._lost_after = lost_after
        self._outbox_messages = outbox_messages
        self._clock = clock
        self._peers: dict[messages.Owner, _Peer] = {}
        self._owners: dict[bytes, messages.Owner] = {}
        self._events: deque[tuple[messages.Owner, T | Lost]] = deque()
        self._socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        self._socket.router_mandatory = True
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if wakeup is not None:
            self._poller.register(wakeup, zmq.POLLIN)
        self._authenticator: ThreadAuthenticator | None = None
        if key is not None:
            self._authenticator = security.secure_listener(self._socket, key)
        self._socket.bind(address)
        self.address = (
            cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        )

    def poll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for a message, or for what else is to end the wait."""
        self._poller.poll(int(timeout * 1000))

    def receive(self) -> tuple[messages.Owner, T | Lost] | None:
        """The next good message or loss, or None if there is none now, or only much rubbish.

        Hellos are answered here and passed on, so that the caller can make room for the owner.
        """
        for _ in range(REJECTIONS_A_CALL):
            if self._events:
                break
            try:
                identity, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._drop_silent()
                break
            try:
                message = self._decode(b"".join(parts))
            except codec.MalformedMessage as error:
                self.rejections.add(error)
                continue
            if isinstance(message, messages.Hello):
                if self._admit(identity, message):
                    self._events.append((message.owner, message))
                continue
            owner = self._owners.get(identity)
            if owner is None:
                self.not_owned += 1
                self._refuse(identity, "this connection has not said Hello", permanent=False)
                continue
            self._peers[owner].last_heard = self._clock()
            return owner, message
        return self._events.popleft() if self._events else None

    def send(self, owner: messages.Owner, parts: Sequence[Frame]) -> None:
        """Send one message to `owner`; to an owner that is gone, nothing."""
        peer = self._peers.get(owner)
        if peer is None:
            return
        if peer.outbox or not self._send_now(peer, owner, parts):
            peer.outbox.append(parts)
            if len(peer.outbox) > self._outbox_messages:
                self._drop(owner)

    def flush(self) -> None:
        """Try again what could not be sent at once."""
        for owner, peer in list(self._peers.items()):
            while peer.outbox and self._send_now(peer, owner, peer.outbox[0]):
                if peer.outbox:
                    peer.outbox.popleft()

    @property
    def unsent(self) -> int:
        """Messages that wait for a peer to read."""
        return sum(len(peer.outbox) for peer in self._peers.values())

    def forget(self, owner: messages.Owner) -> None:
        """The owner has said Goodbye: its silence is no loss."""
        if owner in self._peers:
            self._remove(owner)

    def close(self) -> None:
        self.flush()
        self._peers.clear()
        self._socket.close(linger=1_000)
        if self._authenticator is not None:
            self._authenticator.stop()

    def _admit(self, identity: bytes, hello: messages.Hello) -> bool:
        if hello.version != messages.PROTOCOL_VERSION:
            self.rejections.add(f"protocol version {hello.version}")
            ours = messages.PROTOCOL_VERSION
            self._refuse(identity, f"protocol version {hello.version}, but this end speaks {ours}")
            return False
        lives = [o for o in self._peers if o.frontend == hello.owner.frontend]
        if any(life.epoch > hello.owner.epoch for life in lives):
            self.rejections.add(f"a Hello of an earlier life: {hello.owner}")
            # Not for good: the clock may have been set back between the two lives.
            reason = "a later life of this frontend is connected"
            self._refuse(identity, reason, permanent=False)
            return False
        for life in lives:
            self._drop(life)
        if identity in self._owners:
            self._drop(self._owners[identity])
        self._peers[hello.owner] = _Peer(identity, self._clock())
        self._owners[identity] = hello.owner
        self.send(hello.owner, self._info_parts)
        return True

    def _refuse(self, identity: bytes, reason: str, *, permanent: bool = True) -> None:
        payload = codec.encode(messages.Refused(reason, permanent))
        parts = [identity, *self._info_parts[:-1], payload]
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def _send_now(self, peer: _Peer, owner: messages.Owner, parts: Sequence[Frame]) -> bool:
        try:
            self._socket.send_multipart([peer.identity, *parts], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drop(owner)
        return True

    def _drop_silent(self) -> None:
        limit = self._clock() - self._lost_after
        for owner in [o for o, peer in self._peers.items() if peer.last_heard < limit]:
            self._drop(owner)

    def _drop(self, owner: messages.Owner) -> None:
        self._remove(owner)
        self._events.append((owner, LOST))

    def _remove(self, owner: messages.Owner) -> None:
        peer = self._peers.pop(owner)
        del self._owners[peer.identity]
        peer.outbox.clear()

"""The smallest frontend: one DEALER socket that says what it is told and keeps what it hears."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import msgspec
import zmq

from ipc import codec
from ipc.messages import (
    PROTOCOL_VERSION,
    EngineInfo,
    EngineStatus,
    EngineToFrontend,
    ErrorResponse,
    Heartbeat,
    Hello,
    Owner,
    Step,
    Tokens,
)
from ipc.security import make_run_directory

OWNER = Owner(frontend=1, epoch=1)
PATIENCE_MS = 20_000
"""Far beyond anything a test waits for; running out of it is a failure."""

_decode_step = msgspec.msgpack.Decoder(Step).decode


@contextmanager
def engine_address() -> Iterator[str]:
    """An address for an engine in a directory that is gone afterwards."""
    directory = make_run_directory()
    yield f"ipc://{directory}/engine"
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


class Client:
    """A connected frontend. Every wait fails after `PATIENCE_MS`."""

    def __init__(self, address: str, owner: Owner = OWNER) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = PATIENCE_MS
        self._socket.connect(address)
        self.steps: list[tuple[int, Step]] = []
        self.send(Hello(PROTOCOL_VERSION, owner))
        info = self.hear_answer()
        assert isinstance(info, EngineInfo)
        self.info = info

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._context.term()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message."""
        self._socket.send(codec.encode(message))

    def send_raw(self, frame: bytes) -> None:
        """Send what may not be a message."""
        self._socket.send(frame)

    def hear_step(self) -> tuple[int, Step]:
        """The next step: worker index and content."""
        worker, payload = self._socket.recv_multipart()
        self.steps.append((int(worker), _decode_step(payload)))
        return self.steps[-1]

    def hear_steps(self, count: int) -> None:
        """Hear steps until there were `count` since the start."""
        while len(self.steps) < count:
            self.hear_step()

    def hear_end(self, stream_id: int) -> tuple[list[int], str]:
        """All tokens of a stream, and what ended it: a finish reason or an error code."""
        while (end := self._end(stream_id)) is None:
            self.hear_step()
        return [token for tokens in self._tokens(stream_id) for token in tokens.ids], end

    def errors(self) -> list[ErrorResponse]:
        """All errors heard of so far."""
        return [error for _, step in self.steps for error in step.errors]

    def status(self) -> EngineStatus:
        """Ask for the engine's status; steps that come before it are kept."""
        self.send(Heartbeat())
        status = self.hear_answer()
        assert isinstance(status, EngineStatus)
        return status

    def hear_answer(self) -> EngineToFrontend:
        """The next message that is no step; steps that come before it are kept."""
        while True:
            worker, payload = self._socket.recv_multipart()
            if not worker:
                return codec.engine_to_frontend(payload)
            self.steps.append((int(worker), _decode_step(payload)))

    def _tokens(self, stream_id: int) -> Iterator[Tokens]:
        for _, step in self.steps:
            yield from (tokens for tokens in step.tokens if tokens.stream_id == stream_id)

    def _end(self, stream_id: int) -> str | None:
        for tokens in self._tokens(stream_id):
            if tokens.finish is not None:
                return tokens.finish.reason
        return next((e.code for e in self.errors() if e.stream_id == stream_id), None)

"""MessagePack with strict types: one encoder, and one decoder a direction, each built once."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from msgspec.msgpack import Decoder, Encoder

from ipc import messages

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A longer message is refused: ZeroMQ drops the connection, and decoders raise."""

encode: Callable[[msgspec.Struct], bytes] = Encoder().encode


class MalformedMessage(Exception):  # noqa: N818  it names what came, not what we did wrong
    """A frame that is not a message of its direction, or is longer than allowed."""


class MessageDecoder(Generic[T]):
    """Decodes the messages of one direction; raises MalformedMessage for anything else."""

    def __init__(self, union: object) -> None:
        self._decode: Callable[[bytes], T] = Decoder(union).decode

    def __call__(self, frame: bytes) -> T:
        if len(frame) > MAX_MESSAGE_BYTES:
            raise MalformedMessage(f"{len(frame)} bytes are more than {MAX_MESSAGE_BYTES}")
        try:
            return self._decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error


frontend_to_engine = MessageDecoder[messages.FrontendToEngine](messages.FrontendToEngine)
engine_to_frontend = MessageDecoder[messages.EngineToFrontend](messages.EngineToFrontend)
frontend_to_worker = MessageDecoder[messages.FrontendToWorker](messages.FrontendToWorker)
record_of = MessageDecoder[messages.Record](messages.Record)
worker_to_frontend = MessageDecoder[messages.WorkerToFrontend](messages.WorkerToFrontend)

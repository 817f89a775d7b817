"""The supervisor's control socket: the frontend asks it for worker processes, and gives them back.

One JSON line a request and one a reply, over a Unix socket in the run's directory (mode 0700).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from msgspec import Struct


class ListWorkers(Struct, frozen=True, tag="list"):
    """Which workers are there?"""


class StartWorker(Struct, frozen=True, tag="start"):
    """Start one more."""


class StopWorker(Struct, frozen=True, tag="stop"):
    """End one; it holds no stream any more."""

    worker: int


Request = ListWorkers | StartWorker | StopWorker


class Workers(Struct, frozen=True, tag="workers"):
    """The addresses of all workers, by number, after the request."""

    addresses: dict[int, str]


class Refusal(Struct, frozen=True, tag="refusal"):
    """Why a request was not carried out."""

    reason: str


Reply = Workers | Refusal


class ControlError(Exception):
    """The supervisor does not answer, or refuses."""


async def ask(path: Path, request: Request) -> dict[int, str]:
    """Ask the supervisor; returns the addresses of all workers. Raises ControlError."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(msgspec.json.encode(request) + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
        reply = msgspec.json.decode(line, type=Reply)
    except (OSError, msgspec.DecodeError) as error:
        raise ControlError(f"the supervisor does not answer: {error}") from error
    if isinstance(reply, Refusal):
        raise ControlError(reply.reason)
    assert isinstance(reply, Workers)
    return reply.addresses


async def serve_control(
    path: Path, carry_out: Callable[[Request], Awaitable[Reply]]
) -> asyncio.Server:
    """Answer requests at `path` with what `carry_out` returns."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            try:
                request = msgspec.json.decode(line, type=Request)
            except msgspec.DecodeError as error:
                reply: Reply = Refusal(str(error))
            else:
                reply = await carry_out(request)
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path)

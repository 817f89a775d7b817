"""The supervisor's control socket: the frontend asks it for worker processes, and gives them back.

One JSON line a request and one a reply, over a Unix socket in the run's directory (mode 0700).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from msgspec import Struct

REQUEST_SECONDS = 5.0
"""After so long whoever has connected but sends no request is sent away."""


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
            reply = await _reply(reader, carry_out)
            # To nobody if the frontend has died meanwhile; its next life asks for what there is.
            writer.write(msgspec.json.encode(reply) + b"\n")
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path)


async def _reply(
    reader: asyncio.StreamReader, carry_out: Callable[[Request], Awaitable[Reply]]
) -> Reply:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            line = await reader.readline()
        request = msgspec.json.decode(line, type=Request)
    except (ValueError, OSError) as error:
        # No JSON, another one, or too long a line; TimeoutError is an OSError.
        return Refusal(str(error) or "no request came")
    return await carry_out(request)

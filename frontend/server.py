"""`python -m frontend.server`: one frontend process, uvicorn around the application."""

import argparse
import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from frontend.app import make_app
from frontend.connection import Connection
from frontend.keys import KeyFileError, KeyRing
from frontend.prompt import PromptRenderer
from frontend.service import Service
from frontend.settings import FrontendSettings
from frontend.state.seal_key import SealKeyError, load_seal_key
from frontend.store import Store, StoreError
from ipc.process import (
    EXIT_CONFIGURATION,
    add_parent_option,
    end_with_parent,
    log_to_standard_error,
)
from ipc.security import CurveKey, SecurityError
from ipc.vocabulary import VocabularyError

CLOSE_SECONDS = 1
"""How long a drained server waits for connections to close."""
UNREAD_SECONDS = 60.0
"""How long a client may read nothing of what waits for it."""


class ListenError(Exception):
    """The server's address cannot be listened at."""


def listen(host: str, port: int, unread_seconds: float = UNREAD_SECONDS) -> socket.socket:
    """A listening socket. The kernel ends its connections when their clients read nothing for
    `unread_seconds`, which asyncio never does. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ListenError(f"cannot listen at {host}, port {port}: {error.strerror}") from error
    if sys.platform == "linux":
        unread_ms = int(unread_seconds * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    return listening


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each client's connection is one, and many
    shells allow 1,024 unless they are asked for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.platform == "linux":  # elsewhere `most` can be more than the kernel grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_store(settings: FrontendSettings) -> Store | None:
    """The store of responses, if there is to be one. Raises StoreError."""
    if settings.store is None:
        return None
    return Store(settings.store, max_age=settings.store_seconds, max_count=settings.store_count)


class DrainingServer(uvicorn.Server):
    """Lets the running requests end before it closes their connections."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        # Before uvicorn cancels their tasks, which it tells as errors.
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._abort_connections)
        await super().shutdown(sockets)

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.transport.abort()


async def serve(settings: FrontendSettings) -> str | None:
    """Serve until SIGTERM or SIGINT, or until engine or workers refuse; then their reason.

    Raises ListenError, StoreError, or VocabularyError, KeyFileError, SealKeyError or SecurityError
    where a file is not as it must be.
    """
    listening = listen(settings.host, settings.port)
    renderer = PromptRenderer()
    keys = KeyRing.load(Path(settings.api_keys)) if settings.api_keys else None
    admin_keys = KeyRing.load(Path(settings.admin_keys)) if settings.admin_keys else None
    curve_key = CurveKey.load(Path(settings.curve_key)) if settings.curve_key else None
    seal_key = load_seal_key(Path(settings.seal_key) if settings.seal_key else None)
    store = open_store(settings)
    refusals: list[str] = []

    def refused(reason: str) -> None:
        refusals.append(reason)
        server.should_exit = True

    services: list[Service] = []

    def make_service() -> Service:
        services.append(
            Service(
                settings,
                renderer,
                refused,
                keys=keys,
                admin_keys=admin_keys,
                curve_key=curve_key,
                store=store,
                seal_key=seal_key,
            )
        )
        return services[0]

    async def drain() -> None:
        for service in services:
            await service.drain()

    config = uvicorn.Config(
        make_app(make_service),
        loop="uvloop",
        http=Connection,
        lifespan="on",
        ws="none",
        access_log=False,
        log_level=settings.log_level,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=2 * CLOSE_SECONDS,
    )
    server = DrainingServer(config, drain)
    await server.serve([listening])
    return refusals[0] if refusals else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="FrontendSettings as JSON")
    add_parent_option(parser)
    options = parser.parse_args()
    settings = msgspec.json.decode(options.settings, type=FrontendSettings)
    log_to_standard_error("frontend", settings.log_level)
    if options.watch_parent:
        end_with_parent()
    raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(serve(settings))
    except StoreError as error:
        failure = f"the store cannot be opened: {error}"
    except (ListenError, VocabularyError, SecurityError, KeyFileError, SealKeyError) as error:
        failure = str(error)
    if failure is not None:
        logging.getLogger(__name__).critical("%s", failure)
        sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()

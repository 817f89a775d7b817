"""Stores for tests: each on a database of its own, SQLite's and PostgreSQL's, with a clock that
the test turns."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.store import Store, StoredResponse
from tests.postgres import PostgresServer, find_binaries, running_postgres

NOW = 1_800_000_000


class Stores:
    """Any number of stores on one database; `now` is what their clocks say."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now: float = NOW
        self._open: list[Store] = []

    def open(self, *, max_age: float = 1000.0, max_count: int = 1000) -> Store:
        """One more store, as another process would open it."""
        store = Store(self.url, max_age=max_age, max_count=max_count, clock=lambda: self.now)
        self._open.append(store)
        return store

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario, and close what it has opened."""

        async def whole() -> None:
            try:
                await scenario()
            finally:
                for store in self._open:
                    await store.close()

        asyncio.run(whole())


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; whoever ends it starts it again."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgres(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/antiphon.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def stores(url: str) -> Stores:
    return Stores(url)


def response(
    name: str, tenant: str = "acme", previous: str | None = None, created_at: int = NOW
) -> StoredResponse:
    """A response that begins."""
    return StoredResponse(
        id=f"resp_{name}",
        tenant=tenant,
        created_at=created_at,
        status="in_progress",
        background=True,
        previous_response_id=previous and f"resp_{previous}",
        conversation_id=None,
        input=b"[]",
        record=b"begun",
    )

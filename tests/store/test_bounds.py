"""The store's bounds: how many rows stay, how large a SQLite file is, and who can read it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, delete, insert, text, true
from sqlalchemy.dialects.sqlite import dialect

from frontend.store import Store, StoredResponse
from frontend.store.database import Database
from frontend.store.schema import conversations, responses
from frontend.store.store import BATCH, VACUUM_PAGES, give_back_pages, oldest

TENANT = "acme"
DAY = 24 * 3600.0


class Clock:
    """Unix seconds that stand still."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def response(number: int, clock: Clock, size: int = 100) -> StoredResponse:
    return StoredResponse(
        f"resp_{number:06}",
        TENANT,
        int(clock.now) + number,
        "in_progress",
        False,
        None,
        None,
        b"i" * size,
        b"r" * size,
    )


@asynccontextmanager
async def opened(path: Path, clock: Clock, max_count: int) -> AsyncIterator[Store]:
    store = Store(f"sqlite:///{path}", max_age=DAY, max_count=max_count, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def keep(store: Store, numbers: range, clock: Clock, size: int = 100) -> None:
    """Store responses, each with its beginning and its end."""
    made = [response(number, clock, size) for number in numbers]
    await asyncio.gather(*map(store.begin, made))
    ends = [store.finish(TENANT, one.id, "completed", b"e" * size) for one in made]
    await asyncio.gather(*ends)


async def kept(
    numbers: range, find: Callable[[str, str], Awaitable[object]], form: str
) -> list[int]:
    return [n for n in numbers if await find(TENANT, form.format(n)) is not None]


def test_the_file_gives_back_the_room_of_what_is_deleted(tmp_path: Path) -> None:
    path, clock = tmp_path / "db", Clock()

    async def scene() -> None:
        async with opened(path, clock, 10) as store:
            await keep(store, range(500), clock, 20_000)
            await store.sweep()
        full = 500 * 40_000
        assert path.stat().st_size < full / 10

    asyncio.run(scene())


def test_the_file_stays_as_large_as_what_is_kept(tmp_path: Path) -> None:
    path, clock = tmp_path / "db", Clock()
    sizes = []

    async def scene() -> None:
        for first in range(0, 1000, 100):
            async with opened(path, clock, 100) as store:
                await keep(store, range(first, first + 100), clock, 2_000)
                await store.sweep()
                assert await kept(range(first, first + 100), store.get, "resp_{:06}") == [
                    *range(first, first + 100)
                ]
            sizes.append(path.stat().st_size)

    asyncio.run(scene())
    assert max(sizes) < 1.2 * sizes[0]


def test_pages_are_given_back_in_batches(tmp_path: Path) -> None:
    """Not each in a transaction of its own."""
    clock, calls = Clock(), 0

    async def scene() -> None:
        nonlocal calls
        async with opened(tmp_path / "db", clock, 1) as store:
            await keep(store, range(100), clock, 50_000)
            for one in range(100):
                await store.delete(TENANT, f"resp_{one:06}")
            database = Database(f"sqlite:///{tmp_path}/db")
            try:
                while await database.write(give_back_pages):
                    calls += 1
                free = text("PRAGMA freelist_count")
                assert await database.read(lambda c: c.execute(free).scalar_one()) == 0
            finally:
                await database.close()

    asyncio.run(scene())
    assert 1 <= calls <= 100 * 100_000 / 4096 / VACUUM_PAGES + 1


def test_giving_pages_back_commits_nothing_of_what_it_is_committed_with(tmp_path: Path) -> None:
    clock = Clock()

    def fail(connection: Connection) -> None:
        row = {"tenant": TENANT, "id": "conv_1", "created_at": 1, "used_at": 1, "metadata": b"{}"}
        connection.execute(insert(conversations), row)
        give_back_pages(connection)
        raise ValueError

    async def scene() -> None:
        async with opened(tmp_path / "db", clock, 1) as store:
            await keep(store, range(20), clock, 20_000)
            await store.delete(TENANT, "resp_000001")
            database = Database(f"sqlite:///{tmp_path}/db")
            try:
                with pytest.raises(ValueError):  # noqa: PT011
                    await database.write(fail)
            finally:
                await database.close()
            assert await store.get_conversation(TENANT, "conv_1") is None

    asyncio.run(scene())


@pytest.mark.parametrize("table", [responses, conversations], ids=lambda table: table.name)
def test_a_batch_is_found_without_a_look_at_all_that_is_kept(tmp_path: Path, table: Table) -> None:
    """The oldest are the first of an index: others wait for a batch, whatever is kept."""
    condition = responses.c.alive_until.is_(None) if table is responses else true()
    age, index = ("created_at", "by_age") if table is responses else ("used_at", "by_use")
    work = delete(table).where(oldest(table, age, condition))
    statement = str(work.compile(dialect=dialect(), compile_kwargs={"literal_binds": True}))

    async def scene() -> None:
        database = Database(f"sqlite:///{tmp_path}/db")
        try:
            plan = await database.read(
                lambda c: c.execute(text(f"EXPLAIN QUERY PLAN {statement}")).all()
            )
        finally:
            await database.close()
        steps = [row[3] for row in plan]
        assert f"SCAN {table.name} USING INDEX {table.name}_{index}" in steps
        assert "USE TEMP B-TREE FOR ORDER BY" not in steps

    asyncio.run(scene())


def test_a_file_that_cannot_shrink_is_used_as_it_is(tmp_path: Path) -> None:
    """One that was there before, made without auto-vacuum."""
    path, clock = tmp_path / "db", Clock()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE older (n INTEGER)")

    async def scene() -> None:
        async with opened(path, clock, 1) as store:
            await keep(store, range(20), clock, 20_000)
            await asyncio.wait_for(store.sweep(), 10)
            assert await kept(range(20), store.get, "resp_{:06}") == [19]

    asyncio.run(scene())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 0


@pytest.mark.parametrize("count", [BATCH - 1, BATCH, 2 * BATCH + 1])
def test_one_sweep_deletes_all_that_is_too_much(tmp_path: Path, count: int) -> None:
    clock = Clock()

    async def scene() -> None:
        async with opened(tmp_path / "db", clock, 7) as store:
            await keep(store, range(count), clock)
            await store.sweep()
            assert await kept(range(count), store.get, "resp_{:06}") == [*range(count - 7, count)]

    asyncio.run(scene())


@pytest.mark.parametrize("count", [BATCH - 1, BATCH, 2 * BATCH + 1])
def test_one_sweep_deletes_all_conversations_that_are_too_old(tmp_path: Path, count: int) -> None:
    clock = Clock()

    async def scene() -> None:
        async with opened(tmp_path / "db", clock, 10_000) as store:
            names = [f"conv_{n}" for n in range(count)]
            await asyncio.gather(*[store.create_conversation(TENANT, n, b"{}") for n in names])
            clock.now += DAY + 1
            await store.create_conversation(TENANT, "conv_new", b"{}")
            await store.sweep()
            assert await kept(range(count), store.get_conversation, "conv_{}") == []
            assert await store.get_conversation(TENANT, "conv_new") is not None

    asyncio.run(scene())


def test_the_file_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    directory, clock = tmp_path / "new", Clock()

    async def scene() -> None:
        async with opened(directory / "db", clock, 5) as store:
            await keep(store, range(1), clock)
            modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
            assert modes == dict.fromkeys(["db", "db-shm", "db-wal"], 0o600)
            assert directory.stat().st_mode & 0o777 == 0o700

    asyncio.run(scene())

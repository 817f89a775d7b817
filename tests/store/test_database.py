"""Group commit, and what becomes of reads and writes while a database is not there."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from frontend.store import Store, StoreError
from frontend.store import database as database_module
from frontend.store.database import MAX_TOGETHER, Database
from tests.postgres import PostgresServer
from tests.store.conftest import Stores, response


class Gate:
    """A write that holds up the writer until it is opened."""

    def __init__(self, database: Database) -> None:
        self._entered, self._opened = threading.Event(), threading.Event()
        self._write = asyncio.get_running_loop().create_task(database.write(self._work))

    def _work(self, _: Connection) -> None:
        self._entered.set()
        assert self._opened.wait(20)

    async def closed(self) -> None:
        """Wait until the writer stands at the gate."""
        await asyncio.to_thread(self._entered.wait, 20)

    async def open(self) -> None:
        self._opened.set()
        await self._write


def with_database(url: str, scenario: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        database = Database(url)
        try:
            await scenario(database)
        finally:
            await database.close()

    asyncio.run(whole())


def add(name: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        statement = "INSERT INTO conversations VALUES ('acme', :id, 1, 1, :metadata)"
        connection.execute(text(statement), {"id": name, "metadata": b"{}"})

    return work


def listed(connection: Connection) -> list[str]:
    return list(connection.execute(text("SELECT id FROM conversations ORDER BY id")).scalars())


def test_what_comes_meanwhile_is_committed_together(url: str) -> None:
    async def scenario(database: Database) -> None:
        gate = Gate(database)
        await gate.closed()
        count = MAX_TOGETHER + 1
        seen: list[object] = []

        def note(connection: Connection) -> None:
            seen.append(connection)

        writes = [asyncio.create_task(database.write(note)) for _ in range(count)]
        await asyncio.sleep(0)
        await gate.open()
        await asyncio.gather(*writes)
        assert [seen.count(each) for each in dict.fromkeys(seen)] == [MAX_TOGETHER, 1]

    with_database(url, scenario)


def test_a_write_that_fails_costs_the_others_nothing(url: str) -> None:
    def wrong(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM nothing"))

    def broken(_: Connection) -> None:
        raise KeyError("a fault of ours")

    async def scenario(database: Database) -> None:
        gate = Gate(database)
        await gate.closed()
        works = [add("a"), wrong, add("b"), add("a"), broken, add("c")]
        writes = [asyncio.create_task(database.write(work)) for work in works]
        await asyncio.sleep(0)
        await gate.open()
        results = await asyncio.gather(*writes, return_exceptions=True)
        told = [type(result) for result in results]
        none = type(None)
        assert told == [none, StoreError, none, StoreError, KeyError, none]
        assert "nothing" in str(results[1])
        assert await database.read(listed) == ["a", "b", "c"]
        await database.write(add("d"))

    with_database(url, scenario)


def test_the_writes_of_one_caller_are_done_in_order(url: str) -> None:
    async def scenario(database: Database) -> None:
        done: list[int] = []

        def note(number: int) -> Callable[[Connection], None]:
            return lambda _: done.append(number)

        await asyncio.gather(*(database.write(note(n)) for n in range(2 * MAX_TOGETHER)))
        assert done == list(range(2 * MAX_TOGETHER))

    with_database(url, scenario)


def test_a_write_that_nobody_waits_for_is_done(url: str) -> None:
    async def scenario(database: Database) -> None:
        gate = Gate(database)
        await gate.closed()
        write = asyncio.create_task(database.write(add("a")))
        await asyncio.sleep(0)
        write.cancel()
        await gate.open()
        await database.write(add("b"))
        assert await database.read(listed) == ["a", "b"]

    with_database(url, scenario)


def test_closing_commits_what_waits_and_then_refuses(url: str) -> None:
    async def scenario() -> None:
        database = Database(url)
        gate = Gate(database)
        await gate.closed()
        writes = [asyncio.create_task(database.write(add(f"{n:04}"))) for n in range(1000)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(database.close())
        await asyncio.sleep(0)
        for attempt in (database.write(add("late")), database.read(listed)):
            with pytest.raises(StoreError, match="closed"):
                await attempt
        await gate.open()
        await closing
        await asyncio.gather(*writes)
        await database.close()
        again = Database(url)
        assert len(await again.read(listed)) == 1000
        await again.close()

    asyncio.run(scenario())


def test_the_loop_is_not_held_up_by_a_slow_read_at_the_end(url: str) -> None:
    async def scenario() -> None:
        database = Database(url)
        entered, opened = threading.Event(), threading.Event()

        def slow(_: Connection) -> bool:
            entered.set()
            return opened.wait(20)

        read = asyncio.create_task(database.read(slow))
        await asyncio.to_thread(entered.wait, 20)
        closing = asyncio.create_task(database.close())
        done, _ = await asyncio.wait([closing], timeout=0.1)
        assert not done
        opened.set()
        assert await read
        await closing

    asyncio.run(scenario())


# --- PostgreSQL away ---


def test_postgresql_may_go_and_come_back(postgres: PostgresServer) -> None:
    stores = Stores(postgres.new_database())

    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        for _ in range(2):
            postgres.crash()
            try:
                attempts = [
                    store.get("acme", "resp_1"),
                    *(store.begin(response(f"lost{n}")) for n in range(20)),
                    store.renew(),
                    store.sweep(),
                    store.get("acme", "resp_1"),
                ]
                told = await asyncio.wait_for(asyncio.gather(*attempts, return_exceptions=True), 30)
                assert {type(each) for each in told} == {StoreError}
            finally:
                postgres.start()
            assert await store.get("acme", "resp_1") == response("1")
            assert await store.get("acme", "resp_lost0") is None
            await store.renew()
        await store.finish("acme", "resp_1", "completed", b"record")

    stores.run(scenario)


def test_a_crash_of_postgresql_amid_writes_loses_none_that_was_told(
    postgres: PostgresServer,
) -> None:
    stores = Stores(postgres.new_database())

    async def scenario() -> None:
        store = stores.open(max_count=100_000)
        written: list[str] = []
        failed = asyncio.Event()

        async def write(first: int) -> None:
            n = first
            while not failed.is_set():
                name = f"{first}_{n}"
                try:
                    await store.begin(response(name))
                except StoreError:
                    failed.set()
                else:
                    written.append(f"resp_{name}")
                n += 1

        async def crash() -> None:
            while len(written) < 100:
                await asyncio.sleep(0)
            await asyncio.to_thread(postgres.crash)

        try:
            await asyncio.wait_for(asyncio.gather(*(write(n) for n in range(20)), crash()), 60)
        finally:
            if not postgres.is_running:
                postgres.start()
        assert len(written) >= 100
        for response_id in written:
            assert await store.get("acme", response_id) is not None

    stores.run(scenario)


def test_a_table_that_another_one_locks_does_not_hold_up_for_ever(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 1)
    stores = Stores(postgres.new_database())

    async def scenario() -> None:
        store, other = stores.open(), Database(stores.url)
        gate = Gate(other)
        await gate.closed()
        locked, opened = threading.Event(), threading.Event()

        def lock(connection: Connection) -> None:
            connection.execute(text("LOCK TABLE responses"))
            locked.set()
            assert opened.wait(20)

        holding = asyncio.create_task(other.write(lock))
        await gate.open()
        await asyncio.to_thread(locked.wait, 20)
        await refused_at_once(store)
        opened.set()
        await holding
        await store.begin(response("2"))
        await other.close()

    stores.run(scenario)


async def refused_at_once(store: Store) -> None:
    """Fifty writes together are refused in the time of one or two, not each in its own."""
    writes = [store.begin(response(f"held{n}")) for n in range(50)]
    told = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 10)
    assert {type(each) for each in told} == {StoreError}


# --- SQLite's file held or gone ---


def test_a_file_that_another_one_holds_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.5)
    stores = Stores(f"sqlite:///{tmp_path}/antiphon.db")

    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        holder = sqlite3.connect(tmp_path / "antiphon.db")
        holder.execute("BEGIN IMMEDIATE")
        await refused_at_once(store)
        assert await store.get("acme", "resp_1") == response("1")
        holder.rollback()
        holder.close()
        await store.begin(response("2"))

    stores.run(scenario)


def test_a_short_hold_is_waited_for(tmp_path: Path) -> None:
    stores = Stores(f"sqlite:///{tmp_path}/antiphon.db")

    async def scenario() -> None:
        store = stores.open()
        holder = sqlite3.connect(tmp_path / "antiphon.db")
        holder.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(store.begin(response("1")))
        done, _ = await asyncio.wait([write], timeout=0.1)
        assert not done
        holder.rollback()
        holder.close()
        await write

    stores.run(scenario)


@pytest.mark.parametrize("name", ["data", "data/antiphon.db"], ids=["directory", "file"])
def test_a_file_that_is_gone_is_told_and_found_when_it_is_back(tmp_path: Path, name: str) -> None:
    stores = Stores(f"sqlite:///{tmp_path}/data/antiphon.db")
    taken = tmp_path / name

    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        away = tmp_path / "away"
        os.rename(taken, away)
        for ask in (store.cancellations, store.renew, store.sweep):
            with pytest.raises(StoreError, match="unable to open"):
                await ask()
        os.rename(away, taken)
        assert await store.get("acme", "resp_1") == response("1")
        await store.begin(response("2"))

    stores.run(scenario)


def test_a_file_in_the_place_of_another_is_used_if_it_is_a_store(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    stores = Stores(f"sqlite:///{path}")

    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        for name in ("", "-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        await stores.open().begin(response("2"))
        assert await store.get("acme", "resp_1") is None
        assert await store.get("acme", "resp_2") is not None

    stores.run(scenario)


def test_the_file_grows_no_further_when_as_much_goes_as_comes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "antiphon.db"
    stores = Stores(f"sqlite:///{path}")

    async def scenario() -> None:
        store = stores.open(max_age=100)
        sizes = []
        for turn in range(6):
            record = os.urandom(10_000)
            made = [response(f"{turn}_{n}", created_at=int(stores.now)) for n in range(200)]
            await asyncio.gather(*(store.begin(each) for each in made))
            await asyncio.gather(
                *(store.finish("acme", each.id, "completed", record) for each in made)
            )
            sizes.append(size())
            stores.now += 101
            await store.sweep()
        assert max(sizes) < 1.2 * sizes[0]
        empty = size()
        assert empty < sizes[0] / 5

    def size() -> int:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.stat().st_size

    stores.run(scenario)


def test_a_full_disk_is_told_and_got_over(tmp_path: Path) -> None:
    """SQLite's limit of pages stands for the disk's."""
    stores = Stores(f"sqlite:///{tmp_path}/antiphon.db")

    async def scenario() -> None:
        store = stores.open()
        database = store._database
        await store.begin(response("1"))
        limit = "PRAGMA max_page_count=%d"
        await database.write(lambda c: c.exec_driver_sql(limit % 40).close())
        small = response("small")
        writes = [store.begin(small), store.finish("acme", "resp_1", "completed", b"x" * 500_000)]
        told = await asyncio.gather(*writes, return_exceptions=True)
        assert told[0] is None
        assert isinstance(told[1], StoreError)
        assert "full" in str(told[1])
        assert await store.get("acme", "resp_1") == response("1")
        await database.write(lambda c: c.exec_driver_sql(limit % 100_000).close())
        await store.finish("acme", "resp_1", "completed", b"x" * 500_000)

    stores.run(scenario)


def test_many_items_at_once(url: str) -> None:
    """More than a statement may have parameters."""
    stores = Stores(url)
    items = [(f"msg_{n}", b"{}") for n in range(40_000)]

    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b"{}", items)
        assert await store.add_items("acme", "conv_1", items)
        found = await store.conversation_items("acme", "conv_1")
        assert found is not None
        assert len(found) == len(items)

    stores.run(scenario)

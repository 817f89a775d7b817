"""A database that is worked with from an event loop: reads in threads, writes committed together.

All writes go through one thread. What has come while a transaction ran is committed in the next
one, together: a commit costs the same for one write and for a hundred.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import quote

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DisconnectionError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from frontend.store.schema import VERSION, VERSION_TABLE

T = TypeVar("T")
Work = Callable[[Connection], T]

FILE_NAME = "antiphon.db"
READERS = 4
BUSY_SECONDS = 20
"""How long a write waits for another process's."""
CONNECT_SECONDS = 10
"""How long a connection to PostgreSQL may take, and one be silent before it is asked whether it
still is."""
MAX_TOGETHER = 512
"""Writes of one transaction."""
_MIGRATION_LOCK = 0x616E7469
"""Of PostgreSQL's advisory locks, one that nobody else will take."""


_OUT_OF_REACH = ("08", "57P", "55P03")
"""How those of PostgreSQL's error codes begin that are nobody's own: connection lost, server
stopping, lock not given."""


class StoreError(Exception):
    """The store cannot be reached, or not be worked with."""


def data_directory() -> Path:
    """Where this server keeps its data (`ANTIPHON_DATA` overrides it)."""
    override = os.environ.get("ANTIPHON_DATA")
    return Path(override) if override else platformdirs.user_data_path("antiphon")


def default_url() -> str:
    """A SQLite file in the data directory."""
    return f"sqlite:///{data_directory() / FILE_NAME}"


def checked_url(url: str) -> URL:
    """The URL of a database that can be used. Raises StoreError."""
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        # Neither the URL nor what was made of it is shown: it may have a password in it.
        raise StoreError(
            "it is no database URL: use sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    match found.drivername:
        case "sqlite":
            if not found.database or found.database == ":memory:":
                raise StoreError("a SQLite store needs a file: sqlite:///PATH")
            return found
        case "postgresql" | "postgres":
            return found.set(drivername="postgresql+psycopg")
    raise StoreError(f"{found.drivername!r} is not supported: use sqlite:///PATH or postgresql://")


class Database:
    """An open database whose tables are as they must be.

    Raises StoreError if it cannot be opened. Everything that is run in it raises StoreError.
    """

    def __init__(self, url: str) -> None:
        self._url = checked_url(url)
        self._closed = False
        self._queue: SimpleQueue[tuple[Work[Any], _Waiter] | None] = SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._engine = _make_engine(self._url)
        try:
            migrate(self._engine)
        except BaseException:
            self._engine.dispose()
            raise
        self._writer = threading.Thread(target=self._write_all, name="store-write", daemon=True)
        self._writer.start()

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of SQLite's."""
        return self._engine.dialect.name == "sqlite"

    async def read(self, work: Work[T]) -> T:
        """Run `work` in a thread."""
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, work)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in the next transaction; when this returns, it is committed. It may be run
        twice, if another one's work fails, and is carried out though nobody waits any longer."""
        self._check_open()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop, loop.create_future())
        self._queue.put((work, waiter))
        result: T = await waiter.future
        return result

    async def close(self) -> None:
        """Commit what is queued, and let go of the database."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._writer.join()
        self._readers.shutdown()
        self._engine.dispose()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("it is closed")

    def _read(self, work: Work[T]) -> T:
        try:
            with self._engine.connect() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise _told(error) from error

    def _write_all(self) -> None:
        while (first := self._queue.get()) is not None:
            together = [first]
            last = False
            while len(together) < MAX_TOGETHER and not self._queue.empty():
                entry = self._queue.get()
                if entry is None:
                    last = True
                    break
                together.append(entry)
            self._commit(together)
            if last:
                return

    def _commit(self, entries: "Sequence[tuple[Work[Any], _Waiter]]") -> bool:
        """Commit what can be; whether the database could be reached."""
        try:
            with self._engine.begin() as connection:
                results = [work(connection) for work, _ in entries]
        except Exception as error:
            reached = not _is_out_of_reach(error)
            if reached and len(entries) > 1:
                return self._commit_each(entries)
            _fail(entries, error)
            return reached
        for (_, waiter), result in zip(entries, results, strict=True):
            waiter.succeed(result)
        return True

    def _commit_each(self, entries: "Sequence[tuple[Work[Any], _Waiter]]") -> bool:
        """Commit each by itself, so that what is wrong with one costs the others nothing."""
        for place, entry in enumerate(entries):
            if not self._commit([entry]):
                # Not a time-out for each of them.
                _fail(entries[place + 1 :], StoreError("it cannot be reached"))
                return False
        return True


class _Waiter:
    """Who waits in an event loop for a write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]") -> None:
        self.future = future
        self._loop = loop

    def succeed(self, result: object) -> None:
        self._wake(lambda: self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._wake(lambda: self.future.set_exception(error))

    def _wake(self, settle: Callable[[], None]) -> None:
        def unless_gone() -> None:
            if not self.future.done():
                settle()

        # A closed loop has nobody who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(unless_gone)


def _fail(entries: Sequence[tuple[Work[Any], _Waiter]], error: Exception) -> None:
    told = _told(error) if isinstance(error, SQLAlchemyError) else error
    for _, waiter in entries:
        waiter.fail(told)


def migrate(engine: Engine) -> None:
    """Bring the tables up to date; of several processes that try at once, one does it. Raises
    StoreError."""
    try:
        with engine.connect() as connection:
            if _is_current(connection):
                return
        from frontend.store.upgrade import VersionError, upgrade

        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                lock = text("SELECT pg_advisory_xact_lock(:lock)")
                connection.execute(lock, {"lock": _MIGRATION_LOCK})
            try:
                upgrade(connection)
            except VersionError as error:
                raise StoreError(
                    f"its tables are of another version of this server: {error}"
                ) from error
            connection.commit()
    except SQLAlchemyError as error:
        raise _told(error) from error


def _is_current(connection: Connection) -> bool:
    """Whether there is nothing to be done."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return False
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
    return found.scalar() == VERSION


def _make_engine(url: URL) -> Engine:
    return _sqlite_engine(url) if url.drivername == "sqlite" else _postgresql_engine(url)


def _sqlite_engine(url: URL) -> Engine:
    assert url.database is not None
    path = Path(url.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error.strerror}") from error

    def connect() -> sqlite3.Connection:
        # A file that is gone is not made anew, without its tables.
        uri = f"file:{quote(url.database or '')}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)

    engine = create_engine(url, creator=connect, pool_size=READERS + 1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for pragma in (
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "connect")
    def note_file(_: Any, record: ConnectionPoolEntry) -> None:
        record.info["file"] = _file_at(path)

    @event.listens_for(engine, "checkout")
    def check_file(_: Any, record: ConnectionPoolEntry, __: object) -> None:
        # SQLite writes on into a file that has been deleted, and nobody notices.
        if _file_at(path) != record.info["file"]:
            raise DisconnectionError

    return engine


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file is there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _postgresql_engine(url: URL) -> Engine:
    seconds = {"connect_timeout": CONNECT_SECONDS, "keepalives_idle": CONNECT_SECONDS}
    seconds |= {"keepalives_interval": 5, "keepalives_count": 3}
    engine = create_engine(
        url,
        pool_size=READERS + 1,
        max_overflow=0,
        pool_pre_ping=True,
        connect_args={name: n for name, n in seconds.items() if name not in url.query},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        connection.commit()

    return engine


def _is_out_of_reach(error: Exception) -> bool:
    """Whether any other write would have failed as well, and may have waited as long."""
    if not isinstance(error, OperationalError):
        return False
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN)
    state: str | None = getattr(cause, "sqlstate", None)
    return state is None or state.startswith(_OUT_OF_REACH)


def _told(error: SQLAlchemyError) -> StoreError:
    """What went wrong, in the database's own words, on one line."""
    return StoreError(" ".join(str(getattr(error, "orig", None) or error).split()))

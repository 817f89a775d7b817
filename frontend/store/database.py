"""A database that is worked with from an event loop: reads in threads, writes committed together.

All writes go through one thread. What has come while a transaction ran is committed in the next
one, together: a commit costs the same for one write and for a hundred.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import platformdirs
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

T = TypeVar("T")
Work = Callable[[Connection], T]

FILE_NAME = "antiphon.db"
READERS = 4
BUSY_SECONDS = 20
"""How long a write waits for another process's."""
MAX_TOGETHER = 512
"""Writes of one transaction."""
_MIGRATION_LOCK = 0x616E7469
"""Of PostgreSQL's advisory locks, one that nobody else will take."""
_MIGRATIONS = Path(__file__).parent / "migrations"


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
    except ArgumentError as error:
        raise StoreError(f"{url!r} is no database URL") from error
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
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, work)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in the next transaction; when this returns, it is committed. It may be run
        twice, if another one's work fails, and is carried out though nobody waits any longer."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop, loop.create_future())
        self._queue.put((work, waiter))
        result: T = await waiter.future
        return result

    async def close(self) -> None:
        """Commit what is queued, and let go of the database."""
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join)
        self._readers.shutdown()
        self._engine.dispose()

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

    def _commit(self, entries: list[tuple[Work[Any], "_Waiter"]]) -> None:
        try:
            with self._engine.begin() as connection:
                results = [work(connection) for work, _ in entries]
        except SQLAlchemyError as error:
            if len(entries) == 1:
                entries[0][1].fail(_told(error))
            else:
                for entry in entries:
                    self._commit([entry])
        except Exception as error:
            for _, waiter in entries:
                waiter.fail(error)
        else:
            for (_, waiter), result in zip(entries, results, strict=True):
                waiter.succeed(result)


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

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(unless_gone)


def migrate(engine: Engine) -> None:
    """Bring the tables up to date; of several processes that try at once, one does it. Raises
    StoreError."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                lock = text("SELECT pg_advisory_xact_lock(:lock)")
                connection.execute(lock, {"lock": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
    except SQLAlchemyError as error:
        raise _told(error) from error
    except CommandError as error:
        raise StoreError(f"its tables are of another version of this server: {error}") from error


def _make_engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_size=READERS + 1, max_overflow=0, pool_pre_ping=True)
    assert url.database is not None
    path = Path(url.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)  # what people have said is for nobody else to read
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    engine = create_engine(
        url,
        pool_size=READERS + 1,
        max_overflow=0,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
    )

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

    return engine


def _told(error: SQLAlchemyError) -> StoreError:
    """What went wrong, in the database's own words, on one line."""
    return StoreError(" ".join(str(getattr(error, "orig", None) or error).split()))

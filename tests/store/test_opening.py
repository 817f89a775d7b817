"""Databases that are opened: new, by many at once, of another version, broken, not there."""

import multiprocessing
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from frontend.store import Store, StoreError
from frontend.store.database import Database, checked_url
from frontend.store.schema import VERSION, VERSION_TABLE, metadata

SECRET = "s3cret"


def open_and_close(url: str) -> None:
    """Open a store as a server does, and let go of it without a word."""
    Store(url, max_age=1.0, max_count=1)


def run(url: str, statement: str) -> None:
    engine = create_engine(checked_url(url))
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def refusal(url: str) -> str:
    with pytest.raises(StoreError) as caught:
        Database(url)
    told = str(caught.value)
    assert SECRET not in told
    assert "\n" not in told
    assert told
    return told


def test_the_migrations_make_the_tables_of_the_schema(url: str) -> None:
    open_and_close(url)
    engine = create_engine(checked_url(url))
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == VERSION
        assert set(metadata.tables) <= set(inspect(connection).get_table_names())
    engine.dispose()


def test_many_processes_open_a_new_database_at_once(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=open_and_close, args=(url,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    open_and_close(url)


def test_a_database_of_a_newer_version_is_left_alone(url: str) -> None:
    open_and_close(url)
    run(url, "UPDATE antiphon_schema SET version_num = '9999'")
    assert "another version" in refusal(url)
    run(url, "UPDATE antiphon_schema SET version_num = '0001'")
    open_and_close(url)


def test_another_programs_database_of_the_same_tables_is_refused(url: str) -> None:
    run(url, "CREATE TABLE responses (n INTEGER)")
    assert "already exists" in refusal(url)


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "a store#.db"
    before = os.umask(0)
    try:
        open_and_close(f"sqlite:///{path}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {each.name for each in path.parent.iterdir()} <= {
        path.name + end for end in ("", "-wal", "-shm")
    }


def test_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    path.write_bytes(b"rubbish" * 1000)
    assert "not a database" in refusal(f"sqlite:///{path}")
    assert path.read_bytes() == b"rubbish" * 1000


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    open_and_close(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    os.truncate(path, 5000)
    assert "malformed" in refusal(f"sqlite:///{path}")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot make" in refusal(f"sqlite:///{tmp_path}/file/antiphon.db")
    assert "cannot make" in refusal("sqlite:////proc/antiphon/antiphon.db")
    assert "unable to open" in refusal(f"sqlite:///{tmp_path}")


def test_a_directory_without_room_for_a_file() -> None:
    """The superuser may write wherever the mode forbids it; nobody may in /proc."""
    assert "cannot make" in refusal("sqlite:////proc/antiphon.db")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://antiphon:{SECRET}@localhost:1/antiphon",
        f"postgresql://antiphon:{SECRET}@/antiphon?host=/nonexistent",
        f"postgresql://antiphon@/antiphon?host=/nonexistent&password={SECRET}",
        f"postgresql://antiphon:{SECRET}@host/antiphon?no_such_option=1",
    ],
)
def test_a_postgresql_that_is_not_there(url: str) -> None:
    refusal(url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "no database URL"),
        ("antiphon.db", "no database URL"),
        (f"postgresql//antiphon:{SECRET}@host/antiphon", "no database URL"),
        (f"postgresql://antiphon:{SECRET}@host:port/antiphon", "no database URL"),
        (f"mysql://antiphon:{SECRET}@host/antiphon", "not supported"),
        (f"postgresql+asyncpg://antiphon:{SECRET}@host/antiphon", "not supported"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite+aiosqlite:///antiphon.db", "not supported"),
    ],
)
def test_a_url_that_is_none_of_a_store(url: str, told: str) -> None:
    assert told in refusal(url)

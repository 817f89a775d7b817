"""A PostgreSQL server for tests: on a socket in a directory of its own, ended by its id."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg

USER = "antiphon"
START_SECONDS = 60.0
STOP_SECONDS = 20.0


def find_binaries() -> Path | None:
    """The directory of PostgreSQL's programs, the newest where Debian has several."""
    found = shutil.which("postgres")
    if found is not None and Path(found).resolve().with_name("initdb").exists():
        return Path(found).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in installed), key=_version, default=None)


def _version(binaries: Path) -> float:
    return float(binaries.parent.name)


def _identity() -> dict[str, Any]:
    """Who PostgreSQL is to run as: it refuses root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer:
    """A cluster in `directory`, which other users must be able to reach."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self._binaries = binaries
        self._directory = directory
        self._identity = _identity()
        self._databases = 0
        self._process: subprocess.Popen[str] | None = None
        if self._identity:
            os.chown(directory, self._identity["user"], self._identity["group"])
        options = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8"]
        command = [str(binaries / "initdb"), *options, "--no-locale", "-D", str(directory / "data")]
        subprocess.run(
            command, cwd=directory, check=True, stdout=subprocess.DEVNULL, **self._identity
        )

    def start(self) -> Self:
        """Start it, and wait until it takes connections."""
        settings = ["listen_addresses=", "fsync=off", "max_connections=200", "log_timezone=UTC"]
        command = [str(self._binaries / "postgres"), "-D", str(self._directory / "data")]
        command += ["-k", str(self._directory), *[word for s in settings for word in ("-c", s)]]
        self._process = subprocess.Popen(
            command, cwd=self._directory, stderr=subprocess.PIPE, text=True, **self._identity
        )
        ready = threading.Event()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self._process, ready))
        self._reader.start()
        assert ready.wait(START_SECONDS), self._lines
        assert self._process.poll() is None, self._lines
        return self

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._lines.append(line)
                if "ready to accept connections" in line:
                    ready.set()
        ready.set()

    def crash(self) -> None:
        """End it at once, with its connections; what it has committed is still there."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def url(self, database: str) -> str:
        """The URL of a database of it."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self._directory))}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextmanager
def running_postgres(binaries: Path) -> Iterator[PostgresServer]:
    """A running server, which is gone with its files at the end."""
    # Not pytest's directory: that is for its user alone, and too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="antiphon-postgres-") as directory:
        server = PostgresServer(binaries, Path(directory)).start()
        try:
            yield server
        finally:
            if server.is_running:
                server.crash()  # nothing of it is wanted any more

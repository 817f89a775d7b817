"""Real servers for tests: `antiphon serve` in a process of its own, on a free port, ended by id."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psutil

START_SECONDS = 120.0
STOP_SECONDS = 20.0


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running `antiphon serve`; `log` is what its processes have printed so far."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._lines: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-m", "frontend.cli", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._lines.append(line)
                if "is ready" in line:
                    self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> Self:
        """Wait until it says that it is ready; fail if it ends instead."""
        assert self._ready.wait(START_SECONDS), self.log
        assert self.process.poll() is None, self.log
        return self

    def wait_until_ended(self) -> int:
        """Wait for it to end by itself; its exit status."""
        status = self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        return status

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        return self.request("GET", path)

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Status and decoded JSON body of a POST."""
        status, text = self.request("POST", path, json.dumps(body).encode(), **headers)
        return status, json.loads(text)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        """Status and body of any request."""
        asked = urllib.request.Request(self.url + path, method=method, data=body)
        asked.add_header("content-type", "application/json")
        for name, value in headers.items():
            asked.add_header(name, value)
        try:
            with urllib.request.urlopen(asked, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """All samples of /metrics, by name with labels."""
        samples = re.findall(r"^(antiphon\S+) (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return {name: float(value) for name, value in samples}

    def live(self) -> dict[str, float]:
        """Every gauge of something held for a stream, by name; all are 0 at rest."""
        held = ("streams_live", "engine_running", "engine_waiting", "engine_kept")
        found = {
            name: value for name, value in self.metrics().items() if any(h in name for h in held)
        }
        assert any("worker" in name for name in found), found
        return found

    def wait_until_idle(self) -> None:
        """Wait until the server has noticed that its clients are gone: then nothing is held."""
        self.wait_until(lambda: not any(self.live().values()))

    def wait_until(self, condition: Callable[[], bool], seconds: float = STOP_SECONDS) -> None:
        """Ask the server until it says so; fail if it does not in a while."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{self.metrics()} {self.log}"

    def child(self, *words: str) -> psutil.Process:
        """The one child process whose command line has all `words`."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        running = [c for c in children if c.status() != psutil.STATUS_ZOMBIE]
        found = [c for c in running if all(word in c.cmdline() for word in words)]
        assert len(found) == 1, [c.cmdline() for c in running]
        return found[0]

    def stop(self) -> int:
        """End it as an operator does, by SIGTERM; its exit status. No process is left behind."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        try:
            self.process.terminate()
            return self.wait_until_ended()
        finally:
            _, alive = psutil.wait_procs(children, timeout=5)
            for process in alive:
                process.kill()
            self.process.kill()
            assert not alive, f"left behind: {alive}"


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """A ready server; at the end it is stopped and has left no process behind."""
    server = Server(arguments)
    try:
        yield server.wait_until_ready()
    finally:
        if server.process.poll() is None:
            server.stop()

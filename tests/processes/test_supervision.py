"""Processes that die, start and stop: what clients see, and that nothing is left behind."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.processes.scripts import Seed
from tests.processes.test_generation import (
    RESPONSES,
    connect,
    leave,
    responses_body,
)
from tests.servers import Server, running


@pytest.fixture
def fresh(scripts: Path) -> Iterator[Server]:
    """A server of its own, with two workers."""
    arguments = ["--script", str(scripts), "--num-postprocess-workers", "2"]
    arguments += ["--drain-seconds", "1", "--keep-alive-seconds", "1"]
    with running(*arguments, "--served-model-name", "scripted") as server:
        yield server


def rest_of(client: socket.socket) -> str:
    """All that still comes until the reply ends or the server closes the connection."""
    client.settimeout(20)
    received = b""
    with client:
        while not received.endswith(b"0\r\n\r\n") and (piece := client.recv(65536)):
            received += piece
    return received.decode()


def endless(server: Server) -> socket.socket:
    """A client in the middle of an endless stream."""
    client = connect(server, RESPONSES, responses_body(Seed.ENDLESS, stream=True))
    received = b""
    while b"output_text.delta" not in received:
        received += client.recv(65536)
    return client


def numbers(text: str) -> list[int]:
    """The sequence numbers of the events of a stream."""
    found = re.findall(r'"sequence_number":(\d+)}\n\n', text.replace("\r\n", ""))
    return [int(number) for number in found]


@pytest.mark.parametrize("kills", [1, 3])
def test_the_streams_of_killed_workers_go_on_unbroken(scripts: Path, kills: int) -> None:
    arguments = ["--script", str(scripts), "--num-postprocess-workers", "2"]
    with running(*arguments, "--served-model-name", "scripted") as server:
        clients = EndlessClients(server, 6)
        for kill in range(kills):
            moved = server.metrics()["antiphon_frontend_streams_moved_total"]
            server.child("postproc_workers", "--worker", str(kill % 2)).kill()
            server.wait_until(partial(has_moved_more, server, moved))
            server.wait_until(lambda: '"workers":2' in server.get("/health")[1])
        clients.check_unbroken()
        server.wait_until_idle()


class EndlessClients:
    """Clients that read endless streams, all at one pace."""

    def __init__(self, server: Server, count: int) -> None:
        body = responses_body(Seed.ENDLESS, stream=True)
        self._server = server
        self._clients = [connect(server, RESPONSES, body) for _ in range(count)]

    def check_unbroken(self) -> None:
        """Read each stream to a token that is generated from now on, check it, and leave."""
        said = self._server.metrics()["antiphon_engine_generated_tokens_total"]
        # There is at least an event for each token.
        beyond = int(said / len(self._clients)) + 50
        for client in self._clients:
            client.settimeout(20)
            text = ""
            with client:
                while f'"sequence_number":{beyond}}}' not in text:
                    piece = client.recv(1 << 20)
                    assert piece, text[-500:]
                    text += piece.decode()
            found = numbers(text)
            assert found == list(range(len(found)))
            deltas = re.findall(r'"type":"response.output_text.delta".*?"delta":"(.*?)"', text)
            assert set(deltas) == {" word"}


def has_moved_more(server: Server, before: float) -> bool:
    return server.metrics()["antiphon_frontend_streams_moved_total"] > before


def test_an_idle_connection_is_closed_after_the_given_time(fresh: Server) -> None:
    with socket.create_connection(("127.0.0.1", fresh.port), timeout=20) as client:
        asked = time.monotonic()
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        while client.recv(4096):
            pass
        assert 0.9 < time.monotonic() - asked < 20


def test_without_an_engine_the_server_says_so_and_ends_when_told(fresh: Server) -> None:
    fresh.child("engine.scripted").kill()
    fresh.wait_until(lambda: fresh.get("/health")[0] == 503)
    fresh.process.send_signal(signal.SIGINT)
    assert fresh.wait_until_ended() == 0


def test_a_hung_engine_is_replaced(scripts: Path) -> None:
    arguments = ["--script", str(scripts), "--served-model-name", "scripted"]
    with running(*arguments, "--step-timeout", "1") as server:
        hung = server.child("engine.scripted")
        assert server.get("/health") == (200, '{"status":"ok","engine":"up","workers":1}')
        body = responses_body(Seed.FREEZE, stream=True)
        client = connect(server, RESPONSES, body)
        server.wait_until(
            lambda: (
                server.get("/health")
                == (503, '{"status":"engine lost","engine":"lost","workers":1}')
            )
        )
        leave(client, reset=True)
        server.wait_until(lambda: answers(server))
        assert server.child("engine.scripted").pid != hung.pid
        assert "a step has taken more than 1 s" in server.log
        assert "engine ended with status 79; starting it again" in server.log
        assert server.post(RESPONSES, responses_body(Seed.ANSWER))[0] == 200


def answers(server: Server) -> bool:
    try:
        return server.get("/health")[0] == 200
    except OSError:
        return False


def test_an_orderly_end_is_quiet_and_waits_for_no_sluggard(fresh: Server) -> None:
    """One has sent half a request, one reads nothing of an endless stream."""
    half = socket.create_connection(("127.0.0.1", fresh.port))
    half.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    idle = socket.create_connection(("127.0.0.1", fresh.port))
    unread = connect(fresh, RESPONSES, responses_body(Seed.ENDLESS, stream=True))
    fresh.wait_until(lambda: fresh.metrics()["antiphon_frontend_streams_live"] == 1)
    log = fresh.log
    assert fresh.stop() == 0
    assert fresh.log == log
    for client in (half, idle, unread):
        client.close()


def test_a_client_that_leaves_amid_its_request_is_no_error(fresh: Server) -> None:
    log = fresh.log
    for last in (b"", b"Transfer-Encoding: chunked\r\n\r\nrubbish"):
        client = socket.create_connection(("127.0.0.1", fresh.port))
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n"
        client.sendall(head + (last or b"Content-Length: 9\r\n\r\n{"))
        leave(client, reset=not last)
    for _ in range(2):
        assert fresh.post(RESPONSES, responses_body(Seed.ANSWER))[0] == 200
    assert "Traceback" not in fresh.log.removeprefix(log)


def test_an_orderly_end_tells_the_clients(fresh: Server) -> None:
    client = endless(fresh)
    fresh.process.send_signal(signal.SIGTERM)
    rest = rest_of(client)
    assert "response.failed" in rest
    assert "shutting down" in rest
    assert fresh.wait_until_ended() == 0


def test_without_its_run_directory_it_ends_when_a_process_must_start_again(fresh: Server) -> None:
    listen = next(word for word in fresh.child("engine.scripted").cmdline() if "ipc://" in word)
    shutil.rmtree(Path(listen.removeprefix("ipc://")).parent)
    assert fresh.post(RESPONSES, responses_body(Seed.ANSWER))[0] == 200
    fresh.child("postproc_workers", "--worker", "0").kill()
    assert fresh.wait_until_ended() == 1
    assert "does not exist" in fresh.log
    assert "Traceback" not in fresh.log


def test_nothing_outlives_a_killed_supervisor(fresh: Server) -> None:
    children = psutil.Process(fresh.process.pid).children(recursive=True)
    assert len(children) == 4
    fresh.process.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_over_tcp_with_keys(scripts: Path, tmp_path: Path) -> None:
    add = [sys.executable, "-m", "frontend.cli", "keys", "add", "acme"]
    file = tmp_path / "keys.jsonl"
    made = subprocess.run([*add, "--file", str(file)], capture_output=True, text=True, check=True)
    key = made.stdout.strip()
    assert key not in file.read_text()
    arguments = ["--script", str(scripts), "--served-model-name", "scripted", "--ipc", "tcp"]
    with running(*arguments, "--api-keys", str(file)) as server:
        body = responses_body(Seed.ANSWER)
        for headers in ({}, {"authorization": "Bearer wrong"}):
            status, told = server.post(RESPONSES, body, **headers)
            assert (status, told["error"]["code"]) == (401, "invalid_api_key")
        assert server.get("/v1/models")[0] == 401
        assert server.post(RESPONSES, body, authorization=f"Bearer {key}")[0] == 200
        assert server.get("/health")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent"], "nonexistent"),
        (["--num-postprocess-workers", "-1"], "greater than or equal to 0"),
        (["--script", "/nonexistent"], "nonexistent"),
    ],
)
def test_what_cannot_start_says_why_and_ends(arguments: list[str], message: str) -> None:
    server = Server(arguments)
    assert server.wait_until_ended() != 0
    assert message in server.log.replace("\n", "")


def test_a_port_that_is_taken_ends_the_start(scripts: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["--script", str(scripts), "--served-model-name", "scripted"]
        server = Server([*arguments, "--port", str(taken.getsockname()[1])])
        assert server.wait_until_ended() == 1
    assert "already in use" in server.log
    assert "is ready" not in server.log
    assert "is closed" not in server.log


def test_a_damaged_script_or_key_file_says_why_and_ends(scripts: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("rubbish")
    for arguments in (
        ["--script", str(damaged)],
        ["--script", str(scripts), "--api-keys", str(damaged)],
    ):
        server = Server(arguments)
        assert server.wait_until_ended() == 1
        assert "damaged.json" in server.log

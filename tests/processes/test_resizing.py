"""The pool is resized while it serves: no stream is lost, and no process is left behind."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.scripts import Seed
from tests.processes.test_generation import RESPONSES, responses_body
from tests.processes.test_supervision import EndlessClients
from tests.servers import Server, running

WORKERS = "/admin/postprocess-workers"


@pytest.fixture
def resizable(scripts: Path) -> Iterator[Server]:
    arguments = ["--script", str(scripts), "--num-postprocess-workers", "2"]
    with running(*arguments, "--served-model-name", "scripted") as server:
        yield server


def workers(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(server.get(WORKERS)[1])["workers"]
    return found


def test_streams_go_on_unbroken_while_the_pool_is_resized(resizable: Server) -> None:
    server = resizable
    clients = EndlessClients(server, 8)
    for change, left in (
        ({"workers": 4}, [0, 1, 2, 3]),
        ({"workers": 1}, [0]),
        ({"workers": 3}, [0, 1, 2]),
        ({"drain": 0}, [1, 2]),
        ({"workers": 3}, [0, 1, 2]),
    ):
        status, told = server.post(WORKERS, change)
        assert status == 200, told
        assert [worker["worker"] for worker in told["workers"]] == left
        assert all(worker["up"] for worker in told["workers"])
    clients.check_unbroken()
    assert server.metrics()["antiphon_frontend_streams_moved_total"] >= 12
    server.wait_until_idle()


def test_a_restarted_frontend_finds_the_workers_that_there_are(resizable: Server) -> None:
    server = resizable
    assert server.post(WORKERS, {"workers": 3})[0] == 200
    assert server.post(WORKERS, {"drain": 0})[0] == 200
    server.child("frontend.server").kill()
    server.wait_until(lambda: answers(server) and len(workers(server)) == 2)
    assert [worker["worker"] for worker in workers(server)] == [1, 2]
    server.wait_until(lambda: all(worker["up"] for worker in workers(server)))
    assert server.post(RESPONSES, responses_body(Seed.ANSWER))[0] == 200


def answers(server: Server) -> bool:
    try:
        return server.get("/health")[0] == 200
    except OSError:
        return False


REFUSED: list[tuple[object, int]] = [
    ({"workers": 0}, 400),
    ({"workers": 65}, 400),
    ({"workers": "two"}, 400),
    ({}, 400),
    ({"workers": 2, "drain": 1}, 400),
    ({"drain": 7}, 409),
]


def test_what_cannot_be_done_is_refused(resizable: Server) -> None:
    server = resizable
    for body, status in REFUSED:
        assert server.post(WORKERS, body)[0] == status, body
    assert len(workers(server)) == 2
    assert server.post(WORKERS, {"drain": 0})[0] == 200
    status, told = server.post(WORKERS, {"drain": 1})
    assert status == 409
    assert "no other worker" in told["error"]["message"]


def test_the_command_line(resizable: Server) -> None:
    server = resizable

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "frontend.cli", "workers", *words, "--url", server.url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("list").stdout.count("True") == 2
    assert run("set", "3").stdout.count("True") == 3
    assert run("drain", "1").stdout.count("True") == 2
    refused = run("drain", "1")
    assert refused.returncode == 1
    assert "there is no worker 1" in refused.stderr


def test_admin_keys_and_public_addresses(scripts: Path, tmp_path: Path) -> None:
    file = tmp_path / "admin.jsonl"
    add = [sys.executable, "-m", "frontend.cli", "keys", "add", "admin", "--file", str(file)]
    key = subprocess.run(add, capture_output=True, text=True, check=True).stdout.strip()
    arguments = ["--script", str(scripts), "--served-model-name", "scripted"]
    with running(*arguments, "--admin-keys", str(file)) as server:
        assert server.get(WORKERS)[0] == 401
        asked = server.request("GET", WORKERS, authorization=f"Bearer {key}")
        assert asked[0] == 200
    with running(*arguments, "--host", "0.0.0.0", "--num-postprocess-workers", "0") as server:
        assert server.get(WORKERS)[0] == 404
    with running(*arguments, "--num-postprocess-workers", "0") as server:
        assert server.post(WORKERS, {"workers": 2})[0] == 409

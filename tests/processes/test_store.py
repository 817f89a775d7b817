"""Real servers and their stores: shared, killed, away, none."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil

from tests.processes.scripts import Seed
from tests.processes.test_generation import (
    RESPONSES,
    connect,
    events,
    leave,
    responses_body,
    texts,
)
from tests.servers import Server, running

LEASE_SECONDS = 20.0


def arguments(scripts: Path, store: str) -> list[str]:
    given = ["--script", str(scripts), "--served-model-name", "scripted", "--drain-seconds", "1"]
    return [*given, "--store", store]


def begin(server: Server, seed: Seed) -> str:
    """The id of a response that now runs in the background."""
    status, begun = server.post(RESPONSES, responses_body(seed, background=True))
    assert (status, begun["status"]) == (200, "in_progress")
    return str(begun["id"])


def read(server: Server, response_id: str) -> dict[str, Any]:
    status, text = server.get(f"{RESPONSES}/{response_id}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def has_ended(server: Server, response_id: str) -> bool:
    try:
        return bool(read(server, response_id)["status"] != "in_progress")
    except OSError:  # it is just starting again
        return False


def test_what_two_servers_share(scripts: Path, tmp_path: Path) -> None:
    """A response of one is read, streamed and cancelled through the other."""
    store = f"sqlite:///{tmp_path}/antiphon.db"
    with running(*arguments(scripts, store)) as one, running(*arguments(scripts, store)) as other:
        late = begin(one, Seed.LATE)
        assert read(other, late)["status"] == "in_progress"
        status, text = other.get(f"{RESPONSES}/{late}?stream=true")
        told = events(text)
        assert (status, told[-1]["type"]) == (200, "response.completed")
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert told[-1]["response"] == read(one, late) == read(other, late)
        again = responses_body(Seed.ANSWER, previous_response_id=late)
        assert texts(other.post(RESPONSES, again)[1])[-1] == "Hello there, friend."
        endless = begin(one, Seed.ENDLESS)
        assert other.post(f"{RESPONSES}/{endless}/cancel", {})[0] == 200
        one.wait_until(lambda: has_ended(one, endless))
        assert read(other, endless)["status"] == read(one, endless)["status"] == "cancelled"
        one.wait_until_idle()
        assert other.request("DELETE", f"{RESPONSES}/{late}")[0] == 200
        assert one.get(f"{RESPONSES}/{late}")[0] == 404


def test_what_a_killed_process_ran_has_failed(scripts: Path, tmp_path: Path) -> None:
    """The frontend of one server is killed and starts again, the other is killed as a whole; what
    each ran, in the background or for a client, is told by the one that is left."""
    store = f"sqlite:///{tmp_path}/antiphon.db"
    killed = Server(arguments(scripts, store))
    with running(*arguments(scripts, store)) as server:
        killed.wait_until_ready()
        begun = [begin(each, Seed.ENDLESS) for each in (server, killed)]
        clients = [
            connect(each, RESPONSES, responses_body(Seed.ENDLESS, stream=True))
            for each in (server, killed)
        ]
        for client in clients:
            received = b""
            while b"output_text.delta" not in received:
                received += client.recv(65536)
            begun.append("resp_" + received.decode().split('"id":"resp_')[1].split('"')[0])
        whole = psutil.Process(killed.process.pid)
        children = whole.children(recursive=True)
        for process in (server.child("frontend.server"), whole, *children):
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(children, timeout=20)
        killed.wait_until_ended()
        for client in clients:
            leave(client, reset=True)
        server.wait_until(
            lambda: all(has_ended(server, each) for each in begun), LEASE_SECONDS + 30
        )
        for each in begun:
            found = read(server, each)
            assert found["status"] == "failed"
            assert "the server stopped" in found["error"]["message"]
        assert server.post(f"{RESPONSES}/{begun[0]}/cancel", {})[1]["status"] == "failed"
        status, text = server.get(f"{RESPONSES}/{begun[1]}?stream=true")
        assert (status, events(text)[-1]["type"]) == (200, "response.failed")
        server.wait_until_idle()


def test_a_store_that_is_away_costs_no_answer(scripts: Path, tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    with running(*arguments(scripts, f"sqlite:///{path}")) as server:
        before = server.post(RESPONSES, responses_body(Seed.ANSWER))[1]["id"]
        server.wait_until(lambda: server.get(f"{RESPONSES}/{before}")[0] == 200)
        os.rename(path, tmp_path / "away")
        status, answer = server.post(RESPONSES, responses_body(Seed.ANSWER))
        assert status == 200
        assert texts(answer)[-1] == "Hello there, friend."
        server.wait_until(lambda: server.metrics()["antiphon_store_errors_total"] >= 1)
        assert f"response {answer['id']} is not stored" in server.log
        status, text = server.get(f"{RESPONSES}/{before}")
        assert (status, "store of responses" in text) == (503, True)
        again = responses_body(Seed.ANSWER, previous_response_id=before)
        assert server.post(RESPONSES, again)[0] == 503
        assert "Traceback" not in server.log.split("is not stored")[0]
        status, refused = server.post(RESPONSES, responses_body(Seed.ANSWER, background=True))
        assert status >= 500
        assert "stored" in refused["error"]["message"]
        os.rename(tmp_path / "away", path)
        assert read(server, before)["status"] == "completed"
        after = begin(server, Seed.ANSWER)
        server.wait_until(lambda: has_ended(server, after))
        assert read(server, after)["status"] == "completed"
        server.wait_until_idle()


def test_without_a_store(scripts: Path) -> None:
    with running(*arguments(scripts, "none")) as server:
        status, answer = server.post(RESPONSES, responses_body(Seed.ANSWER))
        assert (status, answer["store"]) == (200, False)
        reference = {"type": "item_reference", "id": answer["output"][0]["id"]}
        for param, member in (
            ("background", {"background": True}),
            ("previous_response_id", {"previous_response_id": answer["id"]}),
            ("conversation", {"conversation": "conv_1"}),
            ("input[0].id", {"input": [reference]}),
        ):
            status, refused = server.post(RESPONSES, responses_body(Seed.ANSWER, **member))
            assert (status, refused["error"]["param"]) == (400, param)
            assert "--store none" in refused["error"]["message"]
        assert server.get(f"{RESPONSES}/{answer['id']}")[0] in (400, 404)


def test_a_store_that_cannot_be_opened_ends_the_start(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "antiphon.db").write_bytes(b"rubbish" * 1000)
    server = Server(arguments(scripts, f"sqlite:///{tmp_path}/antiphon.db"))
    assert server.wait_until_ended() == 1
    assert "the store cannot be opened" in server.log
    assert "Traceback" not in server.log

"""Every ending of a stream: right after it, nothing is held for it anywhere.

| ending | test |
| --- | --- |
| 1 the final token | here: what_ends_by_itself |
| 2 a stop string, the token limit, a context-length end | here: what_ends_by_itself |
| 3 an executor's error, before, after and with tokens | here: what_ends_by_itself; |
| | frontend/test_generation_response.py: an_executors_error |
| 4 an exception in post-processing | frontend/test_generation_response.py: |
| | an_exception_in_post_processing, what_cannot_be_encoded_is_an_http_error |
| 5 the client leaves, under ASGI 2.3 and 2.4 | frontend/test_generation_response.py: |
| | a_client_that_leaves |
| 5 ... over a socket, with reset and close | test_generation.py: |
| | a_client_that_leaves_frees_everything, a_client_that_leaves_at_once |
| 5 ... with half-close | here: a_client_that_closes_its_half |
| 5 ... through a proxy that stops reading | frontend/test_generation_response.py: |
| | a_proxy_that_stops_reading |
| 6 a deadline | here: the_deadline |
| 6 a client that reads too slowly | frontend/test_generation_response.py: |
| | a_client_that_lags_too_far; frontend/test_connection.py: a_client_that_never_reads_is_given_up |
| 7 the frontend is killed | here: a_killed_frontend; the simulation |
| 8 the engine is killed | here: a_killed_engine; the simulation |
| 9 a worker is killed | here: a_killed_worker; test_supervision.py: |
| | the_streams_of_killed_workers_go_on_unbroken; the simulation, |
| | with streams that kill workers themselves |
| 10 an orderly shutdown | here: a_shutdown_amid_a_hundred_streams, the_second_signal |

The simulation is simulation/test_simulation.py. What the frontend tells its peers at each of these
events is in frontend/test_streams.py.
"""

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.scripts import Seed
from tests.processes.test_generation import BODIES, BOTH, CHAT, RESPONSES, connect, events
from tests.processes.test_supervision import answers, rest_of
from tests.servers import Server, running

CONTEXT_LENGTH = 1000
DEADLINE_SECONDS = 4
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
ERROR = "the executor failed"


@pytest.fixture(scope="module", params=[0, 1, 3], ids=lambda n: f"workers-{n}")
def server(scripts: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    deadline = ["--max-stream-seconds", str(DEADLINE_SECONDS)]
    with running(*arguments(scripts, request.param, *deadline)) as server:
        yield server


def arguments(scripts: Path, workers: int, *more: str) -> list[str]:
    return [
        *("--script", str(scripts), "--served-model-name", "scripted"),
        *("--num-postprocess-workers", str(workers)),
        *("--context-length", str(CONTEXT_LENGTH)),
        *more,
    ]


def outcome(server: Server, path: str, body: dict[str, Any]) -> str | None:
    """Runs a request to its end: the error's message, or what a client is told of its end."""
    status, text = server.request("POST", path, json.dumps(body).encode())
    if body["stream"]:
        assert status == 200
        return ending(path, events(text)[-1])
    return ending(path, json.loads(text))


def ending(path: str, last: dict[str, Any]) -> str | None:
    """How the last event of a stream, or an unstreamed reply, says that it ended."""
    response = last.get("response", last)
    if response.get("error"):
        message: str = response["error"]["message"]
        return message
    if path == CHAT:
        reason: str = last["choices"][0]["finish_reason"]
        return reason
    details = response.get("incomplete_details")
    return "stop" if details is None else "length"


ENDINGS: list[tuple[Seed, dict[str, Any], str]] = [
    (Seed.ANSWER, {}, "stop"),
    (Seed.ALL_AT_ONCE, {}, "stop"),
    (Seed.ENDLESS, {"stop": ["word word word"]}, "stop"),
    (Seed.ANSWER, {"limit": 5}, "length"),
    (Seed.LONG, {}, "length"),
    (Seed.ERROR_AT_ONCE, {}, ERROR),
    (Seed.ERROR_LATER, {}, ERROR),
    (Seed.ERROR_WITH_TOKENS, {}, ERROR),
]


@pytest.mark.parametrize(("seed", "members", "told"), ENDINGS)
@STREAMED
@BOTH
def test_what_ends_by_itself(
    server: Server, path: str, stream: bool, seed: Seed, members: dict[str, Any], told: str
) -> None:
    if "limit" in members:
        limit = "max_output_tokens" if path == RESPONSES else "max_completion_tokens"
        members = {limit: members["limit"]}
    assert outcome(server, path, BODIES[path](seed, stream=stream, **members)) == told
    assert not any(server.live().values())


@pytest.mark.parametrize("seed", [Seed.ENDLESS, Seed.SILENT])
@STREAMED
@BOTH
def test_a_client_that_closes_its_half(server: Server, path: str, stream: bool, seed: Seed) -> None:
    aborted = released(server, "abort")
    client = connect(server, path, BODIES[path](seed, stream=stream))
    if stream:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    else:
        server.wait_until(lambda: any(server.live().values()))
    client.shutdown(socket.SHUT_WR)
    rest_of(client)
    server.wait_until_idle()
    assert released(server, "abort") == aborted + 1


def released(server: Server, reason: str) -> float:
    """How many streams the workers have released for this reason."""
    metrics = server.metrics()
    return sum(v for k, v in metrics.items() if "streams_released" in k and f'"{reason}"' in k)


def all_at_once(
    executor: ThreadPoolExecutor, server: Server, seed: Seed, times: int = 1
) -> list["Future[str | None]"]:
    """Starts requests of each kind; their outcomes."""
    return [
        executor.submit(outcome, server, path, BODIES[path](seed, stream=stream))
        for path in BODIES
        for stream in (True, False)
        for _ in range(times)
    ]


def test_the_deadline(server: Server) -> None:
    with ThreadPoolExecutor() as executor:
        told = all_at_once(executor, server, Seed.SILENT)
        late = f"the request took longer than {DEADLINE_SECONDS} seconds"
        assert [future.result() for future in told] == [late] * 4
    assert not any(server.live().values())


def test_a_killed_engine(server: Server) -> None:
    """What had not begun is asked again, the others end with an error within a second."""
    begun = [connect(server, path, BODIES[path](Seed.SILENT, stream=True)) for path in BODIES]
    for client in begun:
        read_until(client, b"The")
    with ThreadPoolExecutor() as executor:
        late = all_at_once(executor, server, Seed.LATE)
        server.wait_until(lambda: server.metrics()["antiphon_engine_running"] == 6)
        server.child("engine.scripted").kill()
        killed = time.monotonic()
        for client in begun:
            assert "the engine was lost" in rest_of(client)
        assert time.monotonic() - killed < 1
        assert [future.result() for future in late] == ["stop"] * 4
    assert not any(server.live().values())


@pytest.mark.parametrize("server", [1, 3], indirect=True)
def test_a_killed_worker(server: Server) -> None:
    """Whatever had come of an answer, it goes on to its end, elsewhere or on the next worker."""
    moved = server.metrics()["antiphon_frontend_streams_moved_total"]
    with ThreadPoolExecutor() as executor:
        late = all_at_once(executor, server, Seed.LATE)
        server.wait_until(lambda: server.metrics()["antiphon_engine_running"] == 4)
        server.child("postproc_workers", "--worker", "0").kill()
        assert [future.result() for future in late] == ["stop"] * 4
    assert server.metrics()["antiphon_frontend_streams_moved_total"] > moved
    assert not any(server.live().values())


def test_a_killed_frontend(server: Server) -> None:
    """Its clients are cut off; its workers and the engine let go of all that it had."""
    clients = [connect(server, path, BODIES[path](Seed.SILENT, stream=True)) for path in BODIES]
    for client in clients:
        read_until(client, b"The")
    inline = len(psutil.Process(server.process.pid).children()) == 2
    lost = released(server, "owner_lost")
    server.child("frontend.server").kill()
    for client in clients:
        assert "response.completed" not in rest_of(client)
    server.wait_until(lambda: answers(server))
    server.wait_until(lambda: released(server, "owner_lost") == (0 if inline else lost + 2))
    server.wait_until_idle()
    assert outcome(server, CHAT, BODIES[CHAT](Seed.ANSWER, stream=False)) == "stop"


def read_until(client: socket.socket, text: bytes) -> None:
    received = b""
    while text not in received:
        piece = client.recv(65536)
        assert piece, received
        received += piece


@pytest.mark.parametrize("workers", [0, 3])
def test_a_shutdown_amid_a_hundred_streams(scripts: Path, workers: int) -> None:
    """Those that end in time are whole, the others are told, and nothing is left running."""
    with (
        running(*arguments(scripts, workers, "--drain-seconds", "2")) as server,
        ThreadPoolExecutor(100) as executor,
    ):
        silent = all_at_once(executor, server, Seed.SILENT, times=12)
        server.wait_until(lambda: opened(server) == 48)
        late = all_at_once(executor, server, Seed.LATE, times=13)
        server.wait_until(lambda: opened(server) == 100)
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        assert [future.result() for future in late] == ["stop"] * 52
        assert [future.result() for future in silent] == ["the server is shutting down"] * 48
        assert server.wait_until_ended() == 0
        assert psutil.wait_procs(children, timeout=5)[1] == []


def opened(server: Server) -> float:
    return sum(v for k, v in server.metrics().items() if "streams_opened" in k)


def test_the_second_signal_ends_at_once(scripts: Path) -> None:
    with running(*arguments(scripts, 1, "--drain-seconds", "1000")) as server:
        client = connect(server, RESPONSES, BODIES[RESPONSES](Seed.SILENT, stream=True))
        read_until(client, b"The")
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: server.get("/health")[0] == 503)
        server.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        server.wait_until_ended()
        assert time.monotonic() - asked < 2
        assert psutil.wait_procs(children, timeout=5)[1] == []
        assert "response.failed" not in rest_of(client)

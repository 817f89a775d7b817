"""Engine processes as the supervisor starts them: by command line, ended by signal or by stdin."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipc.security import CurveKey
from tests.engine.builders import make_request
from tests.engine.client import Client

SECONDS = 30


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    path = tmp_path / "scripts.json"
    path.write_text(json.dumps({"scripts": [{"tokens": [10, 11], "then": "hang"}]}))
    return path


@contextmanager
def started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A process `python -m ...`, which has to have ended by itself by the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
            process.wait(SECONDS)
        finally:
            process.kill()


def test_sigterm_ends_in_order(address: str, scripts: Path) -> None:
    options = ("--listen", address, "--scripts", str(scripts))
    with started("engine.scripted", *options) as process, Client(address) as client:
        client.send(make_request(1, max_tokens=9))
        client.hear_steps(2)
        process.send_signal(signal.SIGTERM)
        assert client.hear_end(1) == ([10, 11], "overloaded")
        assert process.wait(SECONDS) == 0


def test_the_end_of_stdin_ends_it(address: str, scripts: Path) -> None:
    options = ("--listen", address, "--scripts", str(scripts), "--watch-parent")
    with started("engine.scripted", *options) as process, Client(address):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECONDS) == 0


def test_a_model_generates(address: str, checkpoint: Path) -> None:
    """Same seed, same tokens; another request's error is its own; greedy needs no seed."""
    options = ("--listen", address, "--model", str(checkpoint), "--blocks", "40", "--name", "tiny")
    with started("engine", *options) as process, Client(address) as client:
        assert (client.info.model, client.info.context_length) == ("tiny", 320)
        for stream_id in (1, 2):
            client.send(make_request(stream_id, max_tokens=30, seed=5))
        client.send(make_request(3, max_tokens=30, seed=6))
        client.send(make_request(4, prompt=[7] * 320))
        client.send(make_request(5, max_tokens=3, temperature=0.0))
        same, end = client.hear_end(1)
        assert (len(same), end) == (30, "length")
        assert client.hear_end(2) == (same, "length")
        assert client.hear_end(3)[0] != same
        assert client.hear_end(4) == ([], "context_length_exceeded")
        assert len(client.hear_end(5)[0]) == 3
        status = client.status()
        assert (status.running, status.waiting, status.free_blocks) == (0, 0, 40)
        assert status.generated_tokens == 93
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        ("engine", ["--model", "nowhere"], "engine: cannot read nowhere/config.json"),
        ("engine.scripted", ["--scripts", "nowhere.json"], "No such file"),
        ("engine", ["--blocks", "0"], "must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_started_says_why(
    module: str, options: list[str], said: str, address: str
) -> None:
    with started(module, "--listen", address, *options) as process:
        assert process.stderr is not None
        assert said in process.stderr.read()
        assert process.wait(SECONDS) != 0


def test_scripts_need_no_torch() -> None:
    code = "import engine.scripted, engine.core, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=SECONDS).returncode == 0


def test_tcp_needs_a_key(scripts: Path, tmp_path: Path) -> None:
    options = ("--listen", "tcp://127.0.0.1:*", "--scripts", str(scripts))
    with started("engine.scripted", *options) as process:
        assert process.stderr is not None
        assert "tcp:// needs a CURVE key" in process.stderr.read()
    key_file = tmp_path / "key"
    CurveKey.generate().save(key_file)
    secured = (*options, "--curve-key", str(key_file), "--log-level", "info")
    with started("engine.scripted", *secured) as process:
        assert process.stderr is not None
        assert "scripted listens at tcp://127.0.0.1:" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0

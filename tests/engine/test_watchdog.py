"""When a step counts as hung, and how a hung engine process ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.watchdog import StepTimer
from ipc.process import EXIT_HUNG
from ipc.security import make_run_directory
from tests.engine.builders import make_request
from tests.engine.client import Client


def test_only_a_step_that_runs_too_long_is_overdue() -> None:
    now = [0.0]
    timer = StepTimer(10.0, lambda: now[0])
    assert not timer.overdue
    now[0] = 100.0
    assert not timer.overdue
    timer.begin()
    now[0] = 110.0
    assert not timer.overdue
    now[0] = 110.1
    assert timer.overdue
    timer.end()
    assert not timer.overdue
    timer.begin()
    assert not timer.overdue


def test_a_hung_step_ends_the_process_and_shows_where(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps({"scripts": [{"tokens": [10], "then": "freeze"}]}))
    address = f"ipc://{make_run_directory()}/engine"
    command = [sys.executable, "-m", "engine.scripted", "--listen", address]
    command += ["--scripts", str(scripts), "--step-timeout", "0.2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            with Client(address) as client:
                client.send(make_request(1))
                _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == EXIT_HUNG
    assert "CRITICAL" in said
    assert "a step has taken more than 0.2 s" in said
    assert "in _advance" in said


@pytest.mark.parametrize("wrong", ["-1", "inf", "nan", "soon"])
def test_step_timeouts_that_are_none(wrong: str) -> None:
    command = [sys.executable, "-m", "engine.scripted", "--listen", "ipc:///x"]
    command += ["--scripts", "x", f"--step-timeout={wrong}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "--step-timeout" in ended.stderr

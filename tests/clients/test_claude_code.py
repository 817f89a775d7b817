"""Claude Code against scripted turns: `claude -p` in a home and a working directory of its own."""

import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import scripts
from tests.clients.conftest import MODEL, NODE
from tests.servers import Server

pytestmark = pytest.mark.clients

SECONDS = 100
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
BINARY = NODE / f"node_modules/@anthropic-ai/claude-code-linux-{MACHINE}/claude"

RunClaude = Callable[..., dict[str, Any]]


@pytest.fixture
def claude(scripted: Server, tmp_path: Path) -> RunClaude:
    """Runs `claude -p` with a prompt; the result that it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()

    def run(prompt: str, *options: str) -> dict[str, Any]:
        ended = subprocess.run(
            [str(BINARY), "-p", prompt, "--output-format", "json", "--model", MODEL, *options],
            cwd=work,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "ANTHROPIC_BASE_URL": scripted.url,
                "ANTHROPIC_AUTH_TOKEN": "none",
                "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    return run


def test_a_turn(claude: RunClaude) -> None:
    found = claude(scripts.HELLO)
    assert (found["result"], found["is_error"]) == (scripts.GREETING, False), found
    assert found["usage"]["output_tokens"] > 0


def test_a_bash_call_goes_round(claude: RunClaude, tmp_path: Path) -> None:
    """The command runs, and its output is in the next request: else no script is found for it."""
    found = claude(scripts.BASH, "--allowedTools", "Bash")
    assert (tmp_path / "work/counted.txt").read_text().strip() == scripts.COMMAND_RESULT
    assert found["result"] == scripts.SHELL_ANSWER, found
    assert found["num_turns"] == 2


def test_a_stream_that_fails_is_tried_again(claude: RunClaude, scripted: Server) -> None:
    before = scripted.metrics()["antiphon_engine_errors_total"]
    assert claude(scripts.failing_once("claude"))["result"] == scripts.GREETING
    assert scripted.metrics()["antiphon_engine_errors_total"] == before + 1

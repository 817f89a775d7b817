"""Codex against scripted turns: `codex exec` in a home and a working directory of its own."""

import json
import os
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
CONFIG = """
model = "{model}"
model_provider = "antiphon"

[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}/v1"
wire_api = "responses"
"""

RunCodex = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def codex(scripted: Server, tmp_path: Path) -> RunCodex:
    """Runs `codex exec` with a prompt; the events that it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=MODEL, url=scripted.url))

    def run(prompt: str, *options: str, **environment: str) -> list[dict[str, Any]]:
        binaries = NODE / "node_modules/.bin"
        # The working directory is the sandbox.
        free = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        ended = subprocess.run(
            [str(binaries / "codex"), "exec", *free, *options, prompt],
            cwd=work,
            env={
                "PATH": f"{binaries.absolute()}:{os.environ['PATH']}",
                "HOME": str(home),
                "CODEX_HOME": str(home),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]

    return run


def said(events: list[dict[str, Any]]) -> list[str]:
    """The texts of the assistant's messages."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def test_a_turn(codex: RunCodex) -> None:
    events = codex(scripts.HELLO)
    assert said(events) == [scripts.GREETING], events
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["input_tokens"] > 1000
    reasoning = [e["item"]["text"] for e in events if e.get("item", {}).get("type") == "reasoning"]
    assert reasoning == [scripts.REASONING], "Codex asks for summaries, and shows them"


def test_a_shell_call_goes_round(codex: RunCodex, tmp_path: Path) -> None:
    """The command runs, and its output is in the next request: else no script is found for it."""
    events = codex(scripts.SHELL)
    assert (tmp_path / "work/counted.txt").read_text().strip() == scripts.COMMAND_RESULT
    assert said(events) == [scripts.PREAMBLE, scripts.SHELL_ANSWER], events


def test_a_stream_that_fails_is_tried_again(codex: RunCodex, scripted: Server) -> None:
    before = scripted.metrics()["antiphon_engine_errors_total"]
    assert said(codex(scripts.failing_once("codex")))[-1] == scripts.GREETING
    assert scripted.metrics()["antiphon_engine_errors_total"] == before + 1


@pytest.mark.parametrize(
    ("provider", "path"), [("lmstudio", "/v1"), ("ollama", "/v1")], ids=["lmstudio", "ollama"]
)
def test_local_providers_find_the_server(
    codex: RunCodex, scripted: Server, provider: str, path: str
) -> None:
    options = ["--oss", "--local-provider", provider, "-m", MODEL]
    events = codex(scripts.HELLO, *options, CODEX_OSS_BASE_URL=scripted.url + path)
    assert said(events) == [scripts.GREETING], events

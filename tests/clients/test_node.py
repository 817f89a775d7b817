"""OpenAI's Node SDK and the AI SDK, each a program under `node/`, against scripted turns."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients import scripts
from tests.clients.conftest import MODEL, NODE
from tests.servers import Server

pytestmark = pytest.mark.clients

SECONDS = 60
CITY = {"city": "Paris", "population": 2_100_000}
PROVIDERS = ("openai", "openai-chat", "open-responses", "openai-compatible", "anthropic")

each_api = pytest.mark.parametrize("api", ["responses", "chat"])
each_provider = pytest.mark.parametrize("provider", PROVIDERS)


def node(program: str, server: Server, *arguments: str) -> dict[str, Any]:
    """What a program prints."""
    command = [str(NODE / "node_modules/.bin/node"), str(NODE / program), server.url, MODEL]
    ended = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=_environment(),
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(Path(NODE))}


@each_api
def test_openai_streams_an_answer(scripted: Server, api: str) -> None:
    found = node("openai.mjs", scripted, api, "text", scripts.HELLO)
    assert found["text"] == scripts.GREETING, found
    assert found["usage"]["total_tokens"] > 0
    if api == "responses":
        assert found["status"] == "completed"
        assert found["ids"] == found["retrieved"]
        assert found["events"][0] == "response.created"
        assert found["events"][-1] == "response.completed"
    else:
        assert found["finish"] == "stop"


@each_api
def test_openai_streams_a_call(scripted: Server, api: str) -> None:
    found = node("openai.mjs", scripted, api, "tools", scripts.WEATHER)
    assert found["text"] == scripts.PREAMBLE, found
    [call] = found["calls"]
    arguments = call["arguments"] if api == "responses" else call["function"]["arguments"]
    assert json.loads(arguments) == {"city": "Paris"}
    assert api == "responses" or found["finish"] == "tool_calls"


@each_api
def test_openai_is_told_of_an_error_in_mid_stream(scripted: Server, api: str) -> None:
    found = node("openai.mjs", scripted, api, "text", scripts.FAILING)
    assert (found["error"], found["message"]) == ("APIError", scripts.FAILURE), found


@each_provider
def test_the_ai_sdk_streams_an_answer(scripted: Server, provider: str) -> None:
    found = node("ai.mjs", scripted, provider, "text", scripts.HELLO, "")
    assert found["text"] == scripts.GREETING, found
    assert found["finish"] == "stop"
    assert found["usage"]["outputTokens"] > 0


@each_provider
def test_the_ai_sdk_goes_through_a_tool_loop(scripted: Server, provider: str) -> None:
    found = node("ai.mjs", scripted, provider, "tools", scripts.WEATHER, scripts.WEATHER_RESULT)
    assert found["called"] == [{"city": "Paris"}], found
    assert (found["text"], found["steps"]) == (scripts.WEATHER_ANSWER, 2)


@each_provider
def test_the_ai_sdk_reads_an_object(scripted: Server, provider: str) -> None:
    found = node("ai.mjs", scripted, provider, "object", scripts.CITY, "")
    assert found.get("output") == CITY, found


@each_provider
def test_the_ai_sdk_is_told_of_an_error_in_mid_stream(
    scripted: Server, without_error_event: Server, provider: str
) -> None:
    """@ai-sdk/open-responses cannot read the `error` event."""
    server = without_error_event if provider == "open-responses" else scripted
    found = node("ai.mjs", server, provider, "text", scripts.FAILING, "")
    assert "text-delta" in found["parts"], found
    assert found["errors"] == [scripts.FAILURE]


@pytest.mark.parametrize("provider", ["openai", "open-responses"])
def test_the_ai_sdk_sees_the_reasoning(scripted: Server, provider: str) -> None:
    """@ai-sdk/openai shows summaries alone, which it has to ask for."""
    found = node("ai.mjs", scripted, provider, "text", scripts.HELLO, "")
    expected = "" if provider == "openai" else scripts.REASONING
    assert found["reasoning"] == [expected], found

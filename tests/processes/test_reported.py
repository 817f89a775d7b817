"""Inputs that users of servers like this one have reported as breaking them, and the right outcome.

| input | test |
| --- | --- |
| 1 a prompt beyond the context, others beside it | test_generation.py, test_messages.py: |
| | a_prompt_beyond_the_context |
| 2 one request of eight fails | postproc_workers/test_registry.py: one_of_eight_fails; |
| | engine/test_core.py: a_failed_step_ends_only_the_sequence_that_fails_alone |
| 3, 4 steps of several tokens, over the ends of messages | here: steps_of_any_size |
| 5 thousands of requests on one connection | here: many_requests_on_one_connection |
| 6 min_tokens and ignore_eos | clients/test_openai.py: ignoring_the_models_end |
| 7 one request id twice | test_generation.py: one_request_id_for_two_requests |
| 8, 9 what begins with white space; preamble and call | here: steps_of_any_size |
| 10 streamed, unstreamed, fetched | clients/test_responses_state.py: |
| | streamed_retrieved_and_replayed_are_one |
| 11 tools that are not used | here: tools_that_are_not_used |
| 12 a limit amid the reasoning | test_generation.py: the_token_limit; |
| | postproc_workers/test_encoders.py: a_limit_inside_the_reasoning |
| 13 a stop string, also in the reasoning | here: a_stop_string_is_for_visible_text |
| 14 two calls where one is wanted | here: one_call_where_one_is_wanted |
| 15 what Codex and Claude Code send | frontend/test_prepare.py: the_request_of_codex, |
| | a_replayed_turn_of_codex; frontend/test_messages_conversation.py: the_request_of_claude_code |
| 16 two that go on from one response | clients/test_responses_state.py: |
| | one_response_goes_on_in_two_ways, what_is_not_there_is_not_gone_on_from |
| 17 very many stored responses | store/test_bounds.py; clients/test_responses_state.py: |
| | a_deleted_response_is_gone |
| 18 forced calls; effort minimal and none | clients/test_openai.py: a_call_that_is_forced; |
| | frontend/test_prepare.py: effort |
| 19 a schema, with reasoning and without | clients/test_openai.py: an_answer_by_a_schema; |
| | engine_contract/test_constraints.py: the_final_message_follows_its_grammar |
| 20 no network; a damaged vocabulary | here: without_a_network, a_damaged_vocabulary |
| 21 a killed engine, and then Ctrl-C | test_supervision.py: |
| | without_an_engine_the_server_says_so_and_ends_when_told |
| 22 an idle connection | test_supervision.py: an_idle_connection_is_closed; |
| | frontend/test_cli.py: an_idle_connection_outlasts_a_minute |
| 23 a system message | frontend/test_prepare.py: identity_stays_under_a_system_message |
| 24 control tokens spelled in texts | frontend/test_prompt.py: markup_stays_text, |
| | no_control_token_comes_from_a_client |
| 25 no content; a result for no call | frontend/test_requests.py: chat_accepts; |
| | frontend/test_conversation.py: empty_answers, a_result_for_no_call_is_refused; |
| | frontend/test_prepare.py: nothing_but_api_errors_for_a_bad_call_history |
"""

import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

import ipc
from engine.scripted import Script, ScriptFile
from tests.postproc_workers.event_rules import read_chat_stream, read_responses_stream
from tests.postproc_workers.messages_rules import read_messages_stream
from tests.processes.scripts import ANSWER, CALL
from tests.processes.test_memory import private_bytes
from tests.servers import Server, running

TURNS = {
    "answer": ANSWER,
    "call": CALL,
    "whitespace": "<|channel|>final<|message|>\nHi<|return|>",
    "two calls": CALL + "<|start|>assistant" + CALL,
    "stop": "<|channel|>analysis<|message|>The END is near.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>All's well that ENDs well.<|return|>",
}
STEP_SIZES = range(1, 9)
SEEDS = {
    case: seed for seed, case in enumerate((turn, size) for turn in TURNS for size in STEP_SIZES)
}
"""The script of a turn (by name) in steps of so many tokens."""

RESPONSES, CHAT, MESSAGES = "/v1/responses", "/v1/chat/completions", "/v1/messages"
APIS = pytest.mark.parametrize("path", [RESPONSES, CHAT, MESSAGES])
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, dict[str, Any]] = {
    RESPONSES: {"type": "function", "name": "get_weather", "parameters": PARAMETERS},
    CHAT: {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    MESSAGES: {"name": "get_weather", "input_schema": PARAMETERS},
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    tokens = {name: encoding.encode(turn, allowed_special="all") for name, turn in TURNS.items()}
    scripts = [Script(list(tokens[name]), tokens_per_step=size) for name, size in SEEDS]
    path = tmp_path_factory.mktemp("reported") / "scripts.json"
    path.write_bytes(msgspec.json.encode(ScriptFile(scripts)))
    return path


@pytest.fixture(scope="module")
def server(script: Path) -> Iterator[Server]:
    """A server with four workers, in place of the ones that are shared."""
    arguments = ["--script", str(script), "--served-model-name", "scripted"]
    with running(*arguments, "--num-postprocess-workers", "4") as server:
        yield server


def body(path: str, turn: str, size: int = 1, **members: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hi"}]
    asked: dict[str, Any] = {"model": "scripted", "seed": SEEDS[turn, size]}
    asked |= {"input": said} if path == RESPONSES else {"messages": said}
    if path == MESSAGES:
        asked["max_tokens"] = 1000
    return asked | members


def streamed(server: Server, path: str, turn: str, size: int = 1, **members: Any) -> str:
    sent = json.dumps(body(path, turn, size, stream=True, **members)).encode()
    status, text = server.request("POST", path, sent)
    assert status == 200, text
    return text


def whole(server: Server, path: str, turn: str, **members: Any) -> dict[str, Any]:
    status, told = server.post(path, body(path, turn, **members))
    assert status == 200, told
    found: dict[str, Any] = told
    return found


def final(path: str, stream: str) -> dict[str, Any]:
    """What the stream says when all is put together, checked by the rules of its API."""
    if path == RESPONSES:
        return read_responses_stream(stream.encode()).response
    if path == CHAT:
        chat = read_chat_stream(stream.encode())
        return {"choices": [{"message": chat.message | {"tool_calls": chat.calls}}]}
    return read_messages_stream(stream.encode()).message


def answers(path: str, told: dict[str, Any]) -> list[str]:
    """The visible texts."""
    if path == RESPONSES:
        messages = [item for item in told["output"] if item["type"] == "message"]
        return [item["content"][0]["text"] for item in messages]
    if path == CHAT:
        return [told["choices"][0]["message"]["content"]]
    return [block["text"] for block in told["content"] if block["type"] == "text"]


def calls(path: str, told: dict[str, Any]) -> int:
    if path == RESPONSES:
        return [item["type"] for item in told["output"]].count("function_call")
    if path == CHAT:
        return len(told["choices"][0]["message"].get("tool_calls", []))
    return [block["type"] for block in told["content"]].count("tool_use")


def without_its_own(stream: str) -> str:
    """The stream without what every reply has of its own: its root id and its times."""
    [root] = set(re.findall(r'"(?:resp_|chatcmpl-|msg_)([0-9a-f]{32})"', stream))
    return re.sub(r'"(created|created_at|completed_at)":\d+', "", stream.replace(root, ""))


@APIS
@pytest.mark.parametrize("turn", TURNS)
def test_steps_of_any_size_make_the_same_events(server: Server, path: str, turn: str) -> None:
    """Also where a step ends one message and begins the next, or brings the last text and the end;
    the rules of each API hold, so an item is there before its deltas and closes once."""
    tools = [TOOL[path]]
    streams = [streamed(server, path, turn, size, tools=tools) for size in STEP_SIZES]
    assert len({without_its_own(stream) for stream in streams}) == 1
    assert answers(path, final(path, streams[0])) == answers(
        path, whole(server, path, turn, tools=tools)
    )


@APIS
def test_tools_that_are_not_used(server: Server, path: str) -> None:
    told = final(path, streamed(server, path, "answer", tools=[TOOL[path]]))
    assert answers(path, told) == ["Hello there, friend."]
    assert calls(path, told) == 0


@APIS
def test_one_call_where_one_is_wanted(server: Server, path: str) -> None:
    one: dict[str, Any] = {"tools": [TOOL[path]], "parallel_tool_calls": False}
    if path == MESSAGES:
        one = {
            "tools": [TOOL[path]],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        }
    assert calls(path, whole(server, path, "two calls", tools=[TOOL[path]])) == 2
    assert calls(path, whole(server, path, "two calls", **one)) == 1
    assert calls(path, final(path, streamed(server, path, "two calls", **one))) == 1


@APIS
@pytest.mark.parametrize("stop", ["END", "t ENDs w"])
def test_a_stop_string_is_for_visible_text(server: Server, path: str, stop: str) -> None:
    """It ends no reasoning, and not even its first half is told."""
    members: dict[str, Any] = {"stop_sequences" if path == MESSAGES else "stop": [stop]}
    for told in (
        whole(server, path, "stop", **members),
        final(path, streamed(server, path, "stop", **members)),
    ):
        assert answers(path, told) == ["All's well that ENDs well.".partition(stop)[0]]
        assert "The END is near." in json.dumps(told)


def test_many_requests_on_one_connection_leave_no_memory(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    asked = json.dumps(body(CHAT, "whitespace", 8))
    processes = [psutil.Process(server.process.pid)]
    processes += processes[0].children(recursive=True)

    def ask(times: int) -> None:
        for _ in range(times):
            connection.request("POST", CHAT, asked, {"content-type": "application/json"})
            reply = connection.getresponse()
            assert reply.status == 200
            reply.read()

    ask(300)
    before = [private_bytes(process) for process in processes]
    ask(1200)
    grown = [private_bytes(process) - b for process, b in zip(processes, before, strict=True)]
    connection.close()
    assert max(grown) < 1024 * 1024, grown


def test_without_a_network(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was kept from an earlier start, and whoever asks for a download is refused."""
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for spelling in (name, name.upper()):
            monkeypatch.setenv(spelling, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with running("--script", str(script), "--served-model-name", "scripted") as server:
        assert answers(CHAT, whole(server, CHAT, "answer")) == ["Hello there, friend."]
    assert (tmp_path / "o200k_base.tiktoken").is_file()


def test_a_damaged_vocabulary_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation whose bundled file lacks its end, before anything was unpacked from it."""
    copy = tmp_path / "ipc"
    shutil.copytree(Path(ipc.__file__).parent, copy)
    [packed] = (copy / "data").glob("*.gz")
    packed.write_bytes(packed.read_bytes()[:-1000])
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    ended = subprocess.run(
        [sys.executable, "-m", "frontend.cli", "serve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "the bundled vocabulary cannot be read" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr

"""Anthropic's API through the real processes: turns, failures, and how mistakes are told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.keys import append_key, make_key
from tests.postproc_workers.messages_rules import (
    check_error,
    check_message,
    read_messages_stream,
)
from tests.processes.scripts import Seed
from tests.processes.test_generation import RESPONSES, connect, leave
from tests.servers import Server, running

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def body(seed: Seed = Seed.ANSWER, **members: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "scripted", "max_tokens": 1000, "messages": messages, "seed": int(seed)}
    return {**asked, **members}


def streamed(server: Server, seed: Seed, **members: Any) -> bytes:
    sent = json.dumps(body(seed, stream=True, **members)).encode()
    status, text = server.request("POST", MESSAGES, sent)
    assert status == 200, text
    return text.encode()


@pytest.mark.parametrize("seed", [Seed.ANSWER, Seed.CALL, Seed.ALL_AT_ONCE])
def test_streamed_and_unstreamed_say_the_same(server: Server, seed: Seed) -> None:
    tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]
    server.post(MESSAGES, body(seed, tools=tools))  # from now on the prompt is cached
    status, plain = server.post(MESSAGES, body(seed, tools=tools))
    assert status == 200
    check_message(plain)
    told = read_messages_stream(streamed(server, seed, tools=tools)).message
    assert plain.pop("id") != told.pop("id")
    for block in (*plain["content"], *told["content"]):
        block.pop("id", None)
    assert told == plain
    if seed is Seed.CALL:
        assert plain["content"][-1]["input"] == {"city": "Paris"}
        assert plain["stop_reason"] == "tool_use"
    else:
        assert plain["content"][-1] == {"type": "text", "text": "Hello there, friend."}


def test_the_token_limit_and_a_stop_string(server: Server) -> None:
    assert server.post(MESSAGES, body(max_tokens=5))[1]["stop_reason"] == "max_tokens"
    stopped = server.post(MESSAGES, body(Seed.ENDLESS, stop_sequences=["word word word"]))[1]
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "word word word")
    assert stopped["content"] == [{"type": "text", "text": " "}]


@pytest.mark.parametrize("seed", [Seed.ERROR_AT_ONCE, Seed.ERROR_LATER, Seed.ERROR_WITH_TOKENS])
def test_an_executors_error_is_told_once(server: Server, seed: Seed) -> None:
    error = {"type": "api_error", "message": "the executor failed"}
    status, told = server.post(MESSAGES, body(seed))
    assert (status, told["error"]) == (500, error)
    check_error(told)
    assert read_messages_stream(streamed(server, seed)).error == error


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
def test_a_client_that_leaves_frees_everything(server: Server, stream: bool) -> None:
    before = server.metrics()["antiphon_engine_generated_tokens_total"]
    client = connect(server, MESSAGES, body(Seed.ENDLESS, stream=stream))
    server.wait_until(lambda: server.metrics()["antiphon_engine_generated_tokens_total"] > before)
    leave(client, reset=True)
    server.wait_until_idle()


def test_mistakes_have_anthropics_shape(server: Server) -> None:
    cases = [
        ("POST", MESSAGES, body(model="other"), 404, "not_found_error"),
        ("POST", MESSAGES, body(messages=[]), 400, "invalid_request_error"),
        ("POST", COUNT, body(model="other"), 404, "not_found_error"),
        ("POST", COUNT, {"model": "scripted"}, 400, "invalid_request_error"),
        ("POST", MESSAGES + "/batches", {}, 404, "not_found_error"),
        ("GET", MESSAGES, None, 405, "invalid_request_error"),
        ("POST", MESSAGES, "x" * (9 << 20), 413, "request_too_large"),
    ]
    for method, path, sent, status, kind in cases:
        encoded = None if sent is None else json.dumps(sent).encode()
        got, text = server.request(method, path, encoded)
        told = json.loads(text)
        assert (got, told["error"]["type"]) == (status, kind), text
        assert told["type"] == "error"
        assert told["request_id"]
    _, text = server.request("POST", MESSAGES, b"{", **{"x-request-id": "mine"})
    assert json.loads(text)["request_id"] == "mine"


def test_a_prompt_beyond_the_context(server: Server) -> None:
    messages = [{"role": "user", "content": "word " * 140_000}]
    status, told = server.post(MESSAGES, body(messages=messages))
    assert status == 400
    assert told["error"]["message"].startswith("prompt is too long: ")
    assert told["error"]["message"].endswith(" maximum")


def test_models_for_clients_of_either_api(server: Server) -> None:
    def get(path: str) -> tuple[int, Any]:
        headers = {"anthropic-version": "2023-06-01"}
        status, text = server.request("GET", path, None, **headers)
        return status, json.loads(text)

    models = get("/v1/models")[1]
    assert (models["first_id"], models["has_more"]) == ("scripted", False)
    assert models["data"] == [get("/v1/models/scripted")[1]]
    status, told = get("/v1/models/other")
    assert (status, told["error"]["type"]) == (404, "not_found_error")
    assert json.loads(server.get("/v1/models")[1])["object"] == "list"


@pytest.fixture(scope="module")
def guarded(
    scripts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """A server with keys and room for one stream, and a key."""
    file = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    key, record = make_key("acme", 1)
    append_key(file, record)
    arguments = ["--script", str(scripts), "--served-model-name", "scripted", "--max-streams", "1"]
    with running(*arguments, "--api-keys", str(file)) as server:
        yield server, key


def test_a_key_in_either_header(guarded: tuple[Server, str]) -> None:
    server, key = guarded
    for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
        assert server.post(MESSAGES, body(), **headers)[0] == 200
        assert server.post(COUNT, body(), **headers)[0] == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": key, "authorization": "Bearer no"}):
        status, told = server.post(MESSAGES, body(), **headers)
        assert (status, told["error"]["type"]) == (401, "authentication_error")
    status, told = server.post(RESPONSES, {})
    assert (status, told["error"]["code"]) == (401, "invalid_api_key")


def test_a_server_that_is_full(guarded: tuple[Server, str]) -> None:
    server, key = guarded
    headers = {"authorization": f"Bearer {key}"}
    client = connect(server, MESSAGES, body(Seed.SILENT, stream=True), **headers)
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    status, told = server.post(MESSAGES, body(), **headers)
    assert (status, told["error"]["type"]) == (503, "overloaded_error")
    leave(client, reset=True)
    server.wait_until_idle()

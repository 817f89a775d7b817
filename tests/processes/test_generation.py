"""Turns through the real processes: engine, frontend, workers, over real sockets."""

import concurrent.futures
import http.client
import json
import socket
from typing import Any

import pytest

from tests.processes.scripts import Seed
from tests.servers import Server


def responses_body(seed: Seed, **members: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": "Hi", "seed": int(seed), **members}


def chat_body(seed: Seed, **members: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "scripted", "messages": messages, "seed": int(seed), **members}


RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
BODIES = {RESPONSES: responses_body, CHAT: chat_body}
BOTH = pytest.mark.parametrize("path", [RESPONSES, CHAT])


def events(text: str) -> list[dict[str, Any]]:
    """The data of each event but `[DONE]`."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def streamed(server: Server, path: str, seed: Seed, **members: Any) -> list[dict[str, Any]]:
    body = json.dumps(BODIES[path](seed, stream=True, **members)).encode()
    status, text = server.request("POST", path, body)
    assert status == 200, text
    return events(text)


def texts(response: dict[str, Any]) -> list[str]:
    """The texts of a Responses object, in order."""
    return [
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in response["output"]
    ]


@BOTH
def test_streamed_and_unstreamed_say_the_same(server: Server, path: str) -> None:
    status, whole = server.post(path, BODIES[path](Seed.ANSWER))
    assert status == 200
    pieces = streamed(server, path, Seed.ANSWER)
    if path == RESPONSES:
        final = pieces[-1]["response"]
        assert pieces[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in pieces] == list(range(len(pieces)))
        assert texts(final) == texts(whole) == ["The user greets me.", "Hello there, friend."]
        assert final["usage"] == whole["usage"]
    else:
        deltas = [piece["choices"][0]["delta"] for piece in pieces]
        message = whole["choices"][0]["message"]
        for member in ("content", "reasoning"):
            assert "".join(delta.get(member, "") for delta in deltas) == message[member]
        assert message["content"] == "Hello there, friend."
        assert pieces[-1]["choices"][0]["finish_reason"] == "stop"


@BOTH
def test_a_call(server: Server, path: str) -> None:
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    tools = [
        {"type": "function", **tool}
        if path == RESPONSES
        else {"type": "function", "function": tool}
    ]
    whole = server.post(path, BODIES[path](Seed.CALL, tools=tools))[1]
    if path == RESPONSES:
        assert [item["type"] for item in whole["output"]] == [
            "reasoning",
            "message",
            "function_call",
        ]
        assert texts(whole)[1:] == ["Let me look.", '{"city": "Paris"}']
    else:
        choice = whole["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me look."
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'


def test_all_tokens_in_one_step_make_the_same_events(server: Server) -> None:
    one, all_at_once = (
        [{k: v for k, v in event.items() if "id" not in k and k != "response"} for event in pieces]
        for pieces in (
            streamed(server, RESPONSES, seed) for seed in (Seed.ANSWER, Seed.ALL_AT_ONCE)
        )
    )
    for event in one + all_at_once:
        event.get("item", {}).pop("id", None)
    assert one == all_at_once


@pytest.mark.parametrize("seed", [Seed.ERROR_AT_ONCE, Seed.ERROR_LATER, Seed.ERROR_WITH_TOKENS])
@BOTH
def test_an_executors_error_is_told_once(server: Server, path: str, seed: Seed) -> None:
    status, body = server.post(path, BODIES[path](seed))
    assert status == 500
    assert body["error"]["message"] == "the executor failed"
    pieces = streamed(server, path, seed)
    if path == RESPONSES:
        assert [piece["type"] for piece in pieces[-2:]] == ["error", "response.failed"]
        assert [event["sequence_number"] for event in pieces] == list(range(len(pieces)))
        assert pieces[-1]["response"]["error"]["message"] == "the executor failed"
    else:
        assert pieces[-1]["error"]["message"] == "the executor failed"


@BOTH
def test_the_token_limit_and_a_stop_string(server: Server, path: str) -> None:
    limit = {"max_output_tokens": 5} if path == RESPONSES else {"max_completion_tokens": 5}
    cut = server.post(path, BODIES[path](Seed.ANSWER, **limit))[1]
    stopped = server.post(path, BODIES[path](Seed.ENDLESS, stop=["word word word"]))[1]
    if path == RESPONSES:
        assert cut["status"] == "incomplete"
        assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
        assert cut["usage"]["output_tokens"] == 5
        assert stopped["status"] == "completed"
        assert texts(stopped) == [" "]
    else:
        assert cut["choices"][0]["finish_reason"] == "length"
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert stopped["choices"][0]["message"]["content"] == " "


def connect(server: Server, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A client that has sent its request and read nothing."""
    client = socket.create_connection(("127.0.0.1", server.port))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    client.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return client


def leave(client: socket.socket, reset: bool) -> None:
    """Close the connection, with a reset or in order."""
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "close"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
@pytest.mark.parametrize("seed", [Seed.ENDLESS, Seed.SILENT])
@BOTH
def test_a_client_that_leaves_frees_everything(
    server: Server, path: str, seed: Seed, stream: bool, reset: bool
) -> None:
    before = server.metrics()["antiphon_engine_generated_tokens_total"]
    client = connect(server, path, BODIES[path](seed, stream=stream))
    if stream:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    else:
        server.wait_until(
            lambda: server.metrics()["antiphon_engine_generated_tokens_total"] > before
        )
    leave(client, reset)
    server.wait_until_idle()


@BOTH
def test_a_client_that_leaves_at_once(server: Server, path: str) -> None:
    for _ in range(20):
        leave(connect(server, path, BODIES[path](Seed.ENDLESS, stream=True)), reset=True)
    server.wait_until_idle()


@BOTH
def test_one_request_id_for_two_requests(server: Server, path: str) -> None:
    """Clients' ids are labels: each request has its own text, ending one leaves the other."""
    label = {"metadata": {"request_id": "same"}, "request_id": "same"}
    endless = connect(server, path, BODIES[path](Seed.ENDLESS, stream=True, **label))
    endless.recv(100)
    status, answer = server.post(
        path, BODIES[path](Seed.ANSWER, **label), **{"x-request-id": "same"}
    )
    assert status == 200
    assert "Hello there, friend." in json.dumps(answer)
    assert endless.recv(100)
    leave(endless, reset=True)


@BOTH
def test_many_at_once_on_the_least_loaded_worker(server: Server, path: str) -> None:
    def run(seed: Seed) -> tuple[int, Any]:
        return server.post(path, BODIES[path](seed))

    seeds = [Seed.ANSWER, Seed.CALL, Seed.ERROR_LATER, Seed.ALL_AT_ONCE] * 8
    with concurrent.futures.ThreadPoolExecutor(32) as executor:
        results = list(executor.map(run, seeds))
    for seed, (status, body) in zip(seeds, results, strict=True):
        assert status == (500 if seed is Seed.ERROR_LATER else 200), body
        if seed is Seed.ANSWER:
            assert "Hello there, friend." in json.dumps(body)


def test_mistakes_are_told_by_name_and_open_nothing(server: Server) -> None:
    opened = sum(v for k, v in server.metrics().items() if "streams_opened" in k)
    cases: list[tuple[str, object, int, str | None]] = [
        (RESPONSES, {"model": "scripted"}, 400, "input"),
        (RESPONSES, {"model": "other", "input": "Hi"}, 404, "model"),
        (RESPONSES, responses_body(Seed.ANSWER, temperature=9), 400, "temperature"),
        (RESPONSES, responses_body(Seed.ANSWER, background=True, store=False), 400, "background"),
        (CHAT, {"model": "scripted", "messages": []}, 400, "messages"),
        (CHAT, chat_body(Seed.ANSWER, n=200), 400, "n"),
    ]
    for path, body, status, param in cases:
        got, told = server.post(path, body)
        assert (got, told["error"]["param"]) == (status, param), told
        assert told["error"]["type"] in ("invalid_request_error", "not_found_error")
    assert server.request("POST", RESPONSES, b"{rubbish")[0] == 400
    for route, status, code in (
        ("/v1/nothing", 404, "not_found"),
        (RESPONSES, 405, "method_not_allowed"),
    ):
        got, text = server.get(route)
        assert (got, json.loads(text)["error"]["code"]) == (status, code)
    assert opened == sum(v for k, v in server.metrics().items() if "streams_opened" in k)


def test_a_prompt_beyond_the_context_is_a_400_and_others_go_on(server: Server) -> None:
    endless = connect(server, RESPONSES, responses_body(Seed.ENDLESS, stream=True))
    endless.recv(100)
    status, told = server.post(RESPONSES, responses_body(Seed.ANSWER, input="word " * 140_000))
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    assert endless.recv(100)
    leave(endless, reset=True)


def test_one_connection_many_requests(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps(chat_body(Seed.ANSWER))
    for _ in range(100):
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200
        reply.read()
    connection.close()


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_probes_may_ask_for_the_head_only(server: Server, path: str) -> None:
    assert server.request("HEAD", path) == (200, "")


def test_models(server: Server) -> None:
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "scripted"
    assert json.loads(server.get("/v1/models/scripted")[1])["object"] == "model"
    assert server.get("/v1/models/other")[0] == 404

"""What tools that look for an Ollama server ask before they use the API."""

import json

import pytest

from tests.clients.conftest import MODEL
from tests.servers import Server


def test_the_version_is_new_enough_for_responses(server: Server) -> None:
    status, body = server.get("/api/version")
    assert status == 200
    assert [int(part) for part in json.loads(body)["version"].split(".")] >= [0, 13, 4]


def test_the_served_model_is_there(server: Server) -> None:
    [model] = json.loads(server.get("/api/tags")[1])["models"]
    assert model["name"] == model["model"] == MODEL
    status, shown = server.post("/api/show", {"model": f"{MODEL}:latest"})
    assert status == 200
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["gptoss.context_length"] > 0


@pytest.mark.parametrize("member", ["model", "name"])
def test_pulling_it_succeeds_line_by_line(server: Server, member: str) -> None:
    status, text = server.request("POST", "/api/pull", json.dumps({member: MODEL}).encode())
    assert (status, text[-1]) == (200, "\n")
    assert [json.loads(line) for line in text.splitlines()][-1] == {"status": "success"}
    assert server.post("/api/pull", {member: MODEL, "stream": False})[1] == {"status": "success"}


@pytest.mark.parametrize("path", ["/api/pull", "/api/show"])
def test_another_model_is_not_found(server: Server, path: str) -> None:
    status, body = server.post(path, {"model": "llama3"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    status, body = server.post(path, {})
    assert (status, body["error"]["param"]) == (400, "model")

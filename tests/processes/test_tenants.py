"""What one tenant has is not there for another, on any route."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from frontend.keys import append_key, make_key
from tests.servers import Server, running

NOT_THERE = "resp_" + "0" * 32


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A key file, and the headers of each tenant."""
    file = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    headers = {}
    for tenant in ("red", "blue"):
        key, record = make_key(tenant, 1)
        append_key(file, record)
        headers[tenant] = f"Bearer {key}"
    return file, headers


@pytest.fixture(scope="module")
def server(
    scripts: Path,
    keys: tuple[Path, dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("store") / "store.db"
    options = ["--script", str(scripts), "--served-model-name", "scripted"]
    options += ["--api-keys", str(keys[0]), "--store", f"sqlite:///{store}"]
    with running(*options) as server:
        yield server


def test_no_route_tells_of_anothers(server: Server, keys: tuple[Path, dict[str, str]]) -> None:
    red, blue = ({"authorization": keys[1][tenant]} for tenant in ("red", "blue"))
    asked = {"model": "scripted", "input": "Hi"}
    status, response = server.post("/v1/responses", asked, **red)
    assert status == 200
    status, conversation = server.post(
        "/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]}, **red
    )
    assert status == 200
    response_id, conversation_id = response["id"], conversation["id"]
    item_id = response["output"][0]["id"]
    routes = [
        ("GET", "/v1/responses/{r}"),
        ("GET", "/v1/responses/{r}?stream=true"),
        ("GET", "/v1/responses/{r}/input_items"),
        ("POST", "/v1/responses/{r}/cancel"),
        ("DELETE", "/v1/responses/{r}"),
        ("GET", "/v1/conversations/{c}"),
        ("GET", "/v1/conversations/{c}/items"),
        ("DELETE", "/v1/conversations/{c}"),
    ]
    for method, route in routes:
        path = route.format(r=response_id, c=conversation_id)
        missing = route.format(r=NOT_THERE, c="conv_" + "0" * 32)
        (status, told), (_, not_there) = (
            server.request(method, asked_for, None, **blue) for asked_for in (path, missing)
        )
        assert status == 404, (method, path)
        # Word for word what is said of what was never there.
        assert told == not_there.replace(NOT_THERE, response_id).replace(
            "conv_" + "0" * 32, conversation_id
        )
    for members in (
        {"previous_response_id": response_id},
        {"conversation": conversation_id},
        {"input": [{"type": "item_reference", "id": item_id}]},
    ):
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            status, _ = server.post(path, asked | members, **blue)
            assert status in (400, 404), (path, members)
    status, _ = server.request("GET", f"/v1/responses/{response_id}", None, **red)
    assert status == 200
    status, _ = server.request("GET", f"/v1/responses/{response_id}")
    assert status == 401
    server.wait_until_idle()


@pytest.mark.parametrize(
    "response_id", ["%00", "..%2f..", "%ff", "a" * 3000, "resp_%F0%9F%A6%94", "%20", "null"]
)
def test_ids_that_are_none(
    server: Server, keys: tuple[Path, dict[str, str]], response_id: str
) -> None:
    header = {"authorization": keys[1]["red"]}
    for path in ("/v1/responses/", "/v1/conversations/"):
        status, told = server.request("GET", path + response_id, None, **header)
        assert status == 404, told
        assert '"error"' in told
    body = {"model": "scripted", "input": "Hi", "previous_response_id": response_id + "\x00"}
    status, error = server.post("/v1/responses", body, **header)
    assert (status, error["error"]["code"]) == (400, "previous_response_not_found")

"""The description in /openapi.json is valid, and the server keeps to it whatever is sent to it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from frontend.app import make_app
from frontend.service import Service
from postproc_workers.testkit.strategies import encode
from tests.servers import Server, running

MODEL = "scripted"
EXAMPLES = 4
"""Requests to each route."""
ANSWER = "<|channel|>final<|message|>Hello.<|return|>"


def no_service() -> Service:
    raise AssertionError("a description needs no service")


DESCRIPTION: dict[str, Any] = make_app(no_service).openapi()


def named_model() -> dict[str, Any]:
    """The description with what this server knows besides: how its model is called. Otherwise most
    requests would be answered by a 404."""
    known = copy.deepcopy(DESCRIPTION)
    for schema in known["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"const": MODEL}
    return known


def api(mode: GenerationMode) -> BaseSchema:
    made = schemathesis.openapi.from_dict(named_model())
    made.config.generation.update(modes=[mode])
    return made


GOOD, BAD = api(GenerationMode.POSITIVE), api(GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whatever is asked of it, its engine says the same."""
    path = tmp_path_factory.mktemp("scripts") / "scripts.json"
    path.write_bytes(msgspec.json.encode({"scripts": [{"tokens": encode(ANSWER)}]}))
    with running("--script", str(path), "--served-model-name", MODEL) as server:
        yield server
        server.wait_until_idle()


def test_the_description_is_valid() -> None:
    validate(DESCRIPTION)


def test_every_reference_leads_somewhere() -> None:
    schemas = DESCRIPTION["components"]["schemas"]
    for reference in _references(DESCRIPTION):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from _references(child)
    elif isinstance(value, list):
        for child in value:
            yield from _references(child)


def test_the_page_needs_no_other_host(server: Server) -> None:
    status, page = server.get("/docs")
    assert status == 200
    assert "https://" not in page
    assert server.get("/docs-static/swagger-ui-bundle.js")[0] == 200
    assert json.loads(server.get("/openapi.json")[1]) == DESCRIPTION


FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@GOOD.parametrize()
@seed(1)
@FEW
def test_good_requests(case: schemathesis.Case[Any], server: Server) -> None:
    check(case, server)


@BAD.include(method="POST").parametrize()
@seed(1)
@FEW
def test_bad_requests(case: schemathesis.Case[Any], server: Server) -> None:
    check(case, server)


def check(case: schemathesis.Case[Any], server: Server) -> None:
    """The server's answer is one of those that the description has."""
    response = case.call(base_url=server.url, timeout=20)
    assert response.status_code < 500
    case.validate_response(
        response,
        checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
    )

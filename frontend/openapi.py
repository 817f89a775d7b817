"""The OpenAPI description of the whole application, which `/openapi.json` serves."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from frontend.requests.fields import JsonObject

_METHODS = ("get", "put", "post", "delete", "patch")
_NULLABLE = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE,
                "code": _NULLABLE,
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
_SCHEMAS = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}


def describe(app: FastAPI) -> JsonObject:
    """The description of an application's routes. What FastAPI cannot know is added: where the
    definitions of bodies are, that a request may ask for events, and how errors are told."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = described.setdefault("components", {})
    schemas: JsonObject = dict(_SCHEMAS)
    for operation in _operations(described):
        _hoist_body(operation, schemas)
        _add_events(operation, schemas)
        _add_errors(operation)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{}, {"key": []}]
    return described


def _operations(described: JsonObject) -> Iterator[JsonObject]:
    for path in described["paths"].values():
        yield from (path[method] for method in _METHODS if method in path)


def _hoist_body(operation: JsonObject, schemas: JsonObject) -> None:
    """Put the schemas of a body, and their definitions, among those of the components."""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        schema = media["schema"]
        if "anyOf" in schema:
            schema["anyOf"] = [_hoisted(one, schemas) for one in schema["anyOf"]]
        else:
            media["schema"] = _hoisted(schema, schemas)


def _hoisted(schema: JsonObject, schemas: JsonObject) -> JsonObject:
    name = schema["title"]
    definitions = {
        f"{name}.{inner}": definition for inner, definition in schema.get("$defs", {}).items()
    }
    refused = {_reference(inner) for inner, found in definitions.items() if "x-refused" in found}
    whole = {member: value for member, value in schema.items() if member != "$defs"}
    for inner, definition in {**definitions, name: whole}.items():
        if "x-refused" not in definition:
            schemas[inner] = _without(refused, definition)
    return {"$ref": _reference(name)}


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def _without(refused: set[str], value: Any) -> Any:
    """A schema without the alternatives that are always refused."""
    if isinstance(value, dict):
        return {member: _without(refused, child) for member, child in value.items()}
    if isinstance(value, list):
        kept = [one for one in value if not (isinstance(one, dict) and one.get("$ref") in refused)]
        return [_without(refused, one) for one in kept]
    return value


def _add_events(operation: JsonObject, schemas: JsonObject) -> None:
    content = operation["responses"]["200"].setdefault("content", {})
    if _can_stream(operation, schemas):
        content["text/event-stream"] = {"schema": {"type": "string"}}


def _can_stream(operation: JsonObject, schemas: JsonObject) -> bool:
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    names = [media["schema"].get("$ref", "").rpartition("/")[2] for media in bodies]
    return any("stream" in schemas[name].get("properties", {}) for name in names if name) or any(
        parameter["name"] == "stream" for parameter in operation.get("parameters", ())
    )


def _add_errors(operation: JsonObject) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own error, which is told as a 400
    told = {"anyOf": [{"$ref": _reference(name)} for name in _SCHEMAS]}
    for status, description in (("4XX", "The client's mistake"), ("5XX", "A fault of the server")):
        responses[status] = {
            "description": description,
            "content": {"application/json": {"schema": told}},
        }

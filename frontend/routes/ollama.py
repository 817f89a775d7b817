"""What tools ask of an Ollama server before they use its OpenAI API: whether it is new enough, and
whether it has the model. Source: Ollama's API reference."""

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import AliasChoices, Field

from frontend.errors import model_not_found
from frontend.requests.fields import JsonObject, ModelName, RequestModel, parse_body
from frontend.routes.dependencies import Body, Tenant, TheService
from frontend.routes.schemas import body_schema
from ipc.messages import EngineInfo

VERSION = "0.13.4"
"""Of the Ollama whose Responses API clients were first content with: some refuse older ones."""
_DEFAULT_TAG = ":latest"
_STARTED = datetime.now(UTC).isoformat()

routes = APIRouter(prefix="/api", tags=["ollama"])


class NamedModel(RequestModel):
    """The body of `POST /api/show`. `name` is the older name of `model`."""

    model: Annotated[ModelName, Field(validation_alias=AliasChoices("model", "name"))]


class PullRequest(NamedModel):
    """The body of `POST /api/pull`."""

    stream: bool | None = None
    """Null is true."""


@routes.get("/version")
async def ollama_version() -> dict[str, str]:
    """The version of Ollama that this API is like."""
    return {"version": VERSION}


@routes.get("/tags")
async def list_local_models(service: TheService, tenant: Tenant) -> JsonObject:
    """The one model that is served."""
    model = service.model.model
    described = {
        "name": model,
        "model": model,
        "modified_at": _STARTED,
        "size": 0,
        "digest": "",
        "details": _details(),
    }
    return {"models": [described]}


@routes.post("/show", openapi_extra=body_schema(NamedModel))
async def show_model(service: TheService, tenant: Tenant, body: Body) -> JsonObject:
    """What is known of the model."""
    _check_model(parse_body(NamedModel, body), service.model)
    return {
        "modified_at": _STARTED,
        "details": _details(),
        "model_info": {
            "general.architecture": "gptoss",
            "gptoss.context_length": service.model.context_length,
        },
        "capabilities": ["completion", "tools", "thinking"],
    }


@routes.post(
    "/pull",
    openapi_extra=body_schema(PullRequest),
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
async def pull_model(service: TheService, tenant: Tenant, body: Body) -> Response:
    """Says that the model is there, which it is; nothing is ever fetched."""
    asked = parse_body(PullRequest, body)
    _check_model(asked, service.model)
    success = {"status": "success"}
    if asked.stream is False:
        return JSONResponse(success)
    return Response(msgspec.json.encode(success) + b"\n", media_type="application/x-ndjson")


def _check_model(asked: NamedModel, engine: EngineInfo) -> None:
    if asked.model.removesuffix(_DEFAULT_TAG) != engine.model:
        raise model_not_found(asked.model)


def _details() -> JsonObject:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": "gptoss",
        "families": ["gptoss"],
        "parameter_size": "",
        "quantization_level": "",
    }

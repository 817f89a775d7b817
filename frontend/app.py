"""The HTTP application: routes, who may use them, and how errors are told."""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from frontend.admin import admin_routes
from frontend.errors import (
    ApiError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    model_not_found,
)
from frontend.generation_response import GenerationResponse
from frontend.metrics import registry_of
from frontend.prepare import Prepared, prepare_chat, prepare_responses
from frontend.requests.chat import ChatRequest, parse_chat
from frontend.requests.responses import ResponsesRequest, parse_responses
from frontend.service import Service
from frontend.streams import Generation, StreamHandle
from frontend.structured import constraint_of
from ipc.messages import Open

_logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
ANONYMOUS = ""


def make_app(make_service: Callable[[], Service]) -> FastAPI:
    """The application; its service is made when the event loop runs, and stopped with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = make_service()
        await app.state.service.start()
        yield
        await app.state.service.stop()

    app = FastAPI(title="Antiphon", version=version("antiphon"), lifespan=lifespan)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _unexpected_error)
    _add_generation_routes(app)
    _add_operation_routes(app)
    app.include_router(admin_routes(_service))
    return app


# Dependencies are coroutines throughout: FastAPI runs plain functions in threads.


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


async def _tenant(request: Request, service: TheService) -> str:
    """The tenant whose key the request carries; the anonymous one if no keys are configured."""
    if service.keys is None:
        return ANONYMOUS
    return service.keys.tenant_of(request.headers.get("authorization"))


Tenant = Annotated[str, Depends(_tenant)]


async def _body(request: Request, service: TheService) -> bytes:
    limit = service.settings.max_body_bytes
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RequestTooLargeError(f"The request's body is longer than {limit} bytes.")
    return bytes(body)


Body = Annotated[bytes, Depends(_body)]


class RequestTooLargeError(InvalidRequestError):
    """The body is longer than this server reads."""

    status = 413
    default_code = "request_too_large"


def _add_generation_routes(app: FastAPI) -> None:
    @app.post("/v1/responses", openapi_extra=_body_schema(ResponsesRequest))
    async def create_response(
        request: Request, service: TheService, tenant: Tenant, body: Body
    ) -> Response:
        """Generate a response (OpenAI's Responses API)."""
        parsed = parse_responses(body)
        prepared = prepare_responses(parsed, service.model, service.renderer, _today())
        return await _generate(request, service, tenant, prepared, "resp_")

    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatRequest))
    async def create_chat_completion(
        request: Request, service: TheService, tenant: Tenant, body: Body
    ) -> Response:
        """Generate a chat completion (OpenAI's Chat Completions API)."""
        parsed = parse_chat(body)
        prepared = prepare_chat(parsed, service.model, service.renderer, _today())
        return await _generate(request, service, tenant, prepared, "chatcmpl-")


def _add_operation_routes(app: FastAPI) -> None:
    started = int(time.time())

    def model_object(model: str) -> dict[str, object]:
        return {"id": model, "object": "model", "created": started, "owned_by": "antiphon"}

    @app.get("/v1/models")
    async def list_models(service: TheService, tenant: Tenant) -> dict[str, object]:
        """The one model that is served."""
        return {"object": "list", "data": [model_object(service.model.model)]}

    @app.get("/v1/models/{model:path}")
    async def retrieve_model(model: str, service: TheService, tenant: Tenant) -> dict[str, object]:
        """One model by name."""
        if model != service.model.model:
            raise model_not_found(model)
        return model_object(model)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(service: TheService) -> JSONResponse:
        """200 when requests can be served, otherwise 503 and why not."""
        status, engine = service.health, service.engine.state
        state = {"status": status, "engine": engine, "workers": len(service.pool.up)}
        return JSONResponse(state, 200 if status == "ok" else 503)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics")
    async def metrics(service: TheService) -> PlainTextResponse:
        """Prometheus metrics, asked of workers and engine just now."""
        await service.refresh(REFRESH_SECONDS)
        return PlainTextResponse(
            generate_latest(registry_of(service)), media_type=CONTENT_TYPE_LATEST
        )


async def _generate(
    request: Request, service: Service, tenant: str, prepared: Prepared, prefix: str
) -> Response:
    constraint = await constraint_of(prepared.wanted)
    response_id = prefix + secrets.token_hex(16)
    created = int(time.time())

    def make_open(stream_id: int, lease: int) -> Open:
        return Open(
            stream_id,
            lease,
            response_id,
            prepared.model,
            created,
            len(prepared.prompt),
            prepared.format,
            prepared.streaming,
            prepared.tools,
            prepared.stop,
            prepared.parallel_tool_calls,
            tenant,
        )

    def open_stream() -> StreamHandle:
        generation = Generation(
            prepared.prompt,
            prepared.sampling,
            make_open,
            prepared.priority,
            prepared.cache_salt,
            constraint,
        )
        return service.streams.open(generation)

    request_id = request.headers.get("x-request-id") or f"req_{secrets.token_hex(16)}"
    return GenerationResponse(open_stream, prepared.streaming, {"x-request-id": request_id})


def _today() -> date:
    return datetime.now(UTC).date()


def _body_schema(model: type[ResponsesRequest] | type[ChatRequest]) -> dict[str, object]:
    """The OpenAPI description of a body that is parsed in the route."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def _reply(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, headers=error.headers())


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _reply(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors (no such route, method not allowed) in the API's shape."""
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    told = NotFoundError(f"{error.detail}: {request.method} {request.url.path}", code=code)
    return JSONResponse(told.body(), error.status_code, headers=error.headers)


async def _client_left(request: Request, error: Exception) -> Response:
    """The client left before it had sent all of its request: nobody is there to be told."""
    return Response(status_code=400)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _reply(ServerError("The server failed to handle this request."))

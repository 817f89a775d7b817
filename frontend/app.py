"""The HTTP application: its routes, and how errors are told."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from frontend import anthropic
from frontend.admin import admin_routes
from frontend.errors import (
    ApiError,
    NotFoundError,
    OverloadedError,
    ServerError,
    invalid_parameter,
)
from frontend.openapi import describe
from frontend.routes import (
    chat,
    compact,
    completions,
    conversations,
    messages,
    ollama,
    operations,
    responses,
    tokens,
)
from frontend.routes.dependencies import request_id, service_of
from frontend.service import Service
from frontend.store import StoreError

DESCRIPTION = """\
A server for gpt-oss (Harmony) models: OpenAI's Responses, Chat Completions and Completions, \
Anthropic's Messages, and what their clients ask for besides. This page and its scripts come from \
the server itself. Requests need the header `Authorization: Bearer KEY` if the server has keys."""

APIS = (
    *(compact, responses, conversations, chat, completions, messages),
    *(tokens, ollama, operations),
)

_logger = logging.getLogger(__name__)


def make_app(make_service: Callable[[], Service]) -> FastAPI:
    """The application; its service is made when the event loop runs, and stopped with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = make_service()
        await app.state.service.start()
        yield
        await app.state.service.stop()

    app = FastAPIOffline(
        redoc_url=None,
        title="Antiphon",
        description=DESCRIPTION,
        version=version("antiphon"),
        lifespan=lifespan,
        static_url="/docs-static",
    )
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(Exception, _unexpected_error)
    for module in APIS:
        app.include_router(module.routes)
    app.include_router(admin_routes(service_of))
    app.openapi = cache(partial(describe, app))  # type: ignore[method-assign]
    return app


def _reply(
    request: Request, error: ApiError, status: int, headers: Mapping[str, str] | None
) -> JSONResponse:
    if not anthropic.speaks_anthropic(request):
        return JSONResponse(error.body(), status, headers=headers)
    told_id = request_id(request)
    body = anthropic.error_body(status, error.message, told_id)
    return JSONResponse(body, status, headers={**(headers or {}), "request-id": told_id})


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _reply(request, error, error.status, error.headers())


async def _validation_error(request: Request, error: Exception) -> Response:
    """What is wrong with a path or a query."""
    assert isinstance(error, RequestValidationError)
    told = invalid_parameter(error.errors()[0], skip=1)
    return _reply(request, told, told.status, told.headers())


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors (no such route, method not allowed) in the API's shape."""
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    told = NotFoundError(f"{error.detail}: {request.method} {request.url.path}", code=code)
    return _reply(request, told, error.status_code, error.headers)


async def _client_left(request: Request, error: Exception) -> Response:
    """The client left before it had sent all of its request: nobody is there to be told."""
    return Response(status_code=400)


async def _store_error(request: Request, error: Exception) -> Response:
    """What the database says is for the log: it may name hosts and files."""
    _logger.error("%s %s: the store failed: %s", request.method, request.url.path, error)
    told = OverloadedError("The store of responses does not answer now.")
    return _reply(request, told, told.status, told.headers())


async def _unexpected_error(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    told = ServerError("The server failed to handle this request.")
    return _reply(request, told, told.status, told.headers())

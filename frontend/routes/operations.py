"""Models, health and metrics."""

import time
from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from frontend import anthropic
from frontend.errors import model_not_found
from frontend.metrics import registry_of
from frontend.routes.dependencies import Tenant, TheService
from frontend.service import Service

REFRESH_SECONDS = 1.0
_STARTED = int(time.time())

routes = APIRouter(tags=["operations"])


def _model_object(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": _STARTED, "owned_by": "antiphon"}


def _anthropic_model(service: Service) -> dict[str, object]:
    return anthropic.model_object(service.model.model, _STARTED, service.model.context_length)


@routes.get("/v1/models")
async def list_models(request: Request, service: TheService, tenant: Tenant) -> dict[str, object]:
    """The one model that is served."""
    if anthropic.speaks_anthropic(request):
        return anthropic.model_list(_anthropic_model(service))
    return {"object": "list", "data": [_model_object(service.model.model)]}


@routes.get("/v1/models/{model:path}")
async def retrieve_model(
    request: Request, model: str, service: TheService, tenant: Tenant
) -> dict[str, object]:
    """One model by name."""
    if model != service.model.model:
        raise model_not_found(model)
    if anthropic.speaks_anthropic(request):
        return _anthropic_model(service)
    return _model_object(model)


@routes.get("/version")
async def server_version() -> dict[str, str]:
    """The server's version."""
    return {"version": version("antiphon")}


@routes.head("/health", include_in_schema=False)
@routes.get("/health")
async def health(service: TheService) -> JSONResponse:
    """200 when requests can be served, otherwise 503 and why not."""
    status, engine = service.health, service.engine.state
    state = {"status": status, "engine": engine, "workers": len(service.pool.up)}
    return JSONResponse(state, 200 if status == "ok" else 503)


@routes.head("/metrics", include_in_schema=False)
@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: TheService) -> PlainTextResponse:
    """Prometheus metrics, asked of workers and engine just now."""
    await service.refresh(REFRESH_SECONDS)
    return PlainTextResponse(generate_latest(registry_of(service)), media_type=CONTENT_TYPE_LATEST)

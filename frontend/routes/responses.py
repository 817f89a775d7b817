"""`/v1/responses`."""

import secrets

from fastapi import APIRouter, Request
from fastapi.responses import Response

from frontend.prepare import prepare_responses
from frontend.requests.responses import ResponsesRequest, parse_responses
from frontend.routes.dependencies import Body, Tenant, TheService, today
from frontend.routes.generate import generate, plan
from frontend.routes.schemas import body_schema

routes = APIRouter(tags=["responses"])


@routes.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """Generate a response (OpenAI's Responses API)."""
    prepared = prepare_responses(parse_responses(body), service.model, service.renderer, today())
    planned = await plan(prepared, tenant, f"resp_{secrets.token_hex(16)}")
    return generate(request, service, planned)

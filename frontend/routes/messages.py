"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import secrets

from fastapi import APIRouter, Request
from fastapi.responses import Response

from frontend.prepare import count_prompt_tokens, prepare_messages
from frontend.requests.messages import (
    MessagesPrompt,
    MessagesRequest,
    parse_messages,
    parse_messages_prompt,
)
from frontend.routes.dependencies import Body, Tenant, TheService, today
from frontend.routes.generate import generate, plan
from frontend.routes.schemas import body_schema

routes = APIRouter(tags=["messages"])


@routes.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """Generate a message (Anthropic's Messages API)."""
    parsed = parse_messages(body)
    prepared = prepare_messages(parsed, service.model, service.renderer, today())
    planned = await plan(prepared, tenant, f"msg_{secrets.token_hex(16)}")
    return generate(request, service, planned)


@routes.post("/v1/messages/count_tokens", openapi_extra=body_schema(MessagesPrompt))
async def count_tokens(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> dict[str, int]:
    """Count the tokens of a message's prompt (Anthropic's Messages API)."""
    parsed = parse_messages_prompt(body)
    count = count_prompt_tokens(parsed, service.model, service.renderer, today())
    return {"input_tokens": count}

"""`/v1/responses`: generating, and what is kept of it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from frontend.conversation import from_responses
from frontend.errors import OverloadedError
from frontend.prepare import prepare_responses, responses_prompt
from frontend.requests.fields import JsonObject, decode_body
from frontend.requests.responses import (
    ItemReference,
    PromptFields,
    ResponsesRequest,
    check_prompt,
    check_responses,
    parse_items,
)
from frontend.routes.dependencies import Body, Tenant, TheService, request_id, today
from frontend.routes.generate import Planned, generate, plan
from frontend.routes.paging import Limit, Order, page_of
from frontend.routes.schemas import body_schema
from frontend.service import Service
from frontend.state.event_log import frames_after
from frontend.state.items import input_items
from frontend.state.responses import ENDED, begun_response
from frontend.streams import NoEngineError, NoWorkerError, StreamHandle, TooManyStreamsError

POLL_SECONDS = 0.25
"""How often the store is asked for the end of a response that runs elsewhere."""

Asked = TypeVar("Asked", bound=PromptFields)

routes = APIRouter(tags=["responses"])


@routes.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """Generate a response (OpenAI's Responses API)."""
    value = decode_body(body)
    asked = await _resolved(service, tenant, value, check_responses)
    keep = service.responses.keeps(asked)
    root = secrets.token_hex(16)
    prepared = prepare_responses(
        asked,
        service.model,
        service.renderer,
        today(),
        history=parse_items(await _history(service, tenant, asked)),
        unseal=partial(service.responses.unseal, tenant),
        seal_key=service.responses.seal_key,
        stored=keep,
        error_event=service.settings.stream_error_event,
    )
    planned = await plan(prepared, tenant, f"resp_{root}", keep=keep)
    if not keep:
        return generate(request, service, planned)
    items = input_items(value.get("input") or [], root)
    begun = begun_response(tenant, planned.opening(0, 0), asked, items)
    if not asked.background:
        on_open = partial(service.responses.begin_soon, begun)
        return generate(request, service, planned, on_open=on_open)
    running = await service.responses.run(begun, _open(service, planned))
    headers = {"x-request-id": request_id(request)}
    if asked.stream:
        return _event_stream(running.log.read(), headers)
    return _json(service.responses.body(begun), headers)


def _open(service: Service, planned: Planned) -> StreamHandle:
    try:
        return service.streams.open(planned.generation())
    except (NoWorkerError, NoEngineError, TooManyStreamsError) as error:
        raise OverloadedError(f"The server cannot take this request now: {error}.") from error


async def _resolved(
    service: Service, tenant: str, value: JsonObject, check: Callable[[JsonObject], Asked]
) -> Asked:
    """The request that a body is, with the items in its input that it only refers to."""
    asked = check(value)
    given = asked.input
    if isinstance(given, list) and any(isinstance(item, ItemReference) for item in given):
        value["input"] = await service.responses.resolved(tenant, given, value["input"])
        asked = check(value)
    return asked


async def _history(service: Service, tenant: str, asked: PromptFields) -> list[JsonObject]:
    return await service.responses.history(
        tenant, asked.previous_response_id, asked.conversation_id
    )


@routes.post("/v1/responses/input_tokens", openapi_extra=body_schema(PromptFields))
async def count_input_tokens(service: TheService, tenant: Tenant, body: Body) -> JsonObject:
    """How many tokens the prompt of a request has."""
    asked = await _resolved(service, tenant, decode_body(body), check_prompt)
    history = parse_items(await _history(service, tenant, asked))
    conversation = from_responses(asked, history, partial(service.responses.unseal, tenant))
    prompt = responses_prompt(asked, conversation, service.model, service.renderer, today())
    return {"object": "response.input_tokens", "input_tokens": len(prompt)}


@routes.get("/v1/responses/{response_id}")
async def retrieve_response(
    response_id: str,
    request: Request,
    service: TheService,
    tenant: Tenant,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """A stored response; streamed, its events from `starting_after` on: those that there were,
    then each as it comes."""
    stored = await service.responses.find(tenant, response_id)
    headers = {"x-request-id": request_id(request)}
    if not stream:
        return _json(await asyncio.to_thread(service.responses.body, stored), headers)
    running = service.responses.running(tenant, response_id)
    events = (
        _replayed(service, tenant, response_id, starting_after)
        if running is None
        else running.log.read(starting_after)
    )
    return _event_stream(events, headers)


async def _replayed(
    service: Service, tenant: str, response_id: str, starting_after: int
) -> AsyncIterator[bytes]:
    """The events of a response that has ended, or does so elsewhere."""
    stored = await service.responses.find(tenant, response_id)
    while stored.status not in ENDED:
        await asyncio.sleep(POLL_SECONDS)
        stored = await service.responses.find(tenant, response_id)
    events = await asyncio.to_thread(service.responses.body, stored, streaming=True)
    yield b"".join(frames_after(events, starting_after))


@routes.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, service: TheService, tenant: Tenant) -> JsonObject:
    """Forget a stored response."""
    await service.responses.delete(tenant, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@routes.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, service: TheService, tenant: Tenant) -> Response:
    """End a response that runs in the background."""
    stored = await service.responses.cancel(tenant, response_id)
    return _json(await asyncio.to_thread(service.responses.body, stored), {})


@routes.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    service: TheService,
    tenant: Tenant,
    after: str | None = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> JsonObject:
    """The input of a stored response."""
    stored = await service.responses.find(tenant, response_id)
    return page_of(msgspec.json.decode(stored.input), after, limit, order)


def _json(body: bytes, headers: dict[str, str]) -> Response:
    return Response(body, media_type="application/json", headers=headers)


def _event_stream(events: AsyncIterator[bytes], headers: dict[str, str]) -> Response:
    kept = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers | kept)

"""`POST /v1/responses/compact`: a long conversation becomes a summary that goes on from it."""

import secrets
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from frontend.errors import ServerError
from frontend.prepare import prepare_responses
from frontend.requests.fields import JsonObject, decode_body, validated
from frontend.requests.responses import CompactRequest, check_responses
from frontend.routes.dependencies import Body, Tenant, TheService, today
from frontend.routes.generate import generate, plan
from frontend.routes.schemas import body_schema
from frontend.state.items import input_items
from postproc_workers.sealing import seal

ASK = (
    "Summarize our whole conversation until now, for yourself: somebody who sees this summary "
    "alone has to be able to go on with it. Keep what was asked for, what was decided and why, "
    "what has been done and found, names, figures and paths as they are, and what is still to be "
    "done. Answer with the summary alone."
)

routes = APIRouter(tags=["responses"])


@routes.post("/v1/responses/compact", openapi_extra=body_schema(CompactRequest))
async def compact_response(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """A shorter input that says what a conversation has said: the messages of the user, and the
    model's own summary, sealed."""
    value = decode_body(body)
    asked = validated(CompactRequest, value)
    root = secrets.token_hex(16)
    history = await service.responses.history(tenant, asked.previous_response_id, None)
    items = history + input_items(value.get("input") or [], root)
    whole: JsonObject = {"model": asked.model, "instructions": asked.instructions}
    whole["input"] = [*items, {"role": "user", "content": ASK}]
    prepared = prepare_responses(
        check_responses(whole),
        service.model,
        service.renderer,
        today(),
        unseal=partial(service.responses.unseal, tenant),
    )
    planned = await plan(prepared, tenant, f"resp_{root}")

    def make_body(body: bytes) -> bytes:
        response = msgspec.json.decode(body)
        sealed = seal(service.responses.seal_key, "compaction", tenant, _summary(response))
        compaction = {"id": f"cmp_{root}00", "type": "compaction", "encrypted_content": sealed}
        return msgspec.json.encode(
            {
                "id": response["id"],
                "object": "response.compaction",
                "created_at": response["created_at"],
                "output": [*filter(_is_of_user, items), compaction],
                "usage": response["usage"],
            }
        )

    return generate(request, service, planned, make_body=make_body)


def _summary(response: JsonObject) -> str:
    """What the model has answered. Raises ServerError if that is nothing."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    text = "\n\n".join(part["text"] for item in messages for part in item["content"])
    if not text.strip():
        raise ServerError("The model has written no summary.")
    return text


def _is_of_user(item: JsonObject) -> bool:
    return (item["type"], item.get("role")) == ("message", "user")

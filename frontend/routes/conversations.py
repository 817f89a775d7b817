"""`/v1/conversations`: items that responses can be given to go on from."""

import secrets

import msgspec
from fastapi import APIRouter

from frontend.errors import NotFoundError
from frontend.requests.conversations import ChangedConversation, NewConversation, NewItems
from frontend.requests.fields import JsonObject, decode_body, validated
from frontend.routes.dependencies import Body, Tenant, TheService
from frontend.routes.paging import Limit, Order, page_of
from frontend.routes.schemas import body_schema
from frontend.state.items import input_items, list_object
from frontend.state.responses import conversation_not_found
from frontend.store import StoredConversation

routes = APIRouter(prefix="/v1/conversations", tags=["conversations"])


@routes.post("", openapi_extra=body_schema(NewConversation))
async def create_conversation(service: TheService, tenant: Tenant, body: Body) -> JsonObject:
    """Make a conversation."""
    value = decode_body(body)
    asked = validated(NewConversation, value)
    items = _items(value.get("items") or [])
    metadata = msgspec.json.encode(asked.metadata or {})
    conversation_id = f"conv_{secrets.token_hex(16)}"
    made = await service.responses.store.create_conversation(
        tenant, conversation_id, metadata, _stored(items)
    )
    return _object(made)


@routes.get("/{conversation_id}")
async def retrieve_conversation(
    conversation_id: str, service: TheService, tenant: Tenant
) -> JsonObject:
    """A conversation, without its items."""
    found = await service.responses.store.get_conversation(tenant, conversation_id)
    if found is None:
        raise conversation_not_found(conversation_id)
    return _object(found)


@routes.post("/{conversation_id}", openapi_extra=body_schema(ChangedConversation))
async def update_conversation(
    conversation_id: str, service: TheService, tenant: Tenant, body: Body
) -> JsonObject:
    """Replace a conversation's metadata."""
    asked = validated(ChangedConversation, decode_body(body))
    store = service.responses.store
    if not await store.set_metadata(tenant, conversation_id, msgspec.json.encode(asked.metadata)):
        raise conversation_not_found(conversation_id)
    return await retrieve_conversation(conversation_id, service, tenant)


@routes.delete("/{conversation_id}")
async def delete_conversation(
    conversation_id: str, service: TheService, tenant: Tenant
) -> JsonObject:
    """Forget a conversation and its items. Responses that were part of it stay."""
    if not await service.responses.store.delete_conversation(tenant, conversation_id):
        raise conversation_not_found(conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@routes.post("/{conversation_id}/items", openapi_extra=body_schema(NewItems))
async def create_items(
    conversation_id: str, service: TheService, tenant: Tenant, body: Body
) -> JsonObject:
    """Add items to a conversation."""
    value = decode_body(body)
    validated(NewItems, value)
    items = _items(value["items"])
    added = await service.responses.store.add_items(tenant, conversation_id, _stored(items))
    if not added:
        raise conversation_not_found(conversation_id)
    return list_object(items, has_more=False)


@routes.get("/{conversation_id}/items")
async def list_items(
    conversation_id: str,
    service: TheService,
    tenant: Tenant,
    after: str | None = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> JsonObject:
    """The items of a conversation."""
    items = await service.responses.history(tenant, None, conversation_id)
    return page_of(items, after, limit, order)


@routes.get("/{conversation_id}/items/{item_id}")
async def retrieve_item(
    conversation_id: str, item_id: str, service: TheService, tenant: Tenant
) -> JsonObject:
    """One item of a conversation."""
    for item in await service.responses.history(tenant, None, conversation_id):
        if item["id"] == item_id:
            return item
    raise _item_not_found(item_id)


@routes.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: str, item_id: str, service: TheService, tenant: Tenant
) -> JsonObject:
    """Take an item out of a conversation, which is what is returned."""
    conversation = await retrieve_conversation(conversation_id, service, tenant)
    if not await service.responses.store.delete_item(tenant, conversation_id, item_id):
        raise _item_not_found(item_id)
    return conversation


def _items(given: list[JsonObject]) -> list[JsonObject]:
    return input_items(given, secrets.token_hex(16))


def _stored(items: list[JsonObject]) -> list[tuple[str, bytes]]:
    return [(item["id"], msgspec.json.encode(item)) for item in items]


def _object(conversation: StoredConversation) -> JsonObject:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": msgspec.json.decode(conversation.metadata),
    }


def _item_not_found(item_id: str) -> NotFoundError:
    return NotFoundError(f"Item with id '{item_id}' not found.", param="item_id")

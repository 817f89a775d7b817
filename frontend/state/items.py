"""Items as they are stored: what a request's input becomes, and how an id leads to its item."""

import re
from collections.abc import Sequence

from frontend.requests.fields import JsonObject
from frontend.store import is_id

_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})i?[0-9a-f]+")
_TEXT_TYPES = {"assistant": "output_text"}


def input_items(given: object, root: str) -> list[JsonObject]:
    """The input of a checked request as items with ids: those it has, or new ones that lead to the
    response `resp_ROOT`. No two have the same."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    assert isinstance(given, list)
    known: set[str] = set()
    return [_stored(item, root, place, known) for place, item in enumerate(given)]


def _stored(item: JsonObject, root: str, place: int, known: set[str]) -> JsonObject:
    kind = item.get("type") or "message"
    members = dict(item)
    if kind == "message" and isinstance(item.get("content"), str):
        text = _TEXT_TYPES.get(str(item.get("role")), "input_text")
        members["content"] = [{"type": text, "text": item["content"]}]
    made = f"{_ID_PREFIXES.get(kind, 'item')}_{root}i{place:02x}"
    own = item.get("id")
    first = {"id": own if own and is_id(own) and own not in known else made, "type": kind}
    known.add(first["id"])
    return first | {"status": "completed"} | {k: v for k, v in members.items() if k not in first}


def response_of(item_id: str) -> str | None:
    """The id of the response that an item's id leads to; None if it is not one of ours."""
    found = _ITEM_ID.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None


def page(
    items: Sequence[JsonObject], *, after: str | None, limit: int, descending: bool
) -> JsonObject | None:
    """A page of a list of items, as OpenAI's API has it; None if there is no item `after`."""
    ordered = list(reversed(items)) if descending else list(items)
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            return None
        ordered = ordered[places[0] + 1 :]
    return list_object(ordered[:limit], has_more=len(ordered) > limit)


def list_object(items: Sequence[JsonObject], *, has_more: bool) -> JsonObject:
    """A list of objects as OpenAI's API has it."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }

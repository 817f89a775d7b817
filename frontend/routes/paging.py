"""Lists of items, a page at a time."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Query

from frontend.errors import InvalidRequestError
from frontend.requests.fields import JsonObject
from frontend.state.items import page

Limit = Annotated[int, Query(ge=1, le=100)]
Order = Annotated[Literal["asc", "desc"], Query()]


def page_of(
    items: Sequence[JsonObject], after: str | None, limit: int, order: Literal["asc", "desc"]
) -> JsonObject:
    """A page as OpenAI's API has it. Raises InvalidRequestError if there is no item `after`."""
    found = page(items, after=after, limit=limit, descending=order == "desc")
    if found is None:
        raise InvalidRequestError(f"Invalid 'after': there is no item {after!r}.", param="after")
    return found

"""Bodies of `/v1/conversations`."""

from typing import Annotated

from pydantic import Field

from frontend.requests.fields import RequestModel, ShortList
from frontend.requests.responses import Item, Metadata


class NewConversation(RequestModel):
    """A conversation, and how it begins."""

    items: Annotated[list[Item], ShortList] | None = None
    metadata: Metadata | None = None


class NewItems(RequestModel):
    """Items to be added to a conversation."""

    items: Annotated[list[Item], Field(min_length=1), ShortList]


class ChangedConversation(RequestModel):
    """New metadata of a conversation, in place of what it had."""

    metadata: Metadata

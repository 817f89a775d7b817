"""The body of `POST /v1/responses`.

`reasoning.summary`, `text.verbosity`, `store`, `stream_options` and `max_tool_calls` are accepted
and change nothing: the reasoning is returned in clear, and nothing is stored in this version.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from frontend.requests.fields import (
    STRING_OR_LIST,
    CalledName,
    ChoiceMode,
    Content,
    Effort,
    FormatName,
    FunctionDefinition,
    JsonObject,
    ModelName,
    NamedFunction,
    OtherFormat,
    OtherTool,
    Part,
    PlainFormat,
    RequestModel,
    SamplingFields,
    Shallow,
    ShortList,
    TokenLimit,
    choice_tag,
    format_tag,
    parse_body,
    refuse,
    string_member,
    tool_tag,
)


class Message(RequestModel):
    """A message of any role; `phase` tells an assistant's preamble from its answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: str | None = None


class ReasoningItem(RequestModel):
    """Past reasoning. Without content (summary or encrypted content only) it says nothing."""

    type: Literal["reasoning"]
    content: Annotated[list[Part], ShortList] | None = None


class FunctionCallItem(RequestModel):
    """A past call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: CalledName
    arguments: str


class FunctionCallOutput(RequestModel):
    """The result of a past call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


def _refuse_reference(kind: str) -> str:
    raise PydanticCustomError(
        "unsupported_value",
        "an item cannot be referred to, because nothing is stored in this version; "
        "send the item itself",
    )


class ItemReference(RequestModel):
    """A reference to a stored item: always refused."""

    type: Annotated[str, AfterValidator(_refuse_reference)]


class OtherItem(RequestModel):
    """An item of a type that this server does not know; it is skipped."""

    type: str


_ITEM_TYPES = {
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "item_reference",
}


def _item_tag(value: object) -> str:
    kind = string_member(value, "type")
    if isinstance(value, dict) and value.get("type") is None and "role" in value:
        kind = "message"
    return f"<{kind}>" if kind in _ITEM_TYPES else "<other>"


Item = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutput, Tag("<function_call_output>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_tag),
]

Input = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[Item], Tag("<list>"), Field(min_length=1), ShortList],
    STRING_OR_LIST,
]


class FunctionTool(FunctionDefinition):
    """A tool of type function."""

    type: Literal["function"]


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[OtherTool, Tag("<other>")],
    Discriminator(tool_tag),
    Shallow,
]


class ReasoningOptions(RequestModel):
    """How much to reason."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class SchemaFormat(RequestModel):
    """An answer by a schema, which is followed whether `strict` or not."""

    type: Literal["json_schema"]
    name: FormatName
    description: str | None = None
    schema_: Annotated[JsonObject, Shallow] = Field(alias="schema")
    strict: bool | None = None


Format = Annotated[
    Annotated[PlainFormat, Tag("<plain>")]
    | Annotated[SchemaFormat, Tag("<schema>")]
    | Annotated[OtherFormat, Tag("<other>")],
    Discriminator(format_tag),
]

ToolChoice = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")] | Annotated[NamedFunction, Tag("<named>")],
    Discriminator(choice_tag),
]


class TextOptions(RequestModel):
    """The form of the answer."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Include = Annotated[
    str,
    refuse(
        "only 'reasoning.encrypted_content' is accepted (the reasoning is returned in clear)",
        "reasoning.encrypted_content",
    ),
]
Stateful = Annotated[Any, refuse("it is not supported, because nothing is stored in this version")]


class ResponsesRequest(SamplingFields):
    """The body of `POST /v1/responses`."""

    model: ModelName
    input: Input
    instructions: str | None = None
    tools: Annotated[list[Tool], ShortList] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    max_output_tokens: TokenLimit | None = None
    max_tool_calls: TokenLimit | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    include: Annotated[list[Include], ShortList] | None = None
    stream: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[Any, refuse("logprobs are not supported in this version", 0)] = None
    background: Annotated[
        Any, refuse("background responses are not supported in this version", False)
    ] = None
    previous_response_id: Stateful = None
    conversation: Stateful = None
    prompt: Stateful = None


def parse_responses(body: bytes) -> ResponsesRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    return parse_body(ResponsesRequest, body)

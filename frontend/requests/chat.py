"""The body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from frontend.requests.fields import (
    CalledName,
    ChoiceMode,
    Content,
    Effort,
    FormatName,
    FunctionDefinition,
    JsonObject,
    ModelName,
    OtherFormat,
    OtherTool,
    PlainFormat,
    RequestModel,
    SamplingFields,
    Shallow,
    ShortList,
    TokenLimit,
    ToolName,
    choice_tag,
    format_tag,
    parse_body,
    refuse,
    string_member,
    tool_tag,
)


class InstructionMessage(RequestModel):
    """A developer's or system message."""

    role: Literal["developer", "system"]
    content: Content


class UserMessage(RequestModel):
    """A user's message."""

    role: Literal["user"]
    content: Content


class CalledFunction(RequestModel):
    """The function of a past call."""

    name: CalledName
    arguments: str


class ToolCall(RequestModel):
    """A past call; of the types of calls only functions are known here."""

    id: str
    type: Annotated[str, refuse("only calls of type 'function' are supported", "function")] = (
        "function"
    )
    function: CalledFunction


NoFunctions = Annotated[Any, refuse("it is not supported; use tools instead")]
TextOnly = Annotated[Any, refuse("this model reads and writes text only")]


class AssistantMessage(RequestModel):
    """A past answer. Clients send the reasoning back under either name."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], ShortList] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: NoFunctions = None
    audio: TextOnly = None


class ToolMessage(RequestModel):
    """The result of a past call."""

    role: Literal["tool"]
    tool_call_id: str
    content: Content


class OtherMessage(RequestModel):
    """A message of another role: always refused, since none of these names reaches it."""

    role: Literal["developer", "system", "user", "assistant", "tool"]


_ROLE_TAGS = {
    "developer": "<instruction>",
    "system": "<instruction>",
    "user": "<user>",
    "assistant": "<assistant>",
    "tool": "<tool>",
}


def _message_tag(value: object) -> str:
    return _ROLE_TAGS.get(string_member(value, "role") or "", "<other>")


Message = Annotated[
    Annotated[InstructionMessage, Tag("<instruction>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")]
    | Annotated[OtherMessage, Tag("<other>")],
    Discriminator(_message_tag),
]


class FunctionTool(RequestModel):
    """A tool of type function."""

    type: Literal["function"]
    function: FunctionDefinition


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[OtherTool, Tag("<other>")],
    Discriminator(tool_tag),
    Shallow,
]


class ChosenFunction(RequestModel):
    """The name of a chosen function."""

    name: ToolName


class NamedTool(RequestModel):
    """The choice of one function."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")] | Annotated[NamedTool, Tag("<named>")],
    Discriminator(choice_tag),
]


class JsonSchema(RequestModel):
    """A schema for the answer; it is followed whether `strict` or not."""

    name: FormatName
    description: str | None = None
    schema_: Annotated[JsonObject, Shallow] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class SchemaFormat(RequestModel):
    """An answer by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    Annotated[PlainFormat, Tag("<plain>")]
    | Annotated[SchemaFormat, Tag("<schema>")]
    | Annotated[OtherFormat, Tag("<other>")],
    Discriminator(format_tag),
]


class StreamOptions(RequestModel):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None


Modality = Annotated[str, refuse("this model writes text only", "text")]


class ChatRequest(SamplingFields):
    """The body of `POST /v1/chat/completions`."""

    model: ModelName
    messages: Annotated[list[Message], Field(min_length=1), ShortList]
    tools: Annotated[list[Tool], ShortList] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    """The older name of `max_completion_tokens`, which goes first."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Any, refuse("only one choice is supported in this version", 1)] = None
    logprobs: Annotated[Any, refuse("logprobs are not supported in this version", False)] = None
    top_logprobs: Annotated[Any, refuse("logprobs are not supported in this version", 0)] = None
    modalities: Annotated[list[Modality], ShortList] | None = None
    audio: TextOnly = None
    functions: NoFunctions = None
    function_call: NoFunctions = None


def parse_chat(body: bytes) -> ChatRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    return parse_body(ChatRequest, body)

"""The body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from frontend.errors import InvalidRequestError
from frontend.requests.fields import (
    CalledName,
    ChoiceMode,
    Content,
    Effort,
    FormatName,
    FunctionDefinition,
    GrammarDefinition,
    JsonObject,
    ModelName,
    OtherChoice,
    OtherFormat,
    OtherInput,
    OtherTool,
    PlainFormat,
    RefusedModel,
    RequestModel,
    SamplingFields,
    Shallow,
    ShortList,
    TextInput,
    TokenLimit,
    ToolName,
    TopLogprobs,
    choice_tag,
    format_tag,
    input_tag,
    parse_body,
    refuse,
    string_member,
    tool_tag,
)

MAX_CHOICES = 128


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


class FunctionCall(RequestModel):
    """A past call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustomTool(RequestModel):
    """The custom tool of a past call."""

    name: CalledName
    input: str


class CustomCall(RequestModel):
    """A past call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CalledCustomTool


class OtherCall(RefusedModel):
    """A call of another type: always refused."""

    type: Annotated[Any, refuse("only calls of functions and custom tools are known", "function")]


def _call_tag(value: object) -> str:
    kind = string_member(value, "type")
    if kind is None and isinstance(value, dict) and "type" not in value:
        kind = "function"
    return f"<{kind}>" if kind in ("function", "custom") else "<other>"


ToolCall = Annotated[
    Annotated[FunctionCall, Tag("<function>")]
    | Annotated[CustomCall, Tag("<custom>")]
    | Annotated[OtherCall, Tag("<other>")],
    Discriminator(_call_tag),
]


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


class OtherMessage(RefusedModel):
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


class GrammarInput(RequestModel):
    """The input of a custom tool matches a grammar."""

    type: Literal["grammar"]
    grammar: GrammarDefinition


class CustomDefinition(RequestModel):
    """A tool whose input is text of its own format."""

    name: ToolName
    description: str | None = None
    format: (
        Annotated[
            Annotated[TextInput, Tag("<text>")]
            | Annotated[GrammarInput, Tag("<grammar>")]
            | Annotated[OtherInput, Tag("<other>")],
            Discriminator(input_tag),
        ]
        | None
    ) = None


class CustomTool(RequestModel):
    """A tool of type custom."""

    type: Literal["custom"]
    custom: CustomDefinition


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[OtherTool, Tag("<other>")],
    Discriminator(tool_tag("function", "custom")),
    Shallow,
]


class ToolReference(RequestModel):
    """The name of a chosen tool."""

    name: ToolName


class NamedFunction(RequestModel):
    """The choice of one function."""

    type: Literal["function"]
    function: ToolReference

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name


class NamedCustomTool(RequestModel):
    """The choice of one custom tool."""

    type: Literal["custom"]
    custom: ToolReference

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.custom.name


NamedTool = Annotated[
    Annotated[NamedFunction, Tag("<function>")]
    | Annotated[NamedCustomTool, Tag("<custom>")]
    | Annotated[OtherChoice, Tag("<other>")],
    Discriminator(choice_tag),
]


class AllowedToolList(RequestModel):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), ShortList]


class AllowedTools(RequestModel):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolList


ToolChoice = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")]
    | Annotated[NamedFunction, Tag("<function>")]
    | Annotated[NamedCustomTool, Tag("<custom>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")]
    | Annotated[OtherChoice, Tag("<other>")],
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
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    modalities: Annotated[list[Modality], ShortList] | None = None
    audio: TextOnly = None
    functions: NoFunctions = None
    function_call: NoFunctions = None
    web_search_options: Annotated[Any, refuse("this server searches nothing")] = None


def parse_chat(body: bytes) -> ChatRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    request = parse_body(ChatRequest, body)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError(
            "Invalid 'top_logprobs': it needs 'logprobs' to be true.", param="top_logprobs"
        )
    return request

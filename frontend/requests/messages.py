"""The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`.

`metadata`, `context_management`, `service_tier`, `cache_control` and the like are accepted and
change nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from frontend.requests.fields import (
    STRING_OR_LIST,
    CalledName,
    Content,
    FunctionDefinition,
    JsonObject,
    ModelName,
    OtherPart,
    OtherTool,
    RefusedModel,
    RequestModel,
    SamplingFields,
    Shallow,
    ShortList,
    StopString,
    TextPart,
    TokenLimit,
    parse_body,
    refuse,
    string_member,
)

# --- blocks ------------------------------------------------------------------------------------


class ToolReference(RequestModel):
    """What a search for tools has found: from there on that tool can be called."""

    type: Literal["tool_reference"]
    tool_name: str


def _result_tag(value: object) -> str:
    kind = string_member(value, "type")
    return f"<{kind}>" if kind in ("text", "tool_reference") else "<other>"


ResultPart = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[ToolReference, Tag("<tool_reference>")]
    | Annotated[OtherPart, Tag("<other>")],
    Discriminator(_result_tag),
]


class ToolResult(RequestModel):
    """The result of a past call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("<string>")] | Annotated[list[ResultPart], Tag("<list>"), ShortList],
            STRING_OR_LIST,
        ]
        | None
    ) = None
    is_error: bool | None = None


class Thinking(RequestModel):
    """Past reasoning; without its text it is in the signature, if this server made that."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUse(RequestModel):
    """A past call."""

    type: Literal["tool_use"]
    id: str
    name: CalledName
    input: Annotated[JsonObject, Shallow]


class OtherBlock(RequestModel):
    """What only other models say, such as `redacted_thinking` or `server_tool_use`: skipped."""

    type: str


def _block_tag(value: object) -> str:
    kind = string_member(value, "type")
    return f"<{kind}>" if kind in ("text", "thinking", "tool_use", "tool_result") else "<other>"


def _user_block_tag(value: object) -> str:
    return tag if (tag := _block_tag(value)) in ("<text>", "<tool_result>") else "<other>"


def _assistant_block_tag(value: object) -> str:
    return "<other>" if (tag := _block_tag(value)) == "<tool_result>" else tag


UserBlock = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[ToolResult, Tag("<tool_result>")]
    | Annotated[OtherPart, Tag("<other>")],
    Discriminator(_user_block_tag),
]
AssistantBlock = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[Thinking, Tag("<thinking>")]
    | Annotated[ToolUse, Tag("<tool_use>")]
    | Annotated[OtherBlock, Tag("<other>")],
    Discriminator(_assistant_block_tag),
]


# --- messages ----------------------------------------------------------------------------------


class UserMessage(RequestModel):
    """What the user said, and the results of calls."""

    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[list[UserBlock], Tag("<list>"), ShortList],
        STRING_OR_LIST,
    ]


class AssistantMessage(RequestModel):
    """A past answer."""

    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[list[AssistantBlock], Tag("<list>"), ShortList],
        STRING_OR_LIST,
    ]


class SystemMessage(RequestModel):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: Content


class OtherMessage(RefusedModel):
    """A message of another role: always refused, since none of these names reaches it."""

    role: Literal["user", "assistant", "system"]


def _role_tag(value: object) -> str:
    role = string_member(value, "role")
    return f"<{role}>" if role in ("user", "assistant", "system") else "<other>"


Message = Annotated[
    Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[SystemMessage, Tag("<system>")]
    | Annotated[OtherMessage, Tag("<other>")],
    Discriminator(_role_tag),
]


# --- tools -------------------------------------------------------------------------------------

LongToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
"""Clients name the tools of MCP servers after both, beyond the 64 characters of OpenAI's APIs."""


class ClientTool(FunctionDefinition):
    """A tool that the client runs. One that is deferred is not told before it is referred to."""

    type: Literal["custom"] | None = None
    name: LongToolName
    parameters: JsonObject | None = Field(alias="input_schema")
    defer_loading: bool | None = None


def _tool_tag(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "<client>" if kind in (None, "custom") else "<other>"


Tool = Annotated[
    Annotated[ClientTool, Tag("<client>")] | Annotated[OtherTool, Tag("<other>")],
    Discriminator(_tool_tag),
    Shallow,
]


class ChoiceMode(RequestModel):
    """Whether to call: if the model likes, in any case, or not at all."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedTool(RequestModel):
    """The choice of one tool."""

    type: Literal["tool"]
    name: LongToolName
    disable_parallel_tool_use: bool | None = None


def _choice_tag(value: object) -> str:
    return "<named>" if string_member(value, "type") == "tool" else "<mode>"


ToolChoice = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")] | Annotated[NamedTool, Tag("<named>")],
    Discriminator(_choice_tag),
]


# --- parameters --------------------------------------------------------------------------------


class ThinkingOptions(RequestModel):
    """Whether to reason, how long, and what is shown of it."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: TokenLimit | None = None
    display: str | None = None


class SchemaFormat(RequestModel):
    """An answer by a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Shallow] = Field(alias="schema")


class OutputOptions(RequestModel):
    """How much effort to make, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: SchemaFormat | None = None


def _refuse_last_answer(messages: list[Message]) -> list[Message]:
    if messages and isinstance(messages[-1], AssistantMessage):
        raise PydanticCustomError(
            "unsupported_value",
            "this model does not continue a message of the assistant; the last message must be "
            "the user's",
        )
    return messages


Messages = Annotated[list[Message], Field(min_length=1), ShortList]


class MessagesPrompt(RequestModel):
    """The body of `POST /v1/messages/count_tokens`: all that makes the prompt."""

    model: ModelName
    messages: Messages
    system: Content | None = None
    tools: Annotated[list[Tool], ShortList] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    output_format: SchemaFormat | None = None
    """The older place of `output_config.format`, which goes first."""
    mcp_servers: Annotated[Any, refuse("this server connects to no MCP servers", [])] = None
    container: Annotated[Any, refuse("this server runs no containers")] = None


class MessagesRequest(MessagesPrompt, SamplingFields):
    """The body of `POST /v1/messages`. What `SamplingFields` adds are extensions."""

    max_tokens: TokenLimit
    messages: Annotated[Messages, AfterValidator(_refuse_last_answer)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=16, fail_fast=True)] | None = None
    stream: bool | None = None

    @property
    def shown_thinking(self) -> Literal["shown", "omitted", "hidden"]:
        """What is shown of the reasoning."""
        thinking = self.thinking
        if thinking and thinking.type == "disabled":
            return "hidden"
        return "omitted" if thinking and thinking.display == "omitted" else "shown"

    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, empty if there are none."""
        return tuple(self.stop_sequences or ()) or super().stop_strings()

    @property
    def parallel_tool_calls(self) -> bool:
        """Whether a turn may have several calls."""
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use


def parse_messages(body: bytes) -> MessagesRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    return parse_body(MessagesRequest, body)


def parse_messages_prompt(body: bytes) -> MessagesPrompt:
    """The request to count tokens in an HTTP body. Raises InvalidRequestError."""
    return parse_body(MessagesPrompt, body)

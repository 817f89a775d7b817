"""The body of `POST /v1/responses`, and the items that it and its history are made of.

What is accepted and changes nothing is told in docs/api.md.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter, ValidationError

from frontend.errors import InvalidRequestError, first_invalid
from frontend.requests.fields import (
    STRING_OR_LIST,
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
    Part,
    PlainFormat,
    RequestModel,
    SamplingFields,
    Shallow,
    ShortList,
    TextInput,
    TokenLimit,
    ToolName,
    TopLogprobs,
    choice_tag,
    decode_body,
    format_tag,
    input_tag,
    refuse,
    string_member,
    tool_tag,
    validated,
)

ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

# --- tools -------------------------------------------------------------------------------------


class FunctionTool(FunctionDefinition):
    """A tool of type function."""

    type: Literal["function"]


class GrammarInput(GrammarDefinition):
    """The input of a custom tool matches a grammar."""

    type: Literal["grammar"]


class CustomTool(RequestModel):
    """A tool whose input is text of its own format."""

    type: Literal["custom"]
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


NamespacedTool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[OtherTool, Tag("<other>")],
    Discriminator(tool_tag("function", "custom")),
]


def _not_functions(name: str) -> str:
    if name == "functions":
        raise ValueError("'functions' is the namespace of the tools that have none")
    return name


class NamespaceTool(RequestModel):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: Annotated[ToolName, AfterValidator(_not_functions)]
    description: str | None = None
    tools: Annotated[list[NamespacedTool], ShortList]


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[NamespaceTool, Tag("<namespace>")]
    | Annotated[OtherTool, Tag("<other>")],
    Discriminator(tool_tag("function", "custom", "namespace")),
    Shallow,
]
Tools = Annotated[list[Tool], ShortList]


class InNamespace(RequestModel):
    """What names a tool, perhaps one in a namespace."""

    name: CalledName
    namespace: CalledName | None = None

    @property
    def full_name(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class NamedTool(InNamespace):
    """The choice of one tool, by its name."""

    type: Literal["function", "custom"]


class AllowedTools(RequestModel):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), ShortList]


ToolChoice = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")]
    | Annotated[NamedTool, Tag("<function>")]
    | Annotated[NamedTool, Tag("<custom>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")]
    | Annotated[OtherChoice, Tag("<other>")],
    Discriminator(choice_tag),
]

# --- items -------------------------------------------------------------------------------------


class Message(RequestModel):
    """A message of any role; `phase` tells an assistant's preamble from its answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: str | None = None


class ReasoningItem(RequestModel):
    """Past reasoning, in clear or sealed by this server. A summary alone says nothing."""

    type: Literal["reasoning"]
    content: Annotated[list[Part], ShortList] | None = None
    encrypted_content: str | None = None


class FunctionCallItem(InNamespace):
    """A past call of a function."""

    type: Literal["function_call"]
    call_id: str
    arguments: str


class CustomCallItem(InNamespace):
    """A past call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: str
    input: str


class CallOutputItem(RequestModel):
    """The result of a past call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


class CompactionItem(RequestModel):
    """What a conversation said until it was compacted, sealed by this server."""

    type: Literal["compaction"]
    encrypted_content: str


class AdditionalToolsItem(RequestModel):
    """Tools that are declared in the input."""

    type: Literal["additional_tools"]
    tools: Tools


class ItemReference(RequestModel):
    """A reference to an item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: str


class OtherItem(RequestModel):
    """An item of a type that this server does not know; it is skipped."""

    type: str


_ITEM_TYPES = {
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "compaction",
    "additional_tools",
    "item_reference",
}


def _item_tag(value: object) -> str:
    kind = string_member(value, "type")
    if isinstance(value, dict) and value.get("type") is None:
        if "role" in value:
            kind = "message"
        elif "id" in value:
            kind = "item_reference"
    return f"<{kind}>" if kind in _ITEM_TYPES else "<other>"


Item = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[CustomCallItem, Tag("<custom_tool_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[CallOutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[AdditionalToolsItem, Tag("<additional_tools>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_tag),
]
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def parse_items(values: list[JsonObject]) -> list[Item]:
    """Items of a conversation, as they were stored. Raises InvalidRequestError."""
    try:
        return _ITEMS.validate_python(values)
    except ValidationError as error:
        raise first_invalid(error) from error


Input = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Item], Tag("<list>"), ShortList],
    STRING_OR_LIST,
]

# --- the rest ----------------------------------------------------------------------------------


class ReasoningOptions(RequestModel):
    """How much to reason, and whether its summary is told."""

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


class TextOptions(RequestModel):
    """The form of the answer."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


INCLUDABLE = (
    ENCRYPTED_REASONING,
    LOGPROBS,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""From the third on there is never any of it here."""
Include = Annotated[str, refuse("there is nothing of that name to include", *INCLUDABLE)]


class ConversationReference(RequestModel):
    """A conversation by its id."""

    id: str


Metadata = dict[str, str]


class PromptFields(RequestModel):
    """What of a request its prompt is made of."""

    model: ModelName | None = None
    input: Input | None = None
    instructions: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: (
        Annotated[
            Annotated[str, Tag("<string>")] | Annotated[ConversationReference, Tag("<object>")],
            Discriminator(lambda value: "<string>" if isinstance(value, str) else "<object>"),
        ]
        | None
    ) = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that this request is part of."""
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given


class ResponsesRequest(PromptFields, SamplingFields):
    """The body of `POST /v1/responses`."""

    model: ModelName
    parallel_tool_calls: bool | None = None
    max_output_tokens: TokenLimit | None = None
    max_tool_calls: TokenLimit | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    include: Annotated[list[Include], ShortList] | None = None
    stream: bool | None = None
    top_logprobs: TopLogprobs | None = None
    background: bool | None = None
    prompt: Annotated[Any, refuse("stored prompts are not kept here; send the input itself")] = None

    @property
    def encrypted_reasoning(self) -> bool:
        """Whether the reasoning is to be sealed for the client to keep."""
        return ENCRYPTED_REASONING in (self.include or ())

    @property
    def logprobs(self) -> int | None:
        """How many most likely tokens to tell for each token; None if nothing of that is asked."""
        if LOGPROBS in (self.include or ()) or self.top_logprobs:
            return self.top_logprobs or 0
        return None


def parse_responses(body: bytes) -> ResponsesRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    return check_responses(decode_body(body))


def check_responses(value: JsonObject) -> ResponsesRequest:
    """The request that a body's JSON is. Raises InvalidRequestError."""
    request = validated(ResponsesRequest, value)
    check_input(request)
    if request.background and request.store is False:
        raise InvalidRequestError(
            "Invalid 'background': a response in the background has to be stored.",
            param="background",
        )
    return request


def check_input(request: PromptFields) -> None:
    """Raise InvalidRequestError if there is nothing to answer, or two histories."""
    if request.conversation is not None and request.previous_response_id is not None:
        raise InvalidRequestError(
            "Invalid 'previous_response_id': it cannot be used with 'conversation'.",
            code="mutually_exclusive_parameters",
            param="previous_response_id",
        )
    if request.conversation is None and request.previous_response_id is None:
        if request.input is None:
            raise InvalidRequestError(
                "Missing required parameter: 'input'.",
                code="missing_required_parameter",
                param="input",
            )
        if request.input == []:
            raise InvalidRequestError("Invalid 'input': must not be empty.", param="input")


class CompactRequest(RequestModel):
    """The body of `POST /v1/responses/compact`."""

    model: ModelName
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


def check_prompt(value: JsonObject) -> PromptFields:
    """The body of `POST /v1/responses/input_tokens`. Raises InvalidRequestError."""
    request = validated(PromptFields, value)
    check_input(request)
    return request

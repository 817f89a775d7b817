"""What the request models of all APIs share: strict fields, text content, refused values.

Unions are discriminated by a function, so that a mistake gives one error about the branch that
the client meant. Their tags stand in angle brackets: `errors.parameter_path` leaves them out.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from frontend.errors import InvalidRequestError, first_invalid

MAX_NESTING = 100
"""Levels of nesting in a tool; openai-harmony reads JSON of up to 128 levels, its own included."""

MAX_ITEMS = 32_768
"""Most entries of a list. Each takes tokens of the prompt, and microseconds of the event loop."""
ShortList = Field(fail_fast=True, max_length=MAX_ITEMS)

JsonObject = dict[str, Any]


class RequestModel(BaseModel):
    """Base of all request models: no coercion between types; unknown members are let pass."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class RefusedModel(RequestModel):
    """The branch of a union that is there for its error alone, and that no client is told of."""

    model_config = ConfigDict(json_schema_extra={"x-refused": True})


RequestType = TypeVar("RequestType", bound=RequestModel)


def parse_body(model: type[RequestType], body: bytes) -> RequestType:
    """The request in an HTTP body. Raises InvalidRequestError for the first thing wrong with it."""
    return validated(model, decode_body(body))


def decode_body(body: bytes) -> JsonObject:
    """The JSON object in an HTTP body. Raises InvalidRequestError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequestError(
            f"The request body is not valid JSON: {reason}.", code="invalid_json"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.", code="invalid_json")
    return value


def validated(model: type[RequestType], value: JsonObject) -> RequestType:
    """A request of a kind. Raises InvalidRequestError for the first thing wrong with it."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise first_invalid(error) from error


def refuse(reason: str, *accepted: object) -> BeforeValidator:
    """Refuse, with `reason`, every value but null and the accepted ones."""

    def check(value: object) -> object:
        if value is None or any(value == one and type(value) is type(one) for one in accepted):
            return value
        code = "unsupported_value" if accepted else "unsupported_parameter"
        raise PydanticCustomError(code, "{reason}", {"reason": reason})

    return BeforeValidator(check)


def _nests_too_deeply(value: object) -> bool:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _check_nesting(value: object) -> object:
    if _nests_too_deeply(value):
        raise PydanticCustomError("invalid_value", f"nests deeper than {MAX_NESTING} levels")
    return value


Shallow = BeforeValidator(_check_nesting)
"""For JSON that is kept as it is, and so walked recursively later on."""


# --- text content ------------------------------------------------------------------------------


class TextPart(RequestModel):
    """A piece of text, under any of its names in the APIs."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


class RefusalPart(RequestModel):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


def _refuse_part(kind: str) -> str:
    raise PydanticCustomError(
        "unsupported_value", "this model reads text only, not {kind}", {"kind": repr(kind)}
    )


class OtherPart(RefusedModel):
    """An image, a file, audio, or something unknown: always refused."""

    type: Annotated[str, AfterValidator(_refuse_part)]


_PART_TAGS = {
    "input_text": "<text>",
    "output_text": "<text>",
    "text": "<text>",
    "reasoning_text": "<text>",
    "summary_text": "<text>",
    "refusal": "<refusal>",
}


def string_member(value: object, member: str) -> str | None:
    """A string member of a JSON object, or None; the usual key of a discriminated union."""
    found = value.get(member) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _part_tag(value: object) -> str:
    return _PART_TAGS.get(string_member(value, "type") or "", "<other>")


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[OtherPart, Tag("<other>")],
    Discriminator(_part_tag),
]


def string_or_list_tag(value: object) -> str | None:
    """The tag of a union of a string and a list."""
    if isinstance(value, str):
        return "<string>"
    return "<list>" if isinstance(value, list) else None


STRING_OR_LIST = Discriminator(
    string_or_list_tag,
    custom_error_type="invalid_type",
    custom_error_message="must be a string or a list",
)

Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<list>"), ShortList],
    STRING_OR_LIST,
]


def text_of(content: str | list[TextPart | RefusalPart | OtherPart]) -> str:
    """The text of a message; parts stand on lines of their own."""
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: TextPart | RefusalPart | OtherPart) -> str:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
    raise AssertionError(f"{part!r} passed validation")


# --- parameters --------------------------------------------------------------------------------

ModelName = Annotated[str, Field(min_length=1)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenLimit = Annotated[int, Field(ge=1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopString = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[StopString, Tag("<string>")]
    | Annotated[list[StopString], Tag("<list>"), Field(max_length=16, fail_fast=True)],
    STRING_OR_LIST,
]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
CalledName = Annotated[str, Field(pattern=r"^[^\s<>|]{1,256}$")]
"""A name in the history is what a model wrote, declared or not. It stands in a message header,
which whitespace and markup would end."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
MAX_BIASED = 1024
TokenId = Annotated[str, Field(pattern=r"^\d{1,7}$")]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASED)
]
FormatName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class PlainFormat(RequestModel):
    """Text, or any JSON object."""

    type: Literal["text", "json_object"]


class OtherFormat(RefusedModel):
    """A format that is none: always refused, since none of these names reaches it."""

    type: Literal["text", "json_object", "json_schema"]


def format_tag(value: object) -> str:
    """The tag of a union of the formats of an answer."""
    kind = string_member(value, "type")
    if kind in ("text", "json_object"):
        return "<plain>"
    return "<schema>" if kind == "json_schema" else "<other>"


ChoiceMode = Literal["auto", "none", "required"]
MAX_TOP_LOGPROBS = 20
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


def choice_tag(value: object) -> str:
    """The tag of a union of the ways to choose a tool: a mode, or an object of some type."""
    if not isinstance(value, dict):
        return "<mode>"
    kind = string_member(value, "type")
    return f"<{kind}>" if kind in ("function", "custom", "allowed_tools") else "<other>"


class OtherChoice(RefusedModel):
    """The choice of a hosted tool, or of nothing that is known: always refused."""

    type: Annotated[
        Any, refuse("a tool of this type cannot run here", "function", "custom", "allowed_tools")
    ]


class SamplingFields(RequestModel):
    """The parameters of sampling and scheduling that all APIs share. From `top_k` on they are
    extensions, and so are penalties and bias in the Responses API."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    top_k: TopK | None = None
    """0 and -1 switch it off, as clients of other servers send them."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """Among the requests of one tenant: the lowest goes first."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Only requests with the same one share cached prompts."""

    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, empty if there are none."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class FunctionDefinition(RequestModel):
    """A function that the model may call; the arguments of a `strict` one follow its schema."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class TextInput(RequestModel):
    """The input of a custom tool is free text."""

    type: Literal["text"]


class OtherInput(RefusedModel):
    """A format of a custom tool's input that is none: always refused."""

    type: Literal["text", "grammar"]


def input_tag(value: object) -> str:
    """The tag of a union of the formats of a custom tool's input."""
    kind = string_member(value, "type")
    return f"<{kind}>" if kind in ("text", "grammar") else "<other>"


class GrammarDefinition(RequestModel):
    """What the input of a custom tool must match."""

    syntax: Literal["lark", "regex"]
    definition: str


class OtherTool(RequestModel):
    """A tool of a type that cannot run here: left out of the prompt, kept for the echo."""

    model_config = ConfigDict(extra="allow")
    type: str

    def as_sent(self) -> JsonObject:
        """The tool as the client sent it."""
        return {"type": self.type, **(self.model_extra or {})}


def tool_tag(*kinds: str) -> Callable[[object], str]:
    """The tag of a union of tools of these types and `OtherTool`."""

    def tag(value: object) -> str:
        kind = string_member(value, "type")
        return f"<{kind}>" if kind in kinds else "<other>"

    return tag

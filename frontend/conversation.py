"""One neutral form of a conversation, and how each API's request maps to it.

A client's system message never replaces the model's identity: it becomes developer instructions,
as the Harmony format has it. Those before the first turn join the one developer message that also
declares the functions; later ones stay in their place.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from frontend.errors import InvalidRequestError
from frontend.requests import chat, responses
from frontend.requests.fields import (
    Effort,
    FunctionDefinition,
    JsonObject,
    OtherTool,
    PlainFormat,
    text_of,
)

logger = logging.getLogger(__name__)

HarmonyEffort = Literal["low", "medium", "high"]
EFFORTS: dict[Effort, HarmonyEffort] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""The model knows three levels; the others are taken as the nearest."""
DEFAULT_EFFORT: Effort = "medium"


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A JSON format of the answer, `param` being the place of its schema in the request. Without
    a schema it is any object."""

    param: str
    name: str = ""
    description: str = ""
    schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class DeveloperMessage:
    """Instructions, from a developer's or a system message."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the user was told: an answer (final) or a preamble to a call (commentary)."""

    text: str
    channel: Literal["final", "commentary"] = "final"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the assistant thought (analysis)."""

    text: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the assistant made; `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """What the function `name` returned."""

    name: str
    output: str


Turn = DeveloperMessage | UserMessage | AssistantMessage | Reasoning | FunctionCall | FunctionResult


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that a prompt says. `instructions` is empty if there are none."""

    turns: Sequence[Turn]
    instructions: str = ""
    tools: tuple[FunctionTool, ...] = ()
    effort: HarmonyEffort = "medium"
    format: OutputFormat | None = None


@dataclass(slots=True)
class _Builder:
    """Collects turns in the order of the request."""

    leading: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    """Function name by call id."""

    def instruct(self, text: str) -> None:
        if self.turns:
            self.turns.append(DeveloperMessage(text))
        else:
            self.leading.append(text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        self.calls[call_id] = name
        self.turns.append(FunctionCall(name, arguments))

    def result(self, call_id: str, output: str, param: str) -> None:
        name = self.calls.get(call_id)
        if name is None:
            raise InvalidRequestError(
                f"Invalid '{param}': no earlier function call has the id {call_id!r}.",
                param=param,
            )
        self.turns.append(FunctionResult(name, output))

    def build(
        self,
        tools: tuple[FunctionTool, ...],
        effort: Effort | None,
        output_format: OutputFormat | None,
    ) -> Conversation:
        return Conversation(
            turns=without_past_reasoning(with_preambles(self.turns)),
            instructions="\n\n".join(text for text in self.leading if text),
            tools=tools,
            effort=EFFORTS[effort or DEFAULT_EFFORT],
            format=output_format,
        )


def with_preambles(turns: Sequence[Turn]) -> list[Turn]:
    """Answers with a call after them in the same turn become preambles.

    Clients lose the phase of a message, and the model never calls after it has answered.
    """
    found: list[Turn] = []
    calling = False
    for turn in reversed(turns):
        if isinstance(turn, AssistantMessage) and calling:
            turn = replace(turn, channel="commentary")
        if not isinstance(turn, Reasoning | AssistantMessage):
            calling = isinstance(turn, FunctionCall)
        found.append(turn)
    return found[::-1]


def without_past_reasoning(turns: Sequence[Turn]) -> list[Turn]:
    """Drop the reasoning before the last answer; that of a running tool loop stays.

    Source: "Handling reasoning output in subsequent sampling" of the Harmony format. openai-harmony
    0.0.8 drops only what comes before the first answer, and only if an answer comes last.
    """
    answers = [
        place
        for place, turn in enumerate(turns)
        if isinstance(turn, AssistantMessage) and turn.channel == "final"
    ]
    last = answers[-1] if answers else -1
    return [
        turn for place, turn in enumerate(turns) if place > last or not isinstance(turn, Reasoning)
    ]


# --- Responses ---------------------------------------------------------------------------------


def from_responses(request: responses.ResponsesRequest) -> Conversation:
    """The conversation of a Responses request. Raises InvalidRequestError."""
    builder = _Builder()
    if request.instructions:
        builder.instruct(request.instructions)
    if isinstance(request.input, str):
        builder.turns.append(UserMessage(request.input))
    else:
        for place, item in enumerate(request.input):
            _add_item(builder, item, f"input[{place}]")
    functions = [tool for tool in request.tools or () if isinstance(tool, responses.FunctionTool)]
    _warn_of_left_out(request.tools or ())
    effort = request.reasoning.effort if request.reasoning else None
    return builder.build(
        _offered(functions, request.tool_choice), effort, responses_format(request)
    )


def responses_format(request: responses.ResponsesRequest) -> OutputFormat | None:
    """The JSON format that a Responses request asks for."""
    match request.text and request.text.format:
        case PlainFormat(type="json_object"):
            return OutputFormat("text.format")
        case responses.SchemaFormat() as asked:
            return OutputFormat(
                "text.format.schema", asked.name, asked.description or "", asked.schema_
            )
    return None


def _add_item(builder: _Builder, item: responses.Item, path: str) -> None:
    match item:
        case responses.Message():
            _add_message(builder, item)
        case responses.ReasoningItem():
            if item.content:
                builder.turns.append(Reasoning(text_of(item.content)))
        case responses.FunctionCallItem():
            builder.call(item.call_id, item.name, item.arguments)
        case responses.FunctionCallOutput():
            builder.result(item.call_id, text_of(item.output), f"{path}.call_id")
        case _:
            _warn_once("input items of a type that is not known here are skipped", item.type[:64])


def _add_message(builder: _Builder, message: responses.Message) -> None:
    text = text_of(message.content)
    match message.role:
        case "user":
            builder.turns.append(UserMessage(text))
        case "assistant":
            channel: Literal["final", "commentary"] = (
                "commentary" if message.phase == "commentary" else "final"
            )
            builder.turns.append(AssistantMessage(text, channel))
        case "system" | "developer":
            builder.instruct(text)


# --- Chat Completions --------------------------------------------------------------------------


def from_chat(request: chat.ChatRequest) -> Conversation:
    """The conversation of a Chat Completions request. Raises InvalidRequestError."""
    builder = _Builder()
    for place, message in enumerate(request.messages):
        match message:
            case chat.InstructionMessage():
                builder.instruct(text_of(message.content))
            case chat.UserMessage():
                builder.turns.append(UserMessage(text_of(message.content)))
            case chat.AssistantMessage():
                _add_answer(builder, message)
            case chat.ToolMessage():
                param = f"messages[{place}].tool_call_id"
                builder.result(message.tool_call_id, text_of(message.content), param)
    functions = [
        tool.function for tool in request.tools or () if isinstance(tool, chat.FunctionTool)
    ]
    _warn_of_left_out(request.tools or ())
    return builder.build(
        _offered(functions, request.tool_choice), request.reasoning_effort, chat_format(request)
    )


def chat_format(request: chat.ChatRequest) -> OutputFormat | None:
    """The JSON format that a Chat Completions request asks for."""
    match request.response_format:
        case PlainFormat(type="json_object"):
            return OutputFormat("response_format")
        case chat.SchemaFormat(json_schema=asked):
            param = "response_format.json_schema.schema"
            return OutputFormat(param, asked.name, asked.description or "", asked.schema_)
    return None


def _add_answer(builder: _Builder, message: chat.AssistantMessage) -> None:
    reasoning = message.reasoning or message.reasoning_content
    if reasoning:
        builder.turns.append(Reasoning(reasoning))
    calls = message.tool_calls or ()
    text = text_of(message.content) if message.content is not None else message.refusal
    if text or (text is not None and not calls):
        builder.turns.append(AssistantMessage(text, "commentary" if calls else "final"))
    for call in calls:
        builder.call(call.id, call.function.name, call.function.arguments)


# --- tools -------------------------------------------------------------------------------------


def _offered(
    functions: Sequence[FunctionDefinition], tool_choice: object
) -> tuple[FunctionTool, ...]:
    """The functions that the model is told of: none with tool_choice none."""
    if tool_choice == "none":
        return ()
    return tuple(
        FunctionTool(function.name, function.description or "", function.parameters)
        for function in functions
    )


def _warn_of_left_out(tools: Iterable[object]) -> None:
    for tool in tools:
        if isinstance(tool, OtherTool):
            _warn_once("tools of a type that cannot run here are left out", tool.type[:64])


@lru_cache(maxsize=256)
def _warn_once(what: str, kind: str) -> None:
    """Once for each type: some clients send the same ones with every request."""
    logger.warning("%s: %r", what, kind)

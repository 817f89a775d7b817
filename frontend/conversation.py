"""One neutral form of a conversation, and how each API's request maps to it.

A client's system message never replaces the model's identity: it becomes developer instructions,
as the Harmony format has it. Those before the first turn join the one developer message that also
declares the functions; later ones stay in their place.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from frontend.errors import InvalidRequestError
from frontend.requests import chat, responses
from frontend.requests.fields import (
    ChoiceMode,
    Effort,
    FunctionDefinition,
    JsonObject,
    OtherChoice,
    OtherTool,
    PlainFormat,
    text_of,
)
from ipc.messages import Grammar
from postproc_workers.sealing import Kind as SealedKind

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
class Tool:
    """What the model may call: a function, whose `parameters` are a JSON schema, or a `custom`
    tool, whose input is text, by a grammar if it has one.

    `name` is `NAMESPACE.NAME` but for the namespace `functions`, and `param` the place in the
    request of what its calls are to follow.
    """

    name: str
    description: str = ""
    parameters: JsonObject | None = None
    strict: bool = False
    custom: bool = False
    grammar: Grammar | None = None
    param: str = "tools"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools may be called, by name (None: all), and whether one must be."""

    names: tuple[str, ...] | None = None
    must: bool = False


NO_TOOLS = Choice(())


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
    """A call that the assistant made; `arguments` is JSON text as the model wrote it, or the input
    of a `custom` tool."""

    name: str
    arguments: str
    custom: bool = False


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
    tools: tuple[Tool, ...] = ()
    effort: HarmonyEffort = "medium"
    format: OutputFormat | None = None
    namespaces: tuple[tuple[str, str], ...] = ()
    """Those of the tools that have one, with their descriptions."""
    choice: Choice = Choice()


@dataclass(slots=True)
class Builder:
    """Collects turns in the order of the request; what comes `leading` is for the developer
    message that also declares the functions."""

    leading: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    """Function name by call id."""

    def instruct(self, text: str) -> None:
        """Add instructions."""
        if self.turns:
            self.turns.append(DeveloperMessage(text))
        else:
            self.leading.append(text)

    def call(self, call_id: str, name: str, arguments: str, *, custom: bool = False) -> None:
        """Add a call."""
        self.calls[call_id] = name
        self.turns.append(FunctionCall(name, arguments, custom))

    def result(self, call_id: str, output: str, param: str) -> None:
        """Add the result of an earlier call. Raises InvalidRequestError, at `param`, if there is
        none with that id."""
        name = self.calls.get(call_id)
        if name is None:
            raise InvalidRequestError(
                f"Invalid '{param}': no earlier call has the id {call_id!r}.",
                param=param,
            )
        self.turns.append(FunctionResult(name, output))

    def build(
        self,
        tools: tuple[Tool, ...],
        choice: Choice,
        effort: Effort | None,
        output_format: OutputFormat | None,
        namespaces: tuple[tuple[str, str], ...] = (),
    ) -> Conversation:
        """Without a choice the model is told of no tool. Raises InvalidRequestError."""
        _check_choice(tools, choice)
        if choice == NO_TOOLS:
            tools = namespaces = ()
        return Conversation(
            turns=without_past_reasoning(with_preambles(self.turns)),
            instructions="\n\n".join(text for text in self.leading if text),
            tools=tools,
            namespaces=namespaces,
            choice=choice,
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

Unseal = Callable[[SealedKind, str], str | None]
"""Opens what this server has sealed for a client; None for anything else."""


def opens_nothing(kind: SealedKind, sealed: str) -> None:
    """Where nothing is sealed."""


def from_responses(
    request: responses.PromptFields,
    history: Sequence[responses.Item] = (),
    unseal: Unseal = opens_nothing,
) -> Conversation:
    """The conversation of a Responses request, behind the items of its `history`. Raises
    InvalidRequestError."""
    builder = Builder()
    tools = _Tools()
    if request.instructions:
        builder.instruct(request.instructions)
    for item in history:
        _add_item(builder, tools, item, "previous_response_id", unseal)
    if isinstance(request.input, str):
        builder.turns.append(UserMessage(request.input))
    else:
        for place, item in enumerate(request.input or ()):
            _add_item(builder, tools, item, f"input[{place}]", unseal)
    tools.add(request.tools or (), "tools")
    effort = request.reasoning.effort if request.reasoning else None
    return builder.build(
        tuple(tools.found.values()),
        _responses_choice(request.tool_choice),
        effort,
        responses_format(request),
        tuple(tools.namespaces.items()),
    )


def _responses_choice(
    choice: ChoiceMode | responses.NamedTool | responses.AllowedTools | OtherChoice | None,
) -> Choice:
    match choice:
        case responses.NamedTool():
            return Choice((choice.full_name,), must=True)
        case responses.AllowedTools():
            names = tuple(tool.full_name for tool in choice.tools)
            return Choice(names, must=choice.mode == "required")
        case _:
            return mode_choice(choice)


@dataclass(slots=True)
class _Tools:
    """Collects the tools of a Responses request. What an item of the input declares stands for
    what an earlier one did under that name."""

    found: dict[str, Tool] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        tools: Sequence[responses.Tool | responses.NamespacedTool],
        path: str,
        namespace: str = "",
    ) -> None:
        prefix = f"{namespace}." if namespace else ""
        for place, tool in enumerate(tools):
            param = f"{path}[{place}]"
            match tool:
                case responses.FunctionTool():
                    self._declare(function_tool(tool, f"{param}.parameters", prefix))
                case responses.CustomTool():
                    self._declare(_custom_tool(tool, f"{param}.format.definition", prefix))
                case responses.NamespaceTool():
                    self.namespaces[tool.name] = tool.description or ""
                    self.add(tool.tools, f"{param}.tools", tool.name)
                case OtherTool():
                    warn_of_left_out(tool)

    def _declare(self, tool: Tool) -> None:
        self.found[tool.name] = tool


def _custom_tool(
    tool: responses.CustomTool | chat.CustomDefinition, param: str, prefix: str = ""
) -> Tool:
    grammar = None
    match tool.format:
        case responses.GrammarInput(syntax=kind, definition=text):
            grammar = Grammar(kind, text)
        case chat.GrammarInput(grammar=asked):
            grammar = Grammar(asked.syntax, asked.definition)
    return Tool(
        prefix + tool.name, tool.description or "", custom=True, grammar=grammar, param=param
    )


def responses_format(request: responses.PromptFields) -> OutputFormat | None:
    """The JSON format that a Responses request asks for."""
    match request.text and request.text.format:
        case PlainFormat(type="json_object"):
            return OutputFormat("text.format")
        case responses.SchemaFormat() as asked:
            return OutputFormat(
                "text.format.schema", asked.name, asked.description or "", asked.schema_
            )
    return None


def _add_item(
    builder: Builder, tools: _Tools, item: responses.Item, path: str, unseal: Unseal
) -> None:
    match item:
        case responses.Message():
            _add_message(builder, item)
        case responses.ReasoningItem():
            _add_reasoning(builder, item, unseal)
        case responses.FunctionCallItem():
            builder.call(item.call_id, item.full_name, item.arguments)
        case responses.CustomCallItem():
            builder.call(item.call_id, item.full_name, item.input, custom=True)
        case responses.CallOutputItem():
            builder.result(item.call_id, text_of(item.output), f"{path}.call_id")
        case responses.CompactionItem():
            _add_compaction(builder, item, unseal)
        case responses.AdditionalToolsItem():
            tools.add(item.tools, f"{path}.tools")
        case responses.ItemReference():
            raise InvalidRequestError(
                f"Invalid '{path}.id': there is no item {item.id!r}.", param=f"{path}.id"
            )
        case _:
            warn_once("input items of a type that is not known here are skipped", item.type[:64])


def _add_reasoning(builder: Builder, item: responses.ReasoningItem, unseal: Unseal) -> None:
    if item.content:
        builder.turns.append(Reasoning(text_of(item.content)))
    elif item.encrypted_content:
        text = unseal("reasoning", item.encrypted_content)
        if text is None:
            warn_once("encrypted reasoning that was not sealed here is skipped", "reasoning")
        else:
            builder.turns.append(Reasoning(text))


def _add_compaction(builder: Builder, item: responses.CompactionItem, unseal: Unseal) -> None:
    text = unseal("compaction", item.encrypted_content)
    if text is None:
        raise InvalidRequestError(
            "Invalid 'input': a compaction was not made by this server.",
            code="invalid_encrypted_content",
            param="input",
        )
    builder.instruct(f"# Summary of the conversation until now\n\n{text}")


def _add_message(builder: Builder, message: responses.Message) -> None:
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
    builder = Builder()
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
    return builder.build(
        tuple(_chat_tools(request.tools or ())),
        _chat_choice(request.tool_choice),
        request.reasoning_effort,
        chat_format(request),
    )


def _chat_tools(tools: Sequence[chat.FunctionTool | chat.CustomTool | OtherTool]) -> Iterator[Tool]:
    for place, tool in enumerate(tools):
        match tool:
            case chat.FunctionTool(function=function):
                yield function_tool(function, f"tools[{place}].function.parameters")
            case chat.CustomTool(custom=custom):
                yield _custom_tool(custom, f"tools[{place}].custom.format.grammar.definition")
            case OtherTool():
                warn_of_left_out(tool)


def _chat_choice(
    choice: ChoiceMode
    | chat.NamedFunction
    | chat.NamedCustomTool
    | chat.AllowedTools
    | OtherChoice
    | None,
) -> Choice:
    match choice:
        case chat.NamedFunction() | chat.NamedCustomTool():
            return Choice((choice.name,), must=True)
        case chat.AllowedTools(allowed_tools=allowed):
            named = (t for t in allowed.tools if not isinstance(t, OtherChoice))
            return Choice(tuple(tool.name for tool in named), must=allowed.mode == "required")
        case _:
            return mode_choice(choice)


def chat_format(request: chat.ChatRequest) -> OutputFormat | None:
    """The JSON format that a Chat Completions request asks for."""
    match request.response_format:
        case PlainFormat(type="json_object"):
            return OutputFormat("response_format")
        case chat.SchemaFormat(json_schema=asked):
            param = "response_format.json_schema.schema"
            return OutputFormat(param, asked.name, asked.description or "", asked.schema_)
    return None


def _add_answer(builder: Builder, message: chat.AssistantMessage) -> None:
    reasoning = message.reasoning or message.reasoning_content
    if reasoning:
        builder.turns.append(Reasoning(reasoning))
    calls = message.tool_calls or ()
    text = text_of(message.content) if message.content is not None else message.refusal
    if text or (text is not None and not calls):
        builder.turns.append(AssistantMessage(text, "commentary" if calls else "final"))
    for call in calls:
        match call:
            case chat.FunctionCall(function=function):
                builder.call(call.id, function.name, function.arguments)
            case chat.CustomCall(custom=custom):
                builder.call(call.id, custom.name, custom.input, custom=True)


# --- tools -------------------------------------------------------------------------------------


def function_tool(function: FunctionDefinition, param: str, prefix: str = "") -> Tool:
    """A declared function; `param` is the place of its schema in the request."""
    return Tool(
        prefix + function.name,
        function.description or "",
        function.parameters,
        strict=function.strict is True,
        param=param,
    )


def mode_choice(choice: ChoiceMode | OtherChoice | None) -> Choice:
    """The choice among all tools, or of none."""
    if choice == "none":
        return NO_TOOLS
    return Choice(must=choice == "required")


def _check_choice(tools: Sequence[Tool], choice: Choice) -> None:
    """Raise InvalidRequestError for the choice of what there is not."""
    names = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in names:
            raise InvalidRequestError(
                f"Invalid 'tool_choice': there is no tool {name!r} in 'tools'.",
                param="tool_choice",
            )
    if choice.must and not tools:
        raise InvalidRequestError(
            "Invalid 'tool_choice': 'required' needs a tool in 'tools'.", param="tool_choice"
        )


def warn_of_left_out(tool: OtherTool) -> None:
    """Say once in the log that the model is not told of tools of this type."""
    warn_once("tools of a type that cannot run here are left out", tool.type[:64])


@lru_cache(maxsize=256)
def warn_once(what: str, kind: str) -> None:
    """Once for each type: some clients send the same ones with every request."""
    logger.warning("%s: %r", what, kind)

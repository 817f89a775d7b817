"""How a Messages request maps to a conversation."""

from collections.abc import Iterator

import msgspec

from frontend.conversation import (
    NO_TOOLS,
    AssistantMessage,
    Builder,
    Choice,
    Conversation,
    OutputFormat,
    Reasoning,
    Tool,
    UserMessage,
    function_tool,
    warn_of_left_out,
    warn_once,
)
from frontend.requests import messages
from frontend.requests.fields import Effort, OtherTool, TextPart, text_of
from frontend.requests.messages import MessagesPrompt
from postproc_workers.encoders.messages import INVALID_JSON
from postproc_workers.signatures import hidden_reasoning

BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code writes anew for each conversation, for Anthropic alone:
told to the model, it would keep conversations from sharing a cached prompt."""
LOW_BUDGET, MEDIUM_BUDGET = 4096, 16_384


def from_messages(request: MessagesPrompt) -> Conversation:
    """The conversation of a Messages request. Raises InvalidRequestError."""
    builder = Builder()
    _instruct(builder, request)
    for place, message in enumerate(request.messages):
        _add(builder, message, f"messages[{place}]")
    return builder.build(
        tuple(_tools(request)), _choice(request), _effort(request), messages_format(request)
    )


def _choice(request: MessagesPrompt) -> Choice:
    match request.tool_choice:
        case messages.NamedTool(name=name):
            return Choice((name,), must=True)
        case messages.ChoiceMode(type="none"):
            return NO_TOOLS
        case choice:
            return Choice(must=choice is not None and choice.type == "any")


def _tools(request: MessagesPrompt) -> Iterator[Tool]:
    """The tools that the model is told of: deferred ones only if something names them."""
    named = {name for message in request.messages for name in _referred(message)}
    if isinstance(request.tool_choice, messages.NamedTool):
        named.add(request.tool_choice.name)
    for place, tool in enumerate(request.tools or ()):
        if isinstance(tool, OtherTool):
            warn_of_left_out(tool)
        elif not tool.defer_loading or tool.name in named:
            yield function_tool(tool, f"tools[{place}].input_schema")


def messages_format(request: MessagesPrompt) -> OutputFormat | None:
    """The JSON format that a Messages request asks for."""
    output = request.output_config
    if output and output.format:
        return OutputFormat("output_config.format.schema", "answer", "", output.format.schema_)
    older = request.output_format
    return OutputFormat("output_format.schema", "answer", "", older.schema_) if older else None


def _effort(request: MessagesPrompt) -> Effort | None:
    thinking = request.thinking
    if thinking and thinking.type == "disabled":
        return "none"
    if request.output_config and request.output_config.effort:
        return request.output_config.effort
    if thinking is None or thinking.budget_tokens is None:
        return None
    if thinking.budget_tokens < LOW_BUDGET:
        return "low"
    return "medium" if thinking.budget_tokens < MEDIUM_BUDGET else "high"


def _referred(message: messages.Message) -> list[str]:
    """The names of the tools that a message's results refer to."""
    if not isinstance(message, messages.UserMessage) or isinstance(message.content, str):
        return []
    return [
        part.tool_name
        for block in message.content
        if isinstance(block, messages.ToolResult) and isinstance(block.content, list)
        for part in block.content
        if isinstance(part, messages.ToolReference)
    ]


def _instruct(builder: Builder, request: MessagesPrompt) -> None:
    if request.system is None:
        return
    parts = [request.system] if isinstance(request.system, str) else request.system
    for place, part in enumerate(parts):
        text = part if isinstance(part, str) else text_of([part])
        if place or not text.startswith(BILLING):
            builder.instruct(text)


def _add(builder: Builder, message: messages.Message, path: str) -> None:
    match message:
        case messages.SystemMessage(content=content):
            builder.instruct(text_of(content))
        case messages.UserMessage(content=str(text)):
            builder.turns.append(UserMessage(text))
        case messages.UserMessage(content=list(blocks)):
            _add_question(builder, blocks, f"{path}.content")
        case messages.AssistantMessage(content=str(text)):
            builder.turns.append(AssistantMessage(text))
        case messages.AssistantMessage(content=list(answers)):
            for block in answers:
                _add_answer(builder, block)


def _add_question(builder: Builder, blocks: list[messages.UserBlock], path: str) -> None:
    """Texts that no result comes between are one message."""
    texts: list[TextPart] = []
    for place, block in enumerate(blocks):
        if isinstance(block, TextPart):
            texts.append(block)
            continue
        if texts:
            builder.turns.append(UserMessage(text_of([*texts])))
            texts = []
        if isinstance(block, messages.ToolResult):
            param = f"{path}[{place}].tool_use_id"
            builder.result(block.tool_use_id, _result_text(block), param)
    if texts or not blocks:
        builder.turns.append(UserMessage(text_of([*texts])))


def _result_text(result: messages.ToolResult) -> str:
    content = result.content or ""
    if not isinstance(content, str):
        content = "\n".join(
            f"The tool {part.tool_name} can be called now."
            if isinstance(part, messages.ToolReference)
            else text_of([part])
            for part in content
        )
    return f"Error: {content}" if result.is_error else content


def _add_answer(builder: Builder, block: messages.AssistantBlock) -> None:
    match block:
        case TextPart(text=text):
            if text:
                builder.turns.append(AssistantMessage(text))
        case messages.Thinking():
            reasoning = block.thinking or hidden_reasoning(block.signature or "")
            if reasoning:
                builder.turns.append(Reasoning(reasoning))
        case messages.ToolUse():
            builder.call(block.id, block.name, _arguments(block))
        case messages.OtherBlock(type=kind):
            warn_once("blocks of a type that is not known here are skipped", kind[:64])


def _arguments(call: messages.ToolUse) -> str:
    """The arguments as JSON text, or the text that was no JSON object, as the model wrote it."""
    written = call.input.get(INVALID_JSON)
    if isinstance(written, str) and len(call.input) == 1:
        return written
    return msgspec.json.encode(call.input).decode()

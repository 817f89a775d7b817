"""From a parsed request to all that is sent for it: prompt, sampling and output format."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

import msgspec

from frontend.conversation import (
    DEFAULT_EFFORT,
    Conversation,
    Unseal,
    from_chat,
    from_responses,
    opens_nothing,
)
from frontend.errors import (
    InvalidRequestError,
    context_length_exceeded,
    model_not_found,
    prompt_too_long,
)
from frontend.messages_conversation import from_messages
from frontend.prompt import PromptRenderer, PromptTooLongError
from frontend.requests.chat import ChatRequest
from frontend.requests.fields import JsonObject, OtherChoice, OtherTool, SamplingFields
from frontend.requests.messages import MessagesPrompt, MessagesRequest
from frontend.requests.responses import (
    AllowedTools,
    CustomTool,
    Format,
    FunctionTool,
    GrammarInput,
    Item,
    NamedTool,
    NamespacedTool,
    NamespaceTool,
    PromptFields,
    ResponsesRequest,
    SchemaFormat,
    Tool,
    ToolChoice,
)
from frontend.structured import Wanted
from ipc.messages import (
    ChatFormat,
    EngineInfo,
    MessagesFormat,
    OutputFormat,
    ResponsesFormat,
    Sampling,
)

ReasoningMember = Literal["reasoning", "reasoning_content"]

BYTES_PER_TOKEN = 4
"""About so many has English text."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has passed all checks. `tools` are the names of the offered ones, `custom`
    those of them whose input is text; `choices` how often it is to be answered."""

    model: str
    prompt: list[int]
    sampling: Sampling
    format: OutputFormat
    streaming: bool
    tools: tuple[str, ...]
    custom: tuple[str, ...]
    stop: tuple[str, ...]
    parallel_tool_calls: bool
    priority: int
    cache_salt: str
    wanted: Wanted
    choices: int = 1


def prepare_responses(
    request: ResponsesRequest,
    engine: EngineInfo,
    renderer: PromptRenderer,
    today: date,
    *,
    history: Sequence[Item] = (),
    unseal: Unseal = opens_nothing,
    seal_key: bytes = b"",
    stored: bool = False,
    error_event: bool = True,
) -> Prepared:
    """Render and check a Responses request, behind the items of its `history`. `seal_key` is for
    reasoning that the client is to keep. Raises NotFoundError or InvalidRequestError."""
    conversation = from_responses(request, history, unseal)
    prompt = responses_prompt(request, conversation, engine, renderer, today)
    background = request.background is True
    output = ResponsesFormat(
        echo=responses_echo(request, stored=stored),
        summary=request.reasoning is not None and request.reasoning.summary is not None,
        sealed=request.encrypted_reasoning,
        seal_key=seal_key if request.encrypted_reasoning else b"",
        queued=background,
        error_event=error_event,
    )
    return _prepared(
        request,
        conversation,
        prompt,
        engine,
        limit=request.max_output_tokens,
        logprobs=request.logprobs,
        output=output,
        streaming=request.stream is True or background,
    )


def responses_prompt(
    request: PromptFields,
    conversation: Conversation,
    engine: EngineInfo,
    renderer: PromptRenderer,
    today: date,
) -> list[int]:
    """The prompt of a Responses request. Raises NotFoundError or InvalidRequestError."""
    check_model(request.model or engine.model, engine)
    truncate = request.truncation == "auto"
    return _prompt(conversation, engine, renderer, today, "input", truncate=truncate)


def prepare_chat(
    request: ChatRequest,
    engine: EngineInfo,
    renderer: PromptRenderer,
    today: date,
    *,
    reasoning_member: ReasoningMember = "reasoning",
) -> Prepared:
    """Render and check a Chat request. Raises NotFoundError or InvalidRequestError."""
    check_model(request.model, engine)
    conversation = from_chat(request)
    options = request.stream_options
    include_usage = bool(request.stream and options and options.include_usage)
    return _prepared(
        request,
        conversation,
        _prompt(conversation, engine, renderer, today, "messages"),
        engine,
        limit=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        output=ChatFormat(include_usage, reasoning_member),
        streaming=request.stream is True,
        choices=request.n or 1,
    )


def prepare_messages(
    request: MessagesRequest, engine: EngineInfo, renderer: PromptRenderer, today: date
) -> Prepared:
    """Render and check a Messages request. Raises NotFoundError or InvalidRequestError."""
    check_model(request.model, engine)
    conversation = from_messages(request)
    prompt = _messages_prompt(conversation, engine, renderer, today)
    if len(prompt) >= engine.context_length:
        raise prompt_too_long(engine.context_length - 1, len(prompt))
    return _prepared(
        request,
        conversation,
        prompt,
        engine,
        limit=request.max_tokens,
        logprobs=None,
        # A client that asks for JSON reads every text as JSON, a preamble too.
        output=MessagesFormat(request.shown_thinking, preambles=conversation.format is None),
        streaming=request.stream is True,
    )


def count_prompt_tokens(
    request: MessagesPrompt, engine: EngineInfo, renderer: PromptRenderer, today: date
) -> int:
    """The tokens of a Messages request's prompt. Raises NotFoundError or InvalidRequestError."""
    check_model(request.model, engine)
    return len(_messages_prompt(from_messages(request), engine, renderer, today))


def _messages_prompt(
    conversation: Conversation, engine: EngineInfo, renderer: PromptRenderer, today: date
) -> list[int]:
    try:
        return renderer.render(conversation, today, engine.context_length)
    except PromptTooLongError as error:
        # They were not counted to the end; clients compute from the number what to leave out.
        about = len(msgspec.json.encode(conversation)) // BYTES_PER_TOKEN
        limit = engine.context_length - 1
        raise prompt_too_long(limit, max(about, limit + 1)) from error


def check_model(model: str, engine: EngineInfo) -> None:
    """Raise NotFoundError for another model than the one that is served."""
    if model != engine.model:
        raise model_not_found(model)


def _prompt(
    conversation: Conversation,
    engine: EngineInfo,
    renderer: PromptRenderer,
    today: date,
    param: str,
    *,
    truncate: bool = False,
) -> list[int]:
    """The prompt, which leaves room for one token at least."""
    try:
        limit = engine.context_length - 1 if truncate else engine.context_length
        prompt = renderer.render(conversation, today, limit, truncate=truncate)
    except PromptTooLongError as error:
        raise context_length_exceeded(engine.context_length, None, param) from error
    if len(prompt) >= engine.context_length:
        raise context_length_exceeded(engine.context_length, len(prompt), param)
    return prompt


def _prepared(
    request: ResponsesRequest | ChatRequest | MessagesRequest,
    conversation: Conversation,
    prompt: list[int],
    engine: EngineInfo,
    *,
    limit: int | None,
    logprobs: int | None,
    output: OutputFormat,
    streaming: bool,
    choices: int = 1,
) -> Prepared:
    tools = conversation.tools
    return Prepared(
        model=engine.model,
        prompt=prompt,
        sampling=sampling_of(request, limit, logprobs, len(prompt), engine),
        format=output,
        streaming=streaming,
        tools=tuple(tool.name for tool in tools),
        custom=tuple(tool.name for tool in tools if tool.custom),
        stop=request.stop_strings(),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        wanted=Wanted(conversation.format, tools, conversation.choice),
        choices=choices,
    )


def sampling_of(
    request: SamplingFields,
    limit: int | None,
    logprobs: int | None,
    prompt_tokens: int,
    engine: EngineInfo,
) -> Sampling:
    """The sampling of a request; a limit beyond the context is cut to what is left of it."""
    min_tokens = request.min_tokens or 0
    if limit is not None and min_tokens > limit:
        raise InvalidRequestError(
            f"Invalid 'min_tokens': {min_tokens} is more than the limit of {limit} output tokens.",
            param="min_tokens",
        )
    left = engine.context_length - prompt_tokens
    max_tokens = left if limit is None else min(limit, left)
    top_p, top_k = request.top_p, request.top_k
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=None if top_p == 1 else top_p,
        top_k=top_k if top_k is not None and 0 < top_k < engine.vocabulary_size else None,
        seed=request.seed,
        ignore_eos=request.ignore_eos is True,
        min_tokens=min(min_tokens, max_tokens),
        min_p=request.min_p or None,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        logit_bias=_bias(request, engine),
        logprobs=logprobs,
    )


def _bias(request: SamplingFields, engine: EngineInfo) -> dict[int, float]:
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    for token in bias:
        if token >= engine.vocabulary_size:
            raise InvalidRequestError(
                f"Invalid 'logit_bias': the vocabulary has no token {token}.", param="logit_bias"
            )
    return bias


def responses_echo(request: ResponsesRequest, *, stored: bool = False) -> bytes:
    """The members of the response object that repeat the request, as JSON without braces.

    What the request leaves out, and what has no effect here, is told as it is: `service_tier` is
    default, and `store` whether the response is `stored`. Source: the Open Responses resource.
    """
    reasoning, text = request.reasoning, request.text
    conversation = request.conversation_id
    members = {
        "background": request.background is True,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": (reasoning and reasoning.effort) or DEFAULT_EFFORT,
            "summary": reasoning and reasoning.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": _format_echo(text.format if text else None),
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": _choice_echo(request.tool_choice),
        "tools": [_tool_echo(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
    if conversation is not None:
        members["conversation"] = {"id": conversation}
    return msgspec.json.encode(members)[1:-1]


def _format_echo(asked: Format | None) -> JsonObject:
    if isinstance(asked, SchemaFormat):
        return {
            "type": "json_schema",
            "name": asked.name,
            "description": asked.description,
            "schema": asked.schema_,
            "strict": asked.strict is True,
        }
    return {"type": "text" if asked is None else asked.type}


def _choice_echo(choice: ToolChoice | None) -> str | JsonObject:
    match choice:
        case NamedTool():
            return choice.model_dump(exclude_none=True)
        case AllowedTools(mode=mode, tools=tools):
            named = [tool.model_dump(exclude_none=True) for tool in tools]
            return {"type": "allowed_tools", "mode": mode, "tools": named}
        case OtherChoice():
            raise AssertionError(f"{choice!r} passed validation")
        case _:
            return choice or "auto"


def _tool_echo(tool: Tool | NamespacedTool) -> JsonObject:
    """A tool as the API returns it: a function has all its members even if none was sent."""
    match tool:
        case FunctionTool():
            return {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict is True,
            }
        case CustomTool():
            text = {"type": "text"}
            grammar = tool.format if isinstance(tool.format, GrammarInput) else None
            return {
                "type": "custom",
                "name": tool.name,
                "description": tool.description,
                "format": text if grammar is None else grammar.model_dump(),
            }
        case NamespaceTool():
            return {
                "type": "namespace",
                "name": tool.name,
                "description": tool.description or "",
                "tools": [_tool_echo(inner) for inner in tool.tools],
            }
        case OtherTool():
            return tool.as_sent()

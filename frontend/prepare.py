"""From a parsed request to all that is sent for it: prompt, sampling and output format."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import msgspec

from frontend.conversation import DEFAULT_EFFORT, Conversation, from_chat, from_responses
from frontend.errors import InvalidRequestError, context_length_exceeded, model_not_found
from frontend.prompt import PromptRenderer, PromptTooLongError
from frontend.requests import chat
from frontend.requests.chat import ChatRequest
from frontend.requests.fields import (
    ChoiceMode,
    JsonObject,
    NamedFunction,
    OtherTool,
    SamplingFields,
)
from frontend.requests.responses import (
    Format,
    FunctionTool,
    ResponsesRequest,
    SchemaFormat,
)
from frontend.structured import OfferedFunction, Wanted
from ipc.messages import ChatFormat, EngineInfo, ResponsesFormat, Sampling


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has passed all checks. `tools` are the names of the offered functions."""

    model: str
    prompt: list[int]
    sampling: Sampling
    format: ResponsesFormat | ChatFormat
    streaming: bool
    tools: tuple[str, ...]
    stop: tuple[str, ...]
    parallel_tool_calls: bool
    priority: int
    cache_salt: str
    wanted: Wanted


def prepare_responses(
    request: ResponsesRequest, engine: EngineInfo, renderer: PromptRenderer, today: date
) -> Prepared:
    """Render and check a Responses request. Raises NotFoundError or InvalidRequestError."""
    _check_model(request.model, engine)
    conversation = from_responses(request)
    return _prepared(
        request,
        conversation,
        _prompt(conversation, engine, renderer, today, "input"),
        engine,
        limit=request.max_output_tokens,
        output=ResponsesFormat(echo=responses_echo(request)),
        functions=[
            OfferedFunction(tool, f"tools[{place}].parameters")
            for place, tool in enumerate(request.tools or ())
            if isinstance(tool, FunctionTool)
        ],
        choice=request.tool_choice,
    )


def prepare_chat(
    request: ChatRequest, engine: EngineInfo, renderer: PromptRenderer, today: date
) -> Prepared:
    """Render and check a Chat request. Raises NotFoundError or InvalidRequestError."""
    _check_model(request.model, engine)
    conversation = from_chat(request)
    options = request.stream_options
    include_usage = bool(request.stream and options and options.include_usage)
    return _prepared(
        request,
        conversation,
        _prompt(conversation, engine, renderer, today, "messages"),
        engine,
        limit=request.max_completion_tokens or request.max_tokens,
        output=ChatFormat(include_usage=include_usage),
        functions=[
            OfferedFunction(tool.function, f"tools[{place}].function.parameters")
            for place, tool in enumerate(request.tools or ())
            if isinstance(tool, chat.FunctionTool)
        ],
        choice=_chat_choice(request.tool_choice),
    )


def _chat_choice(choice: ChoiceMode | chat.NamedTool | None) -> ChoiceMode | NamedFunction | None:
    if isinstance(choice, chat.NamedTool):
        return NamedFunction(type="function", name=choice.function.name)
    return choice


def _check_model(model: str, engine: EngineInfo) -> None:
    if model != engine.model:
        raise model_not_found(model)


def _prompt(
    conversation: Conversation,
    engine: EngineInfo,
    renderer: PromptRenderer,
    today: date,
    param: str,
) -> list[int]:
    """The prompt, which leaves room for one token at least."""
    try:
        prompt = renderer.render(conversation, today, engine.context_length)
    except PromptTooLongError as error:
        raise context_length_exceeded(engine.context_length, None, param) from error
    if len(prompt) >= engine.context_length:
        raise context_length_exceeded(engine.context_length, len(prompt), param)
    return prompt


def _prepared(
    request: ResponsesRequest | ChatRequest,
    conversation: Conversation,
    prompt: list[int],
    engine: EngineInfo,
    *,
    limit: int | None,
    output: ResponsesFormat | ChatFormat,
    functions: Sequence[OfferedFunction],
    choice: ChoiceMode | NamedFunction | None,
) -> Prepared:
    return Prepared(
        model=engine.model,
        prompt=prompt,
        sampling=_sampling(request, limit, len(prompt), engine),
        format=output,
        streaming=request.stream is True,
        tools=tuple(tool.name for tool in conversation.tools),
        stop=request.stop_strings(),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        wanted=Wanted(conversation.format, tuple(functions) if choice != "none" else (), choice),
    )


def _sampling(
    request: SamplingFields,
    limit: int | None,
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
    )


def _bias(request: SamplingFields, engine: EngineInfo) -> dict[int, float]:
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    for token in bias:
        if token >= engine.vocabulary_size:
            raise InvalidRequestError(
                f"Invalid 'logit_bias': the vocabulary has no token {token}.", param="logit_bias"
            )
    return bias


def responses_echo(request: ResponsesRequest) -> bytes:
    """The members of the response object that repeat the request, as JSON without braces.

    What the request leaves out, and what has no effect here, is told as it is: `store` is false,
    `truncation` disabled, `service_tier` default. Source: the Open Responses resource.
    """
    reasoning, text = request.reasoning, request.text
    members = {
        "background": False,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": (reasoning and reasoning.effort) or DEFAULT_EFFORT,
            "summary": reasoning and reasoning.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": _format_echo(text.format if text else None),
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": _choice_echo(request.tool_choice),
        "tools": [_tool_echo(tool) for tool in request.tools or ()],
        "top_logprobs": 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }
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


def _choice_echo(choice: ChoiceMode | NamedFunction | None) -> str | JsonObject:
    if isinstance(choice, NamedFunction):
        return {"type": choice.type, "name": choice.name}
    return choice or "auto"


def _tool_echo(tool: FunctionTool | OtherTool) -> JsonObject:
    """A tool as the API returns it: a function has all its members even if none was sent."""
    if isinstance(tool, OtherTool):
        return tool.as_sent()
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is True,
    }

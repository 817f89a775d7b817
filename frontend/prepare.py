"""From a parsed request to all that is sent for it: prompt, sampling and output format."""

from dataclasses import dataclass
from datetime import date

import msgspec

from frontend.conversation import DEFAULT_EFFORT, Conversation, from_chat, from_responses
from frontend.errors import InvalidRequestError, context_length_exceeded, model_not_found
from frontend.prompt import PromptRenderer, PromptTooLongError
from frontend.requests.chat import ChatRequest
from frontend.requests.fields import JsonObject, OtherTool, SamplingFields
from frontend.requests.responses import FunctionTool, ResponsesRequest
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
    )


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
    )


def responses_echo(request: ResponsesRequest) -> bytes:
    """The members of the response object that repeat the request, as JSON without braces.

    What the request leaves out, and what has no effect here, is told as it is: `store` is false,
    `truncation` disabled, `service_tier` default. Source: the Open Responses resource.
    """
    reasoning, text = request.reasoning, request.text
    members = {
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": 0.0,
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
            "format": {"type": "text"},
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool_echo(tool) for tool in request.tools or ()],
        "top_logprobs": 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }
    return msgspec.json.encode(members)[1:-1]


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

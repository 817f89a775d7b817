"""From a parsed completion request to what is sent for each of its prompts."""

from frontend.conversation import Choice
from frontend.errors import context_length_exceeded
from frontend.plain_text import check_tokens, decode_tokens, encode_text
from frontend.prepare import Prepared, check_model, sampling_of
from frontend.prompt import PromptRenderer, PromptTooLongError
from frontend.requests.completions import CompletionRequest
from frontend.structured import Wanted
from ipc.messages import CompletionFormat, EngineInfo
from ipc.vocabulary import ENDOFTEXT

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


async def prepare_completions(
    request: CompletionRequest, engine: EngineInfo, renderer: PromptRenderer
) -> list[Prepared]:
    """Encode and check the prompts. Raises NotFoundError or InvalidRequestError."""
    check_model(request.model, engine)
    return [await _prepared(request, prompt, engine, renderer) for prompt in request.prompts]


async def _prepared(
    request: CompletionRequest,
    prompt: str | list[int],
    engine: EngineInfo,
    renderer: PromptRenderer,
) -> Prepared:
    options = request.stream_options
    tokens = await _tokens(request, prompt, engine, renderer)
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return Prepared(
        model=engine.model,
        prompt=tokens,
        sampling=sampling_of(request, limit, request.logprobs, len(tokens), engine),
        format=CompletionFormat(
            include_usage=bool(request.stream and options and options.include_usage),
            echo=await _echo(prompt) if request.echo else "",
        ),
        streaming=request.stream is True,
        tools=(),
        custom=(),
        stop=request.stop_strings(),
        parallel_tool_calls=True,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        wanted=Wanted(None, (), Choice()),
        choices=request.n or 1,
    )


async def _tokens(
    request: CompletionRequest,
    prompt: str | list[int],
    engine: EngineInfo,
    renderer: PromptRenderer,
) -> list[int]:
    """The prompt's tokens, which leave room for one more. The empty prompt is the beginning of a
    text, as OpenAI has it."""
    most = engine.context_length
    if isinstance(prompt, str):
        special = request.special_tokens is True
        try:
            tokens = await encode_text(renderer, prompt, special=special, limit=most)
        except PromptTooLongError as error:
            raise context_length_exceeded(most, None, "prompt") from error
    else:
        check_tokens(prompt, engine, "prompt")
        tokens = prompt
    if len(tokens) >= most:
        raise context_length_exceeded(most, len(tokens), "prompt")
    return tokens or [ENDOFTEXT]


async def _echo(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else await decode_tokens(prompt)

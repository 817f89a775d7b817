"""The body of `POST /v1/completions`."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from frontend.errors import InvalidRequestError
from frontend.requests.chat import MAX_CHOICES, StreamOptions
from frontend.requests.fields import ModelName, SamplingFields, TokenLimit, parse_body, refuse

MAX_PROMPTS = 64
MAX_TOKEN_IDS = 1_048_576
"""Of a list that is no prompt of any model: checking it takes milliseconds of the event loop."""

Id = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[Id], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]
SeveralPrompts = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def _prompt_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    match value:
        case [str(), *_] | []:
            return "<texts>"
        case [list(), *_]:
            return "<lists>"
    return "<ids>"


Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>"), SeveralPrompts]
    | Annotated[TokenIds, Tag("<ids>")]
    | Annotated[list[TokenIds], Tag("<lists>"), SeveralPrompts],
    Discriminator(
        _prompt_tag,
        custom_error_type="invalid_type",
        custom_error_message="must be a string, token ids, or a list of either",
    ),
]


class CompletionRequest(SamplingFields):
    """The body of `POST /v1/completions`. `special_tokens` is an extension: names of control
    tokens in the text of a prompt stand for them."""

    model: ModelName
    prompt: Prompt | None = None
    max_tokens: TokenLimit | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: Annotated[Any, refuse("this model cannot fill in before a text")] = None
    special_tokens: bool | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, each as it was sent; an empty text if there is none."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt


def parse_completion(body: bytes) -> CompletionRequest:
    """The request in an HTTP body. Raises InvalidRequestError."""
    request = parse_body(CompletionRequest, body)
    choices = request.n or 1
    if request.best_of not in (None, choices):
        raise InvalidRequestError(
            "Invalid 'best_of': all choices are returned, so it must equal 'n'.",
            param="best_of",
            code="unsupported_value",
        )
    if request.echo and request.logprobs is not None:
        raise InvalidRequestError(
            "Invalid 'logprobs': with 'echo' they are not supported, as those of the prompt's "
            "tokens are not known.",
            param="logprobs",
            code="unsupported_value",
        )
    if len(request.prompts) * choices > MAX_CHOICES:
        raise InvalidRequestError(
            f"Invalid 'n': prompts times choices must be at most {MAX_CHOICES}.", param="n"
        )
    return request

"""Which requests an engine can serve at all."""

import math
from collections.abc import Iterator, Sequence

from engine.ledger import ErrorCode
from ipc.messages import EngineInfo, GenerationRequest, Sampling
from ipc.vocabulary import SIZE

PENALTY = 2.0
"""The largest presence or frequency penalty, either way, as OpenAI's API has it."""
BIAS = 100.0
"""The largest bias of a token's logit, either way, as OpenAI's API has it."""
TOP_LOGPROBS = 20


class RequestError(Exception):
    """A request cannot be served; the message is for the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code


def check_request(request: GenerationRequest, info: EngineInfo) -> None:
    """Raise RequestError if the prompt is empty, too long or not of the vocabulary, or a sampling
    parameter is out of its range."""
    for complaint in _complaints(request, info):
        raise RequestError("invalid_request", complaint)
    if len(request.prompt) >= info.context_length:
        raise RequestError(
            "context_length_exceeded",
            f"the prompt has {len(request.prompt)} tokens, but the context length is "
            f"{info.context_length} tokens, prompt and output together",
        )


def _complaints(request: GenerationRequest, info: EngineInfo) -> Iterator[str]:
    sampling = request.sampling
    if request.constraint is not None and info.vocabulary_size < SIZE:
        yield "the output of a model with another vocabulary cannot be constrained"
    if not request.prompt:
        yield "the prompt is empty"
    if not _known(request.prompt, info):
        yield "the prompt has a token that is not in the vocabulary"
    if not _known(sampling.stop_token_ids, info):
        yield "stop_token_ids has a token that is not in the vocabulary"
    if not _known(tuple(sampling.logit_bias), info):
        yield "logit_bias has a token that is not in the vocabulary"
    yield from _sampling_complaints(sampling)
    yield from _logit_complaints(sampling)


def _sampling_complaints(sampling: Sampling) -> Iterator[str]:
    if sampling.max_tokens < 1:
        yield "max_tokens must be at least 1"
    if not 0 <= sampling.min_tokens <= max(sampling.max_tokens, 0):
        yield "min_tokens must be between 0 and max_tokens"
    if not math.isfinite(sampling.temperature) or sampling.temperature < 0:
        yield "temperature must be a number of at least 0"
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        yield "top_p must be above 0 and at most 1"
    if sampling.top_k is not None and sampling.top_k < 1:
        yield "top_k must be at least 1"
    if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
        yield "min_p must be between 0 and 1"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= TOP_LOGPROBS:
        yield f"logprobs must be between 0 and {TOP_LOGPROBS}"


def _logit_complaints(sampling: Sampling) -> Iterator[str]:
    if not -PENALTY <= sampling.presence_penalty <= PENALTY:
        yield "presence_penalty must be between -2 and 2"
    if not -PENALTY <= sampling.frequency_penalty <= PENALTY:
        yield "frequency_penalty must be between -2 and 2"
    if not 0 < sampling.repetition_penalty < math.inf:
        yield "repetition_penalty must be a number above 0"
    if not all(-BIAS <= bias <= BIAS for bias in sampling.logit_bias.values()):
        yield "logit_bias must be between -100 and 100"


def _known(tokens: Sequence[int], info: EngineInfo) -> bool:
    return not tokens or (min(tokens) >= 0 and max(tokens) < info.vocabulary_size)

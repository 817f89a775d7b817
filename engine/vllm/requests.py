"""Our requests in vLLM's words, and its outputs in ours. Knows vLLM's names, and not vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.admission import RequestError
from engine.sequence import END_TOKENS
from engine.vllm.turns import packed
from ipc.messages import (
    Constraint,
    EngineInfo,
    Finish,
    GenerationRequest,
    Sampling,
    TokenLogprobs,
)

MOST_SEED = 2**63 - 1


class Logprob(Protocol):
    """`vllm.logprobs.Logprob`. `rank` is 1 for the most likely token."""

    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int | None: ...


class Completion(Protocol):
    """`vllm.outputs.CompletionOutput`: what is new since the last one."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[Mapping[int, Logprob]] | None: ...
    @property
    def finish_reason(self) -> str | None: ...


class Output(Protocol):
    """`vllm.outputs.RequestOutput`."""

    @property
    def outputs(self) -> Sequence[Completion]: ...
    @property
    def num_cached_tokens(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What `AsyncLLM.generate` is given: a rendered prompt, the fields of `SamplingParams` that
    depend on the request, and its priority. `constraint` is to be compiled before that."""

    prompt: dict[str, Any]
    sampling: dict[str, Any]
    priority: int
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Abilities:
    """What vLLM can do depends on how it was started: constrain output with our processor, and
    sample in all ways unless it decodes speculatively."""

    constraints: bool = False
    speculative: bool = False


def work_of(request: GenerationRequest, info: EngineInfo, abilities: Abilities) -> Work:
    """A request that `check_request` has let pass, for vLLM. Raises RequestError for what it
    cannot do."""
    for complaint in _complaints(request, abilities):
        raise RequestError("invalid_request", f"this engine (vLLM) {complaint}")
    prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": request.prompt}
    if request.tenant or request.cache_salt:
        # The length keeps tenants apart whose names are each other's beginnings.
        prompt["cache_salt"] = f"{len(request.tenant)}:{request.tenant}{request.cache_salt}"
    room = info.context_length - len(request.prompt)
    sampling = _sampling_of(request.sampling, room, info)
    if request.constraint is not None:
        # The constraint says where the turn ends.
        sampling |= {"extra_args": packed(request.constraint), "min_tokens": 0}
    return Work(prompt, sampling, request.priority, request.constraint)


def _complaints(request: GenerationRequest, abilities: Abilities) -> list[str]:
    sampling = request.sampling
    complaints = []
    if request.constraint is not None and not abilities.constraints:
        complaints.append("was started without --constraints: no schemas, grammars, forced calls")
    if abilities.speculative and (sampling.min_p or sampling.logit_bias):
        complaints.append("cannot apply min_p or logit_bias while it decodes speculatively")
    return complaints


def _sampling_of(sampling: Sampling, room: int, info: EngineInfo) -> dict[str, Any]:
    ends = frozenset[int]() if sampling.ignore_eos else END_TOKENS
    stops = ends.union(sampling.stop_token_ids)
    fields: dict[str, Any] = {
        "max_tokens": min(sampling.max_tokens, room),
        "min_tokens": min(sampling.min_tokens, room),
        "temperature": sampling.temperature,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        # The end tokens are named here, so vLLM need not know any of its own. It looks up the
        # logits of all of them.
        "ignore_eos": True,
        "stop_token_ids": sorted(stop for stop in stops if stop < info.vocabulary_size),
        "logprobs": sampling.logprobs,
    }
    if sampling.seed is not None:
        # vLLM takes -1 for none.
        fields["seed"] = sampling.seed & MOST_SEED
    for name in ("top_p", "top_k", "min_p"):
        value = getattr(sampling, name)
        if value is not None:
            fields[name] = value
    if sampling.logit_bias:
        fields["logit_bias"] = sampling.logit_bias
    return fields


def finish_of(completion: Completion) -> Finish | None:
    """Why a sequence has ended, if it has. Raises ValueError for an end that is a failure."""
    match completion.finish_reason:
        case None:
            return None
        case "stop":
            return Finish("stop")
        case "length":
            return Finish("length")
        case other:
            raise ValueError(f"vLLM has ended it: {other}")


def logprobs_of(completion: Completion, count: int | None) -> list[TokenLogprobs] | None:
    """The log-probabilities of new tokens, and of the `count` most likely ones at their places.
    vLLM's mappings also have the token that was drawn, whether it is one of these or not."""
    if count is None or completion.logprobs is None:
        return None
    places = zip(completion.token_ids, completion.logprobs, strict=True)
    return [_token_logprobs(token, found, count) for token, found in places]


def _token_logprobs(token: int, found: Mapping[int, Logprob], count: int) -> TokenLogprobs:
    ranked = sorted(found.items(), key=lambda item: (item[1].rank or len(found), item[0] == token))
    top = [(other, told.logprob) for other, told in ranked][:count]
    return TokenLogprobs(found[token].logprob, top)

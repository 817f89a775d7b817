"""Requests in vLLM's words, outputs in ours."""

from typing import Any

import msgspec
import pytest

from engine.admission import RequestError
from engine.sequence import END_TOKENS
from engine.vllm.requests import Abilities, Work, finish_of, logprobs_of
from engine.vllm.requests import work_of as work_with
from engine.vllm.turns import packed
from ipc.messages import Constraint, EngineInfo, Finish, GenerationRequest, Grammar, TokenLogprobs
from ipc.vocabulary import SIZE
from tests.engine.builders import INFO, make_request
from tests.engine.vllm.fake import FakeCompletion, FakeLogprob

FULL_INFO = EngineInfo(1, "full", context_length=100, vocabulary_size=SIZE)


def work_of(request: GenerationRequest, info: EngineInfo, **abilities: bool) -> Work:
    return work_with(request, info, Abilities(**abilities))


def sampling_of(info: EngineInfo = FULL_INFO, **sampling: Any) -> dict[str, Any]:
    return work_of(make_request(1, **sampling), info).sampling


def test_a_plain_request() -> None:
    work = work_of(make_request(1, prompt=[5, 6], max_tokens=7), FULL_INFO)
    assert work.prompt == {"type": "token", "prompt_token_ids": [5, 6]}
    assert work.priority == 0
    assert work.sampling == {
        "max_tokens": 7,
        "min_tokens": 0,
        "temperature": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "stop_token_ids": sorted(END_TOKENS),
        "logprobs": None,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.3),
        ("top_p", 0.5),
        ("top_k", 4),
        ("min_p", 0.1),
        ("presence_penalty", 1.0),
        ("frequency_penalty", -1.0),
        ("repetition_penalty", 1.1),
        ("logit_bias", {7: 2.0}),
        ("min_tokens", 3),
        ("logprobs", 0),
        ("seed", 0),
    ],
)
def test_each_field_has_its_namesake(name: str, value: Any) -> None:
    assert sampling_of(**{name: value})[name] == value


def test_stop_tokens_are_named_and_all_in_the_vocabulary() -> None:
    assert sampling_of(stop_token_ids=(9,))["stop_token_ids"] == sorted(END_TOKENS | {9})
    assert sampling_of(stop_token_ids=(9,), ignore_eos=True)["stop_token_ids"] == [9]
    assert sampling_of(INFO, stop_token_ids=(9,))["stop_token_ids"] == [9]


def test_no_more_than_the_context_has_room_for() -> None:
    request = make_request(1, prompt=[1] * 90, max_tokens=50, min_tokens=20)
    sampling = work_of(request, FULL_INFO).sampling
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (10, 10)


def test_every_seed_is_one() -> None:
    """vLLM takes -1 for none, and torch no number beyond 64 bits."""
    seeds = [sampling_of(seed=seed)["seed"] for seed in (-1, -(2**63), 2**64 - 1, 5)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[-1] == 5


def test_no_two_tenants_share_a_salt() -> None:
    def salted(tenant: str, salt: str) -> GenerationRequest:
        return msgspec.structs.replace(make_request(1), tenant=tenant, cache_salt=salt)

    pairs = [("", ""), ("", "ab"), ("a", "b"), ("ab", ""), ("a", ""), ("", "a"), ("1:a", "b")]
    salts = [work_of(salted(*pair), FULL_INFO).prompt.get("cache_salt") for pair in pairs]
    assert salts[0] is None
    assert len(set(salts)) == len(pairs)


def test_priority_is_passed_on() -> None:
    request = msgspec.structs.replace(make_request(1), priority=-3)
    assert work_of(request, FULL_INFO).priority == -3


@pytest.mark.parametrize("sampling", [{"min_p": 0.1}, {"logit_bias": {1: 1.0}}])
def test_what_vllm_leaves_out_when_it_speculates_is_refused(sampling: dict[str, Any]) -> None:
    request = make_request(1, **sampling)
    work_of(request, FULL_INFO)
    with pytest.raises(RequestError, match="speculatively") as refused:
        work_of(request, FULL_INFO, speculative=True)
    assert refused.value.code == "invalid_request"
    work_of(make_request(1, min_p=0.0), FULL_INFO, speculative=True)


def test_a_constraint() -> None:
    constraint = Constraint(final=Grammar("regex", "a"))
    request = msgspec.structs.replace(make_request(1, min_tokens=2), constraint=constraint)
    with pytest.raises(RequestError, match="--constraints") as refused:
        work_of(request, FULL_INFO)
    assert refused.value.code == "invalid_request"
    work = work_of(request, FULL_INFO, constraints=True)
    assert work.constraint == constraint
    assert (work.sampling["extra_args"], work.sampling["min_tokens"]) == (packed(constraint), 0)


def test_endings() -> None:
    assert finish_of(FakeCompletion([1])) is None
    assert finish_of(FakeCompletion([1], "stop")) == Finish("stop")
    assert finish_of(FakeCompletion([1], "length")) == Finish("length")
    for failure in ("abort", "error", "repetition"):
        with pytest.raises(ValueError, match=failure):
            finish_of(FakeCompletion([1], failure))


def test_logprobs_are_the_best_in_order_and_the_tokens_own() -> None:
    found = {9: FakeLogprob(-7.0, 40), 4: FakeLogprob(-1.0, 2), 3: FakeLogprob(-0.5, 1)}
    among = {4: FakeLogprob(-1.0, 2), 3: FakeLogprob(-0.5, 1)}
    completion = FakeCompletion([9, 4], logprobs=[found, among])
    best = [(3, -0.5), (4, -1.0)]
    expected = [TokenLogprobs(-7.0, best), TokenLogprobs(-1.0, best)]
    assert logprobs_of(completion, 2) == expected
    assert logprobs_of(completion, None) is None
    assert logprobs_of(FakeCompletion([9]), 2) is None


def test_only_the_own_logprob() -> None:
    completion = FakeCompletion([9], logprobs=[{9: FakeLogprob(-7.0, 40)}])
    assert logprobs_of(completion, 0) == [TokenLogprobs(-7.0, [])]

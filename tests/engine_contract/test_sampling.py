"""What a request's sampling parameters do, as far as it can be seen from outside."""

import math
from typing import Any

import pytest

from tests.engine_contract.engines import Engine
from tests.engine_contract.frontend import Frontend, Said


@pytest.fixture
def sampled(engine: Engine, frontend: Frontend) -> Frontend:
    """A frontend of an engine that has a model."""
    engine.need("sampling")
    return frontend


@pytest.fixture
def greedy(sampled: Frontend) -> list[int]:
    """The tokens that a model finds most likely."""
    return sampled.complete(max_tokens=20, temperature=0.0).ids


def test_greedy_output_does_not_vary(sampled: Frontend, greedy: list[int]) -> None:
    assert sampled.complete(max_tokens=20, temperature=0.0, seed=3).ids == greedy
    assert sampled.complete(max_tokens=8, temperature=0.0).ids == greedy[:8]


def test_a_seed_gives_the_same_again(sampled: Frontend) -> None:
    first, second = (sampled.complete(max_tokens=30, seed=seed).ids for seed in (11, 12))
    assert first != second
    beside = [sampled.generate([40 + n], max_tokens=30) for n in range(5)]
    again = sampled.generate(max_tokens=30, seed=11)
    assert sampled.hear(again).ids == first
    for stream in beside:
        sampled.hear(stream)


def test_without_a_seed_it_varies(sampled: Frontend) -> None:
    assert sampled.complete(max_tokens=30).ids != sampled.complete(max_tokens=30).ids


@pytest.mark.parametrize("only_best", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_a_filter_that_leaves_one_token(
    sampled: Frontend, greedy: list[int], only_best: dict[str, Any]
) -> None:
    assert sampled.complete(max_tokens=20, seed=1, **only_best).ids == greedy


def test_a_stop_token_ends_the_sequence_as_its_last(sampled: Frontend, greedy: list[int]) -> None:
    stop = greedy[5]
    said = sampled.complete(max_tokens=20, temperature=0.0, stop_token_ids=(299, stop))
    assert (said.ids, said.end) == (greedy[: greedy.index(stop) + 1], "stop")


def test_a_stop_token_may_be_the_last_that_fits(sampled: Frontend, greedy: list[int]) -> None:
    count = greedy.index(greedy[5]) + 1
    said = sampled.complete(max_tokens=count, temperature=0.0, stop_token_ids=(greedy[5],))
    assert (said.ids, said.end) == (greedy[:count], "stop")


def test_no_stop_token_comes_before_min_tokens(sampled: Frontend, greedy: list[int]) -> None:
    stop = greedy[0]
    said = sampled.complete(max_tokens=20, temperature=0.0, stop_token_ids=(stop,), min_tokens=6)
    assert len(said.ids) >= 6
    assert stop not in said.ids[:6]


def test_a_bias_makes_or_bans_a_token(sampled: Frontend, greedy: list[int]) -> None:
    assert sampled.complete(max_tokens=4, logit_bias={123: 100.0}).ids == [123] * 4
    banned = dict.fromkeys(greedy, -100.0)
    said = sampled.complete(max_tokens=20, temperature=0.0, logit_bias=banned)
    assert not set(greedy) & set(said.ids)


TWO = {50: 100.0, 51: 99.0}
"""A bias that lets a greedy model say 50, and 51 if a penalty falls on 50."""


@pytest.mark.parametrize(("penalty", "least"), [("presence_penalty", 1), ("frequency_penalty", 10)])
def test_penalties_of_the_output(sampled: Frontend, penalty: str, least: int) -> None:
    made = {"temperature": 0.0, "max_tokens": 30, "logit_bias": TWO}
    assert sampled.complete([50, 51, 9], **made).ids.count(51) == 0
    said = sampled.complete([50, 51, 9], **made, **{penalty: 2.0})
    assert set(said.ids) == {50, 51}
    assert said.ids.count(51) >= least
    assert said.ids[0] == 50, "what the prompt says is not penalised"


def test_a_penalty_of_prompt_and_output(sampled: Frontend) -> None:
    made = {"temperature": 0.0, "max_tokens": 1, "logit_bias": TWO, "repetition_penalty": 1.2}
    assert sampled.complete([9, 8], **made).ids == [50]
    assert sampled.complete([50, 8], **made).ids == [51]


def test_logprobs(engine: Engine, sampled: Frontend) -> None:
    engine.need("logprobs")
    said = sampled.complete(max_tokens=10, temperature=0.0, logprobs=4)
    assert len(said.logprobs) == 10
    for token, told in zip(said.ids, said.logprobs, strict=True):
        assert len(told.top) == 4
        values = [value for _, value in told.top]
        assert values == sorted(values, reverse=True)
        assert told.top[0] == (token, told.logprob)
        assert sum(map(math.exp, values)) <= 1.0001


def test_logprobs_are_of_the_model_whatever_is_sampled(engine: Engine, sampled: Frontend) -> None:
    engine.need("logprobs")
    plain = sampled.complete(max_tokens=1, temperature=0.0, logprobs=3).logprobs[0]
    forced = sampled.complete(
        max_tokens=1, temperature=0.5, logprobs=3, logit_bias={123: 100.0}, presence_penalty=1.0
    )
    assert forced.ids == [123]
    assert _close(forced.logprobs[0].top, plain.top)
    assert forced.logprobs[0].logprob < plain.logprob


def test_only_the_own_logprob(engine: Engine, sampled: Frontend) -> None:
    engine.need("logprobs")
    said = sampled.complete(max_tokens=5, seed=4, logprobs=0)
    assert [told.top for told in said.logprobs] == [[]] * 5
    assert all(told.logprob <= 0 for told in said.logprobs)
    assert sampled.complete(max_tokens=5).logprobs == []


def test_logprobs_move_with_their_stream(engine: Engine, sampled: Frontend) -> None:
    engine.need("logprobs")
    stream = sampled.generate(max_tokens=12, seed=4, logprobs=2)
    before: Said = sampled.hear(stream)
    again = sampled.hear(sampled.reassign(stream, worker=1))
    assert (again.ids, again.logprobs) == (before.ids, before.logprobs)


def _close(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    return all(
        token == same and math.isclose(value, near, abs_tol=1e-3)
        for (token, value), (same, near) in zip(one, other, strict=True)
    )

"""The sampler: filters by example, frequencies against probabilities, independence of the batch."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.penalties import penalties_of
from engine.sampler import Draw, NotFiniteError, sample, uniform
from ipc.messages import Sampling

PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]


def logits(rows: int = 1) -> Tensor:
    return torch.tensor(PROBABILITIES).log().repeat(rows, 1)


def tokens_of(rows: Tensor, draws: list[Draw]) -> list[int]:
    return [sampled.token for sampled in sample(rows, draws)]


def frequencies(draw: Draw, count: int = 4000) -> list[float]:
    """Shares of the tokens drawn at `count` evenly spaced uniform numbers."""
    draws = [replace(draw, uniform=(i + 0.5) / count) for i in range(count)]
    tokens = torch.tensor(tokens_of(logits(count), draws))
    return (tokens.bincount(minlength=len(PROBABILITIES)) / count).tolist()


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (Draw(1.0), PROBABILITIES),
        (Draw(0.5), [64 / 86, 16 / 86, 4 / 86, 1 / 86, 1 / 86]),
        (Draw(1.0, top_p=1.0), PROBABILITIES),
        (Draw(1.0, top_p=0.75), [2 / 3, 1 / 3, 0, 0, 0]),
        (Draw(1.0, top_p=0.76), [4 / 7, 2 / 7, 1 / 7, 0, 0]),
        (Draw(1.0, top_p=1e-9), [1, 0, 0, 0, 0]),
        (Draw(1.0, top_k=2), [2 / 3, 1 / 3, 0, 0, 0]),
        (Draw(1.0, top_k=1), [1, 0, 0, 0, 0]),
        (Draw(1.0, top_k=99), PROBABILITIES),
        (Draw(1.0, top_k=2, top_p=0.6), [1, 0, 0, 0, 0]),
        (Draw(1.0, min_p=0.25), [4 / 7, 2 / 7, 1 / 7, 0, 0]),
        (Draw(1.0, min_p=0.25, top_p=0.5), [1, 0, 0, 0, 0]),
        (Draw(1.0, min_p=0.25, top_p=0.6), [2 / 3, 1 / 3, 0, 0, 0]),
        (Draw(1.0, min_p=1.0), [1, 0, 0, 0, 0]),
        (Draw(1.0, bias=[(0, -100.0), (1, math.log(2))]), [0, 2 / 3, 1 / 6, 1 / 12, 1 / 12]),
        (Draw(1.0, banned=[0]), [0, 0.5, 0.25, 0.125, 0.125]),
        (Draw(0.0), [1, 0, 0, 0, 0]),
        (Draw(1e-6), [1, 0, 0, 0, 0]),
        (Draw(0.0, banned=[0, 2]), [0, 1, 0, 0, 0]),
    ],
)
def test_frequencies(draw: Draw, expected: list[float]) -> None:
    assert frequencies(draw) == pytest.approx(expected, abs=1e-3)


def penalised(prompt: list[int], output: list[int], **penalties: float) -> Draw:
    books = penalties_of(Sampling(max_tokens=9, **penalties), prompt)  # type: ignore[arg-type]
    assert books is not None
    for token in output:
        books.add(token)
    return Draw(0.0, penalties=books)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (penalised([1], [0, 0, 3], presence_penalty=0.5), [0.5, 2.0, -1.0, -2.5]),
        (penalised([1], [0, 0, 3], frequency_penalty=0.5), [0.0, 2.0, -1.0, -2.5]),
        (penalised([1, 1, 2], [0], repetition_penalty=2), [0.5, 1.0, -2.0, -2.0]),
        (penalised([2], [2], repetition_penalty=2, presence_penalty=1), [1.0, 2.0, -3.0, -2.0]),
        (penalised([2], [], presence_penalty=1), [1.0, 2.0, -1.0, -2.0]),
        (Draw(0.0, bias=[(1, -100.0), (2, 3.0)]), [1.0, -98.0, 2.0, -2.0]),
    ],
)
def test_penalties_and_bias_change_the_logits_they_name(draw: Draw, expected: list[float]) -> None:
    """Beside a row that is left alone."""
    rows = torch.tensor([[1.0, 2.0, -1.0, -2.0]] * 2)
    found = tokens_of(rows, [Draw(0.0), draw])
    assert rows[1].tolist() == pytest.approx(expected)
    assert rows[0].tolist() == [1.0, 2.0, -1.0, -2.0]
    assert found == [1, expected.index(max(expected))]


def test_the_books_of_many_tokens() -> None:
    output = list(range(500)) + [3] * 7
    tokens, _, amounts = penalised([], output, frequency_penalty=1.0).penalties.edits()  # type: ignore[union-attr]
    assert dict(zip(tokens.tolist(), amounts.tolist(), strict=True)) == Counter(output)


def test_top_p_of_a_large_top_k() -> None:
    """A quarter of the 500 likeliest of 1,000, which are about equally likely."""
    row = torch.arange(1000.0).unsqueeze(0) * 1e-6
    draws = [Draw(1.0, top_p=0.25, top_k=500, uniform=(i + 0.5) / 500) for i in range(500)]
    assert set(tokens_of(row.repeat(500, 1), draws)) == set(range(875, 1000))


def test_only_allowed_tokens_are_possible() -> None:
    allowed = torch.ones(2, len(PROBABILITIES), dtype=torch.bool)
    allowed[1, [0, 1, 2, 4]] = False
    found = [token.token for token in sample(logits(2), [Draw(0.0), Draw(0.0)], allowed)]
    assert found == [0, 3]


def test_logprobs_are_those_of_the_model() -> None:
    draws = [Draw(0.0), Draw(0.0, banned=[0], logprobs=2), Draw(0.5, uniform=0.99, logprobs=0)]
    plain, banned, drawn = sample(logits(3), draws)
    assert plain.logprobs is None
    assert banned.token == 1
    assert banned.logprobs is not None
    assert banned.logprobs.logprob == pytest.approx(math.log(0.25))
    assert [token for token, _ in banned.logprobs.top] == [0, 1]
    assert [log for _, log in banned.logprobs.top] == pytest.approx([math.log(0.5), math.log(0.25)])
    assert drawn.logprobs is not None
    assert drawn.logprobs.logprob == pytest.approx(math.log(PROBABILITIES[drawn.token]))
    assert drawn.logprobs.top == []


def test_top_p_of_a_flat_row_keeps_its_share() -> None:
    """More tokens than the filters look at first; equal ones are all in or all out."""
    row = torch.arange(1000.0).unsqueeze(0) * 1e-6
    draws = [Draw(1.0, top_p=0.25, uniform=(i + 0.5) / 1000) for i in range(1000)]
    tokens = set(tokens_of(row.repeat(1000, 1), draws))
    assert tokens == set(range(750, 1000))


@pytest.mark.parametrize("draw", [Draw(1.0), Draw(1.0, top_k=3), Draw(1.0, top_p=0.99)])
@pytest.mark.parametrize("number", [0.0, 1 - 2**-48])
def test_the_ends_of_the_uniform_range_are_possible_tokens(draw: Draw, number: float) -> None:
    row = torch.full((1, 1000), -200.0)
    row[0, 100:103] = torch.tensor([1.0, 2.0, 0.5])
    [token] = tokens_of(row, [replace(draw, uniform=number)])
    assert token in (100, 101, 102)


draws = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.none() | st.sampled_from([0.1, 0.9, 1.0]),
    top_k=st.none() | st.sampled_from([1, 3, 50]),
    min_p=st.none() | st.sampled_from([0.05, 0.5]),
    logprobs=st.none() | st.sampled_from([0, 3]),
    bias=st.sampled_from([(), ((5, 2.0), (7, -3.0))]),
    penalties=st.sampled_from([None, penalised([1, 2], [3, 3], presence_penalty=1).penalties]),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)


@given(st.lists(draws, min_size=1, max_size=6), st.data())
def test_a_row_samples_the_same_in_every_batch(batch: list[Draw], data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(batch), 200, generator=generator) * 3
    tokens = sample(rows.clone(), batch)
    index = data.draw(st.integers(0, len(batch) - 1))
    assert sample(rows[index : index + 1].clone(), [batch[index]]) == [tokens[index]]


def test_a_temperature_of_next_to_nothing_stays_finite() -> None:
    assert tokens_of(logits() * 1000, [Draw(1e-5, uniform=0.99)]) == [0]


@pytest.mark.parametrize("draw", [Draw(0.0), Draw(1.0), Draw(1.0, 0.9), Draw(1.0, top_k=3)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float, draw: Draw) -> None:
    row = logits()
    row[0, 1] = value
    with pytest.raises(NotFiniteError):
        sample(row, [draw])


def test_uniform_numbers_are_uniform_and_depend_on_seed_and_position() -> None:
    numbers = [uniform(seed, position) for seed in range(-20, 20) for position in range(50)]
    assert len(set(numbers)) == 2000
    assert all(0 <= number < 1 for number in numbers)
    tenths = torch.tensor(numbers).mul(10).int().bincount(minlength=10)
    # Each tenth expects 200 of deviation 13.4; 5 deviations.
    assert (tenths - 200).abs().max() < 67
    assert uniform(3, 7) == uniform(3, 7)

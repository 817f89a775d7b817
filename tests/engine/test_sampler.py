"""The sampler: filters by example, frequencies against probabilities, independence of the batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.sampler import Draw, NotFiniteError, sample, uniform

PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]


def logits(rows: int = 1) -> Tensor:
    return torch.tensor(PROBABILITIES).log().repeat(rows, 1)


def frequencies(draw: Draw, count: int = 4000) -> list[float]:
    """Shares of the tokens drawn at `count` evenly spaced uniform numbers."""
    draws = [
        Draw(draw.temperature, draw.top_p, draw.top_k, (i + 0.5) / count, draw.banned)
        for i in range(count)
    ]
    tokens = torch.tensor(sample(logits(count), draws))
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
        (Draw(1.0, banned=[0]), [0, 0.5, 0.25, 0.125, 0.125]),
        (Draw(0.0), [1, 0, 0, 0, 0]),
        (Draw(1e-6), [1, 0, 0, 0, 0]),
        (Draw(0.0, banned=[0, 2]), [0, 1, 0, 0, 0]),
    ],
)
def test_frequencies(draw: Draw, expected: list[float]) -> None:
    assert frequencies(draw) == pytest.approx(expected, abs=1e-3)


def test_top_p_of_a_flat_row_keeps_its_share() -> None:
    row = torch.zeros(1, 1000)
    tokens = {
        sample(row, [Draw(1.0, top_p=0.25, uniform=(i + 0.5) / 2000)])[0] for i in range(2000)
    }
    assert len(tokens) == 250


@pytest.mark.parametrize("draw", [Draw(1.0), Draw(1.0, top_k=3), Draw(1.0, top_p=0.99)])
@pytest.mark.parametrize("number", [0.0, 1 - 2**-48])
def test_the_ends_of_the_uniform_range_are_possible_tokens(draw: Draw, number: float) -> None:
    row = torch.full((1, 1000), -200.0)
    row[0, 100:103] = torch.tensor([1.0, 2.0, 0.5])
    [token] = sample(row, [Draw(draw.temperature, draw.top_p, draw.top_k, number)])
    assert token in (100, 101, 102)


draws = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.none() | st.sampled_from([0.1, 0.9, 1.0]),
    top_k=st.none() | st.sampled_from([1, 3, 50]),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)


@given(st.lists(draws, min_size=1, max_size=6), st.data())
def test_a_row_samples_the_same_in_every_batch(batch: list[Draw], data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(batch), 200, generator=generator) * 3
    tokens = sample(rows, batch)
    index = data.draw(st.integers(0, len(batch) - 1))
    assert sample(rows[index : index + 1], [batch[index]]) == [tokens[index]]


def test_a_temperature_of_next_to_nothing_stays_finite() -> None:
    assert sample(logits() * 1000, [Draw(1e-5, uniform=0.99)]) == [0]


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

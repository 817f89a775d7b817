"""The two-pass search for the largest numbers against torch's topk."""

import pytest
import torch

from engine.largest import CHUNK, first_largest, largest


@pytest.mark.parametrize("columns", [5, CHUNK, 3 * CHUNK, 40 * CHUNK, 40 * CHUNK + 7])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_as_topk(columns: int, count: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    values = torch.randn(6, columns, generator=generator)
    values[0, -count:] += 100
    values[1, :count] += 100
    found, places = largest(values, count)
    expected, expected_places = values.topk(count)
    assert torch.equal(found, expected)
    assert torch.equal(places, expected_places)


def test_equal_numbers_are_found_once_each() -> None:
    found, places = largest(torch.zeros(2, 40 * CHUNK), 6)
    assert torch.equal(found, torch.zeros(2, 6))
    assert all(len(set(row)) == 6 for row in places.tolist())


def test_nan_counts_as_the_largest() -> None:
    values = torch.zeros(1, 40 * CHUNK)
    values[0, 333] = torch.nan
    found, places = largest(values, 1)
    assert found.isnan().all()
    assert places.tolist() == [[333]]


@pytest.mark.parametrize("columns", [5, CHUNK, CHUNK + 1, 40 * CHUNK + 7])
def test_the_first_of_equal_numbers(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    values = torch.randint(-3, 3, (50, columns), generator=generator).float()
    values[0] = -torch.inf
    values[1, columns // 2] = torch.nan
    values[2, -1] = 9
    highest, places = first_largest(values)
    assert torch.equal(places, values.argmax(-1))
    assert torch.equal(highest.nan_to_num(7), values.amax(-1).nan_to_num(7))

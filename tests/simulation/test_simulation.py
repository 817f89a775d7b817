"""A fixed budget of seeds; a failing one replays exactly: `python -m tests.simulation --seed N`."""

import pytest

from tests.simulation.scenario import simulate


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_l1_to_l12_hold_in_a_simulated_system(first: int) -> None:
    for seed in range(first, first + 10):
        assert simulate(seed) > 0, seed


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_stream_that_kills_workers_ends_after_the_second_and_no_other(first: int) -> None:
    for seed in range(first, first + 20):
        assert simulate(seed, poison=True) > 0, seed


def test_a_seed_replays_exactly() -> None:
    assert simulate(7) == simulate(7)

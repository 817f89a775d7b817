"""The most likely token by a short list is the most likely token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import head
from engine.head import RefinedHead
from engine.sampler import Draw, sample
from engine.shortlist import LISTED, Shortlist


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(weight: Tensor, hidden: Tensor) -> Tensor:
    return (hidden.float() @ weight.float().t())[0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    tokens=st.sampled_from([1, 3, LISTED, 1000, 5000]),
    width=st.sampled_from([32, 64, 96]),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_finds_the_highest_logit(seed: int, tokens: int, width: int, spread: float) -> None:
    """Also of rows of very different length, and of states with a few large numbers."""
    weight = (
        random(tokens, width, seed=seed) * (spread * random(tokens, 1, seed=1)).exp()
    ).bfloat16()
    hidden = random(1, width, seed=seed + 1)
    hidden[0, seed % width] *= 1 + 50 * spread
    found = Shortlist(weight).best(hidden)
    if found is not None:
        logits = exact(weight, hidden)
        assert logits[found] >= logits.max() - 1e-5 * logits.abs().max()


def test_hardly_ever_gives_up() -> None:
    weight = random(5000, 64).bfloat16()
    shortlist = Shortlist(weight)
    assert all(shortlist.best(random(1, 64, seed=seed)) is not None for seed in range(100))


def test_gives_up_where_more_are_nearly_the_best_than_are_listed() -> None:
    weight = random(1, 64).expand(LISTED + 1, -1).contiguous()
    weight += 1e-4 * random(LISTED + 1, 64, seed=1)
    assert Shortlist(weight).best(random(1, 64, seed=2)) is None


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_a_state_without_an_order_is_left_to_the_logits(value: float) -> None:
    assert Shortlist(random(100, 32)).best(torch.full((1, 32), value)) is None


def test_a_row_that_is_no_number_is_left_to_the_logits() -> None:
    weight = random(1000, 32)
    weight[700] = torch.nan
    assert Shortlist(weight).best(random(1, 32)) is None


def test_the_head_finds_what_its_logits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(3000, 64)
    hidden = random(1, 64, seed=5)
    monkeypatch.setattr(head, "can_scan", lambda: True)
    made = RefinedHead(weight)
    [sampled] = sample(made(hidden), [Draw(0.0)])
    assert made.best(hidden) == sampled.token
    monkeypatch.setattr(head, "can_scan", lambda: False)
    assert RefinedHead(weight).best(hidden) is None

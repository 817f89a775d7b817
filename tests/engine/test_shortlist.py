"""The most likely token by a short list is the most likely token."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import head
from engine.head import RefinedHead
from engine.largest import CHUNK
from engine.products import PackedProduct, can_pack
from engine.sampler import Draw, sample
from engine.shortlist import LISTED, LISTED_CHUNKS, Bf16Shortlist, Int8Shortlist


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
    found = Int8Shortlist(weight).best(hidden)
    if found is not None:
        logits = exact(weight, hidden)
        assert logits[found] >= logits.max() - 1e-5 * logits.abs().max()


def test_hardly_ever_gives_up() -> None:
    weight = random(5000, 64).bfloat16()
    shortlist = Int8Shortlist(weight)
    assert all(shortlist.best(random(1, 64, seed=seed)) is not None for seed in range(100))


def test_gives_up_where_more_are_nearly_the_best_than_are_listed() -> None:
    weight = random(1, 64).expand(LISTED + 1, -1).contiguous()
    weight += 1e-4 * random(LISTED + 1, 64, seed=1)
    assert Int8Shortlist(weight).best(random(1, 64, seed=2)) is None


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_a_state_without_an_order_is_left_to_the_logits(value: float) -> None:
    assert Int8Shortlist(random(100, 32)).best(torch.full((1, 32), value)) is None


def test_a_row_that_is_no_number_is_left_to_the_logits() -> None:
    weight = random(1000, 32)
    weight[700] = torch.nan
    assert Int8Shortlist(weight).best(random(1, 32)) is None


@pytest.mark.parametrize("tokens", [LISTED, 1000])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_left_to_the_sampler(tokens: int, value: float) -> None:
    """Which ends the sequence, alone as in a batch."""
    weight, hidden = random(tokens, 32), random(1, 32).abs()
    weight[7] = value
    assert Int8Shortlist(weight).best(hidden) is None


def test_the_head_finds_what_its_logits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(3000, 64)
    hidden = random(1, 64, seed=5)
    monkeypatch.setattr(head, "can_scan", lambda: True)
    made = RefinedHead(weight)
    [sampled] = sample(made(hidden), [Draw(0.0)])
    assert made.best(hidden) == [sampled.token]
    monkeypatch.setattr(head, "can_scan", lambda: False)
    monkeypatch.setattr(head, "PACK", False)
    assert RefinedHead(weight).best(hidden) == [None]


def bf16_shortlist(weight: Tensor) -> Bf16Shortlist:
    def product(rows: Tensor) -> Tensor:
        return (rows.float() @ weight.float().t()).bfloat16()

    return Bf16Shortlist(weight, product)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    tokens=st.sampled_from([100, CHUNK * (LISTED_CHUNKS + 1), 5001]),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    shift=st.sampled_from([0.0, -10.0]),
)
def test_several_rows(seed: int, tokens: int, spread: float, shift: float) -> None:
    """Some rows have only negative logits."""
    lengths = (spread * random(tokens, 1, seed=1)).exp()
    weight = (random(tokens, 64, seed=seed) * lengths).bfloat16()
    hidden = random(5, 64, seed=seed + 1)
    weight[:, 0] = shift
    hidden[:, 0] = hidden[:, 0].abs() * 9
    for row, found in enumerate(bf16_shortlist(weight).best(hidden)):
        if found is not None:
            logits = exact(weight, hidden[row : row + 1])
            assert logits[found] >= logits.max() - 1e-5 * logits.abs().max()


@pytest.mark.parametrize("shift", [0.0, -20.0])
def test_several_rows_hardly_ever_give_up(shift: float) -> None:
    weight = random(20_000, 64)
    weight[:, 0] += shift
    hidden = random(100, 64, seed=1)
    hidden[:, 0] = 1
    found = bf16_shortlist(weight.bfloat16()).best(hidden)
    assert sum(token is None for token in found) < 10


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this machine has no bf16 products")
def test_several_rows_by_the_real_product() -> None:
    weight, hidden = random(5000, 64).bfloat16(), random(6, 64, seed=1)
    hidden[2] = torch.nan
    found = Bf16Shortlist(weight, PackedProduct(weight)).best(hidden)
    assert found[2] is None
    for row in (0, 1, 3, 4, 5):
        assert found[row] in (None, exact(weight, hidden[row : row + 1]).argmax().item())


@pytest.mark.parametrize("make", [Int8Shortlist, bf16_shortlist])
def test_of_equal_rows_the_first(make: Callable[[Tensor], Int8Shortlist | Bf16Shortlist]) -> None:
    """The demo model has tokens with the same row."""
    weight, hidden = random(6000, 64).bfloat16(), random(1, 64, seed=1)
    best = int(exact(weight, hidden).argmax())
    weight[[17, 4999, 5998]] = weight[best].clone()
    found = make(weight).best(hidden)
    assert found in (min(17, best), [min(17, best)])

"""How a block table is read, as runs of slots; and attention by products."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine import product_attention
from engine.attention import runs_of
from engine.products import can_pack
from engine.torch_attention import slots_of


@given(
    table=st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True),
    block_size=st.integers(1, 5),
    data=st.data(),
)
def test_runs_are_the_slots_of_the_tokens(
    table: list[int], block_size: int, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(table) * block_size))
    first = data.draw(st.integers(0, end))
    runs = runs_of(table, block_size, first, end)
    slots = [table[t // block_size] * block_size + t % block_size for t in range(first, end)]
    assert [start + i for start, size in runs for i in range(size)] == slots
    if slots:
        assert slots_of(runs).tolist() == slots


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_contiguous_table_is_one_run(first_block: int, tokens: int) -> None:
    table = list(range(first_block, first_block + 5))
    assert runs_of(table, 4, 0, tokens) == [(4 * first_block, tokens)]


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this machine has no bf16 products")
@pytest.mark.parametrize("queries", [64, 100, 300])
@pytest.mark.parametrize("kind", ["all keys", "causal", "masked"])
def test_products_as_flash(queries: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks, of which the last is smaller."""
    monkeypatch.setattr(product_attention, "AT_ONCE", 40 * 300)
    monkeypatch.setattr(product_attention, "CAUSAL_AT_ONCE", 30 * 300)
    generator = torch.Generator().manual_seed(queries)
    keys = queries if kind == "causal" else 300

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    query, key, value = random(2, 3, queries, 32), random(2, 3, keys, 32), random(2, 3, keys, 32)
    mask = None
    if kind == "masked":
        seen = torch.rand(2, 1, queries, keys, generator=generator) < 0.5
        seen[..., 0] = True
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf).bfloat16()
    out, lse = product_attention.attend(query, key, value, kind == "causal", mask)
    scores = query.float() @ key.float().transpose(2, 3) * 32**-0.5
    if kind == "causal":
        scores += torch.full((queries, queries), -torch.inf).triu(1)
    if mask is not None:
        scores += mask
    assert torch.allclose(lse, scores.logsumexp(-1), atol=0.02)
    assert torch.allclose(out.float(), scores.softmax(-1) @ value.float(), atol=0.02)


def test_few_queries_and_fp32_are_left_to_flash() -> None:
    assert not product_attention.can_attend(torch.zeros(1, 1, 8, 32, dtype=torch.bfloat16))
    assert not product_attention.can_attend(torch.zeros(1, 1, 512, 32))

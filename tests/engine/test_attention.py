"""How a block table is read: runs of slots."""

from hypothesis import given
from hypothesis import strategies as st

from engine.attention import runs_of
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

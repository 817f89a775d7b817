"""The block pool: conservation under any sequence of calls, and where blocks are placed."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool, OutOfBlocksError

TOTAL = 40


class PoolMachine(RuleBasedStateMachine):
    """Tables grow and are freed; the model is the plain lists of their blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(1, 15))
    def start(self, count: int) -> None:
        if count > self.pool.free_blocks:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(blocks) == count
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        free = set(self.pool.free_list())
        if count > len(free):
            return
        after = table[-1]
        grown = self.pool.allocate(count, after)
        assert (grown[0] == after + 1) == (after + 1 in free)
        table += grown

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.pool.free(table)
        with pytest.raises(ValueError, match="in use"):
            self.pool.free([table[0]])

    @invariant()
    def blocks_are_conserved(self) -> None:
        used = [block for table in self.tables for block in table]
        assert sorted(used + self.pool.free_list()) == list(range(TOTAL))
        assert self.pool.free_blocks + len(used) == TOTAL


TestPool = PoolMachine.TestCase


def test_a_table_stays_contiguous_beside_others() -> None:
    pool = BlockPool(1000)
    tables = [pool.allocate(10) for _ in range(8)]
    for _ in range(20):
        for table in tables:
            table += pool.allocate(1, table[-1])
    for table in tables:
        assert table == list(range(table[0], table[0] + 30))


def test_everything_freed_is_one_extent_again() -> None:
    pool = BlockPool(10)
    tables = [pool.allocate(2) for _ in range(5)]
    for table in tables:
        pool.free(table)
    assert pool.allocate(10) == list(range(10))


@pytest.mark.parametrize("blocks", [[10], [-1], [3, 3], [0, 5]])
def test_blocks_that_are_not_held_are_refused(blocks: list[int]) -> None:
    pool = BlockPool(10)
    pool.allocate(5)
    with pytest.raises(ValueError, match="block"):
        pool.free(blocks)
    assert pool.free_blocks == 5
    assert pool.free_list() == [5, 6, 7, 8, 9]


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)

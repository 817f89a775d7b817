"""The free blocks of the KV cache.

Attention reads a run of contiguous blocks in one piece, so the pool keeps runs long: a table
grows into the block after its last one if that is free, and a new run starts in the middle of the
largest free extent, which leaves its neighbours room to grow.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free; nothing was allocated."""


class BlockPool:
    """Hands out `total` blocks, numbered from 0."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._free = total
        # Maximal runs of free blocks, by first block: never adjacent, never empty.
        self._starts = [0]
        self._sizes = {0: total}

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return self._free

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` blocks, contiguous to the block `after` and to each other where possible.

        Raises OutOfBlocksError.
        """
        if count > self._free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self._free} free")
        blocks: list[int] = []
        if after is not None and after + 1 in self._sizes:
            blocks += self._take(after + 1, after + 1, count)
        while len(blocks) < count:
            missing = count - len(blocks)
            start = max(self._starts, key=self._sizes.__getitem__)
            spare = max(0, self._sizes[start] - missing)
            # Below block 0 there is no neighbour to leave room for.
            blocks += self._take(start, start + (spare // 2 if start else 0), missing)
        self._free -= count
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back. Raises ValueError, with nothing changed, for one that is free already
        or not of this pool."""
        runs = list(_runs(sorted(blocks)))
        for start, end in runs:
            self._check_used(start, end)
        for start, end in runs:
            self._give(start, end)
            self._free += end - start

    def free_list(self) -> list[int]:
        """All free blocks, ascending."""
        return [b for start in self._starts for b in range(start, start + self._sizes[start])]

    def _take(self, start: int, first: int, count: int) -> range:
        """Up to `count` blocks from `first` on, of the extent at `start`."""
        end = start + self._sizes[start]
        taken = range(first, min(first + count, end))
        self._remove(start)
        if first > start:
            self._insert(start, first)
        if taken.stop < end:
            self._insert(taken.stop, end)
        return taken

    def _give(self, start: int, end: int) -> None:
        place = bisect_right(self._starts, start)
        before = self._starts[place - 1] if place else None
        if end in self._sizes:
            end += self._remove(end)
        if before is not None and before + self._sizes[before] == start:
            self._remove(before)
            start = before
        self._insert(start, end)

    def _check_used(self, start: int, end: int) -> None:
        if start < 0 or end > self.total:
            raise ValueError(f"blocks {start} to {end - 1} are not all of this pool")
        place = bisect_left(self._starts, end)
        if place:
            before = self._starts[place - 1]
            if before + self._sizes[before] > start:
                raise ValueError(f"blocks {start} to {end - 1} are not all in use")

    def _insert(self, start: int, end: int) -> None:
        insort(self._starts, start)
        self._sizes[start] = end - start

    def _remove(self, start: int) -> int:
        del self._starts[bisect_left(self._starts, start)]
        return self._sizes.pop(start)


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs (first, end) of ascending blocks. Raises ValueError for a repeated block."""
    start = 0
    for index in range(1, len(blocks) + 1):
        if index < len(blocks) and blocks[index] == blocks[index - 1]:
            raise ValueError(f"block {blocks[index]} is given back twice")
        if index == len(blocks) or blocks[index] != blocks[index - 1] + 1:
            yield blocks[start], blocks[index - 1] + 1
            start = index

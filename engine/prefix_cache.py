"""Blocks that several sequences use, and blocks that nobody uses but somebody may want again.

A block whose tokens are all computed can be named by a key. It is found by that key while
sequences use it, and afterwards until its room is needed: the blocks that have gone unused for
longest are evicted first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.block_pool import BlockPool

Key = tuple[int, bytes]
"""A group of layers, and the hash of all tokens up to the block's end."""


class PrefixCache:
    """Users and keys of the blocks of a pool.

    A block is free (in the pool), in use (by one or more users) or idle (kept for its key).
    Changes of the keys are kept for `take_events` while `recording`.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.evictions = 0
        self.recording = False
        self._events: list[tuple[Key, bool]] = []
        self._users = [0] * pool.total
        self._blocks: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now, idle ones included."""
        return self.pool.free_blocks + len(self._idle)

    @property
    def idle_blocks(self) -> int:
        """Blocks that are kept for their keys alone."""
        return len(self._idle)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` blocks for one user, near the block `after`, evicting idle ones as needed.

        Raises OutOfBlocksError.
        """
        evicted = count - self.pool.free_blocks
        if 0 < evicted <= len(self._idle):
            self.pool.free([self._evict() for _ in range(evicted)])
        blocks = self.pool.allocate(count, after)
        for block in blocks:
            self._users[block] = 1
        return blocks

    def find(self, key: Key) -> int | None:
        """The block with this key."""
        return self._blocks.get(key)

    def is_idle(self, block: int) -> bool:
        """Whether nobody uses the block, which has a key."""
        return block in self._idle

    def is_shared(self, block: int) -> bool:
        """Whether more than one user has the block."""
        return self._users[block] > 1

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to blocks that were found."""
        for block in blocks:
            self._idle.pop(block, None)
            self._users[block] += 1

    def name(self, block: int, key: Key) -> None:
        """Let a block in use be found by `key`, unless another one is found by it already."""
        if key in self._blocks or block in self._keys:
            return
        self._blocks[key] = block
        self._keys[block] = key
        if self.recording:
            self._events.append((key, True))

    def release(self, blocks: Sequence[int]) -> None:
        """Take a user from each block. Of those that become idle, the last are evicted first: a
        prefix is of use without its end, but not the other way round."""
        free = []
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                free.append(block)
        self.pool.free(free)

    def known(self) -> list[Key]:
        """All keys by which blocks are found."""
        return list(self._blocks)

    def take_events(self) -> list[tuple[Key, bool]]:
        """The keys that came (True) and went (False) since the last call, in order."""
        events, self._events = self._events, []
        return events

    def clear(self) -> None:
        """Evict all idle blocks."""
        self.pool.free([self._evict() for _ in range(len(self._idle))])

    def check(self, used: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless the users of every block are exactly these."""
        counts = [0] * self.pool.total
        for blocks in used:
            for block in blocks:
                counts[block] += 1
        assert counts == self._users
        free = self.pool.free_list()
        assert len(free) == self.pool.free_blocks
        unused = sorted([*free, *self._idle])
        assert unused == [block for block, count in enumerate(counts) if not count]
        assert {block: key for key, block in self._blocks.items()} == self._keys
        assert self._keys.keys() >= self._idle.keys()

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        key = self._keys.pop(block)
        del self._blocks[key]
        self.evictions += 1
        if self.recording:
            self._events.append((key, False))
        return block

"""The prefix cache: users, keys and evictions, against a model of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.block_pool import BlockPool, OutOfBlocksError
from engine.prefix_cache import Key, PrefixCache

TOTAL = 8


class PrefixCacheMachine(RuleBasedStateMachine):
    """Users take blocks, name them, find those of others, and give all back."""

    users: Bundle[list[int]] = Bundle("users")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BlockPool(TOTAL))
        self.cache.recording = True
        self.used: list[list[int]] = []
        self.found: set[Key] = set()

    @rule(target=users, count=st.integers(0, 3))
    def allocate(self, count: int) -> list[int]:
        free = self.cache.free_blocks
        if count > free:
            with pytest.raises(OutOfBlocksError):
                self.cache.allocate(count)
            return []
        blocks = self.cache.allocate(count)
        assert len(set(blocks)) == count
        assert self.cache.free_blocks == free - count
        self.used.append(blocks)
        return blocks

    @rule(blocks=users, key=st.integers(0, 5))
    def name(self, blocks: list[int], key: int) -> None:
        if blocks:
            self.cache.name(blocks[0], (0, bytes([key])))

    @rule(target=users, key=st.integers(0, 5))
    def share(self, key: int) -> list[int]:
        block = self.cache.find((0, bytes([key])))
        if block is None:
            return []
        self.cache.share([block])
        assert not self.cache.is_idle(block)
        self.used.append([block])
        return self.used[-1]

    @rule(blocks=consumes(users))
    def release(self, blocks: list[int]) -> None:
        if blocks:
            self.used = [other for other in self.used if other is not blocks]
            self.cache.release(blocks)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert not self.cache.idle_blocks

    @invariant()
    def books_agree(self) -> None:
        self.cache.check(self.used)

    @invariant()
    def events_tell_the_keys(self) -> None:
        for key, stored in self.cache.take_events():
            (self.found.add if stored else self.found.remove)(key)
        assert self.found == set(self.cache.known())


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def named(cache: PrefixCache, count: int, first: int) -> list[int]:
    blocks = cache.allocate(count)
    for place, block in enumerate(blocks, first):
        cache.name(block, (0, bytes([place])))
    return blocks


def test_the_end_of_the_longest_unused_is_evicted_first() -> None:
    cache = PrefixCache(BlockPool(6))
    old, new = named(cache, 3, first=0), named(cache, 3, first=10)
    cache.release(old)
    cache.release(new)
    cache.allocate(2)
    assert sorted(key for _, [key] in cache.known()) == [0, 10, 11, 12]
    cache.share(old[:1])
    cache.release(old[:1])
    cache.allocate(3)
    assert [key for _, [key] in cache.known()] == [0]


def test_a_name_is_given_once() -> None:
    cache = PrefixCache(BlockPool(4))
    [first], [second] = cache.allocate(1), cache.allocate(1)
    cache.name(first, (0, b"x"))
    cache.name(second, (0, b"x"))
    assert cache.find((0, b"x")) == first
    cache.release([second])
    assert cache.idle_blocks == 0

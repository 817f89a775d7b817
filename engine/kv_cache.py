"""Which blocks hold the keys and values of which sequence, group of layers by group.

A running sequence has blocks for all of its tokens in full layers, and in sliding layers for those
that the next step's window reaches back to, up to the last that the step computes.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.cache_layout import CacheLayout
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence
from ipc.block_hashes import extend_hashes, root_hash

DROPPED = -1
"""Stands in a block table for a block that the window has left behind."""


@dataclass(frozen=True, slots=True)
class Match:
    """The cached beginning of a sequence: a table a group for its first `tokens` tokens.

    `needed` blocks must be free to start the sequence with it; `awaited` says that another
    sequence is computing the next block at the moment.
    """

    tables: list[list[int]]
    tokens: int
    needed: int
    awaited: bool


class KvCache:
    """The block tables of running sequences, and what is cached of earlier ones.

    `queried_tokens` and `hit_tokens` count the prompt tokens of started sequences.
    """

    def __init__(
        self,
        blocks: PrefixCache,
        block_size: int,
        layout: CacheLayout,
        step_tokens: int,
        caching: bool = True,
    ) -> None:
        self.blocks = blocks
        self.queried_tokens = self.hit_tokens = 0
        self._block_size = block_size
        self._layout = layout
        self._windows = layout.windows
        self._step_tokens = step_tokens
        self._caching = caching
        self._awaited: Counter[bytes] = Counter()

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return self.blocks.free_blocks

    @property
    def tokens(self) -> int:
        """How many tokens one group of layers could cache."""
        return self.blocks.pool.total * self._block_size

    def fits_alone(self, sequence: Sequence) -> bool:
        """Whether the whole pool could hold the tokens that the sequence has now."""
        tokens = len(sequence.tokens)
        needed = self._layout.blocks_needed(tokens, self._block_size, self._step_tokens)
        return needed <= self.blocks.pool.total

    def held(self, sequence: Sequence) -> int:
        """Blocks that would be free without the sequence."""
        return sum(
            block != DROPPED and not self.blocks.is_shared(block)
            for table in sequence.tables
            for block in table
        )

    def match(self, sequence: Sequence) -> Match:
        """Look up a waiting sequence's longest cached beginning, that leaves a token to compute."""
        count = self._cached_blocks(sequence)
        tables = [
            self._cached_table(sequence, group, window, count)
            for group, window in enumerate(self._windows)
        ]
        idle = sum(self.blocks.is_idle(block) for t in tables for block in t if block != DROPPED)
        tokens = count * self._block_size
        end = min(len(sequence.tokens), tokens + self._step_tokens)
        needed = idle + sum(
            self._blocks_for(len(sequence.tokens) if window is None else end) - count
            for window in self._windows
        )
        next_hash = sequence.hashes[count] if count < len(sequence.hashes) else b""
        return Match(tables, tokens, needed, next_hash in self._awaited)

    def start(self, sequence: Sequence, match: Match) -> None:
        """Give a waiting sequence what was matched, and blocks for its tokens in full layers."""
        sequence.tables = match.tables
        sequence.computed = match.tokens
        sequence.named = match.tokens // self._block_size
        for table in match.tables:
            self.blocks.share(block for block in table if block != DROPPED)
        self._awaited.update(sequence.hashes[sequence.named :])
        if sequence.cached_tokens is None:
            sequence.cached_tokens = match.tokens
            self.queried_tokens += sequence.prompt_tokens
            self.hit_tokens += match.tokens
        self.reserve(sequence, match.tokens)

    def missing(self, sequence: Sequence, end: int) -> int:
        """Blocks to allocate before the first `end` tokens can be computed."""
        return sum(
            max(0, self._blocks_for(end) - len(table))
            for window, table in zip(self._windows, sequence.tables, strict=True)
        )

    def reserve(self, sequence: Sequence, end: int) -> None:
        """Allocate what is missing for the first `end` tokens. Raises OutOfBlocksError."""
        for window, table in zip(self._windows, sequence.tables, strict=True):
            wanted = self._blocks_for(len(sequence.tokens) if window is None else end)
            if wanted > len(table):
                after = table[-1] if table and table[-1] != DROPPED else None
                table += self.blocks.allocate(wanted - len(table), after)
        sequence.room = self._block_size * min(map(len, sequence.tables))

    def coverable(self, sequence: Sequence, count: int) -> int:
        """How many of a running sequence's next `count` tokens there are blocks for."""
        if self.missing(sequence, sequence.computed + count) <= self.free_blocks:
            return count
        blocks = min(map(len, sequence.tables)) + self.free_blocks // len(self._windows)
        return max(0, min(count, blocks * self._block_size - sequence.computed))

    def advance(self, sequence: Sequence, count: int) -> None:
        """Count the next tokens as computed: whole blocks are named, and those that no window
        sees any more are given back."""
        before = sequence.computed // self._block_size
        sequence.computed += count
        if sequence.computed // self._block_size == before:
            return
        if self._caching:
            self._name_blocks(sequence)
        for window, table in zip(self._windows, sequence.tables, strict=True):
            self._drop(table, self._first_kept(window, sequence.computed))

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back; the sequence has computed nothing then."""
        self._await_no_more(sequence, len(sequence.hashes))
        for table in sequence.tables:
            self.blocks.release([block for block in table if block != DROPPED])
        sequence.tables = []
        sequence.computed = sequence.room = sequence.named = 0

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError unless exactly the tables of `running` use blocks."""
        running = list(running)
        self.blocks.check(
            [block for block in table if block != DROPPED] for s in running for table in s.tables
        )
        awaited = Counter(h for s in running for h in s.hashes[s.named :])
        assert awaited == self._awaited

    def _cached_blocks(self, sequence: Sequence) -> int:
        """Of how many leading blocks every group has what it needs to go on from there."""
        if not self._caching:
            return 0
        if not sequence.root:
            sequence.root = root_hash(sequence.tenant, sequence.cache_salt)
        most = len(sequence.tokens) - 1
        extend_hashes(sequence.hashes, sequence.root, sequence.tokens, self._block_size, most)
        count = most // self._block_size
        for group, window in enumerate(self._windows):
            if window is None:
                lacking = (i for i in range(count) if not self._is_cached(sequence, group, i))
                count = next(lacking, count)
        sliding = [(g, w) for g, w in enumerate(self._windows) if w is not None]
        while any(holes := [self._holes(sequence, *pair, count) for pair in sliding]):
            count = min(hole[0] for hole in holes if hole)
        return count

    def _holes(self, sequence: Sequence, group: int, window: int, count: int) -> list[int]:
        """The last block that a window before block `count` lacks, if there is one."""
        first = self._first_kept(window, count * self._block_size)
        places = range(count - 1, first - 1, -1)
        return [i for i in places if not self._is_cached(sequence, group, i)][:1]

    def _is_cached(self, sequence: Sequence, group: int, index: int) -> bool:
        return self.blocks.find((group, sequence.hashes[index])) is not None

    def _cached_table(
        self, sequence: Sequence, group: int, window: int | None, count: int
    ) -> list[int]:
        first = self._first_kept(window, count * self._block_size)
        found = (self.blocks.find((group, name)) for name in sequence.hashes[first:count])
        return [DROPPED] * first + [block for block in found if block is not None]

    def _first_kept(self, window: int | None, computed: int) -> int:
        """The first block that the token after the computed ones sees."""
        return 0 if window is None else max(0, computed + 1 - window) // self._block_size

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _name_blocks(self, sequence: Sequence) -> None:
        whole = sequence.computed // self._block_size
        known = len(sequence.hashes)
        extend_hashes(
            sequence.hashes, sequence.root, sequence.tokens, self._block_size, sequence.computed
        )
        for index in range(sequence.named, whole):
            for group, table in enumerate(sequence.tables):
                if table[index] != DROPPED:
                    self.blocks.name(table[index], (group, sequence.hashes[index]))
        self._await_no_more(sequence, min(whole, known))
        sequence.named = whole

    def _await_no_more(self, sequence: Sequence, end: int) -> None:
        for name in sequence.hashes[sequence.named : end]:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]

    def _drop(self, table: list[int], first: int) -> None:
        behind = []
        while first and table[first - 1] != DROPPED:
            first -= 1
            behind.append(table[first])
            table[first] = DROPPED
        self.blocks.release(behind[::-1])

"""How the layers share the KV cache.

Layers with the same window form a group, and a block belongs to one group at a time: it then holds
its tokens' keys and values of every layer of that group. So full and sliding layers draw from one
pool, and a sliding group gives back what its window has left behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`windows` has a group an entry (None: full attention), `group_of` and `place_of` a layer an
    entry: its group, and which of that group's layers it is."""

    windows: tuple[int | None, ...]
    group_of: tuple[int, ...]
    place_of: tuple[int, ...]

    @property
    def layers_a_block(self) -> int:
        """How many layers' keys and values a block has room for."""
        return max(self.place_of) + 1

    def blocks_needed(self, tokens: int, block_size: int, step_tokens: int) -> int:
        """The most blocks that a sequence holds on its way to `tokens` tokens, computed by up to
        `step_tokens` a step."""
        whole = -(-tokens // block_size)
        return sum(
            whole if window is None else min(whole, -(-(window + step_tokens) // block_size) + 1)
            for window in self.windows
        )


def layout_of(windows: Sequence[int | None]) -> CacheLayout:
    """The layout for layers with these windows; full attention, if there is any, comes first."""
    groups = sorted(set(windows), key=lambda window: (window is not None, window))
    counts = dict.fromkeys(groups, 0)
    places = []
    for window in windows:
        places.append(counts[window])
        counts[window] += 1
    return CacheLayout(tuple(groups), tuple(map(groups.index, windows)), tuple(places))

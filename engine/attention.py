"""What the forward pass asks of attention: to keep keys and values, and to attend to them.

`engine.torch_attention` does it on the CPU, `engine.flashinfer_attention` on a GPU. T is the number
of a step's tokens, D the head dimension, Hq and Hkv the numbers of query and key heads.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from engine.batch import Slice

Run = tuple[int, int]
"""First slot, a slot being one token's place in the cache, and number of tokens."""


class StepAttention(Protocol):
    """One step's attention, planned for all layers."""

    def attend(self, layer: int, qkv: Tensor, sinks: Tensor) -> Tensor:
        """Attention of the step's tokens in one layer: [T, Hq * D].

        `qkv` [T, (Hq + 2 Hkv) * D] has queries, keys and values before their rotary embedding, and
        may be written over; `sinks` [Hq] are fp32. Keys and values are kept.
        """
        ...


class AttentionBackend(Protocol):
    """Keys and values of all layers, and how to attend to them."""

    def plan(self, slices: Sequence[Slice]) -> StepAttention:
        """Prepare a step. Its tokens are those of the slices in this order; slices with one token
        come first, by ascending context."""
        ...


def runs_of(table: Sequence[int], block_size: int, first: int, end: int) -> list[Run]:
    """The slots of a sequence's tokens first..end-1, as runs of contiguous slots."""
    if first == end:
        return []
    lowest = first // block_size
    blocks = table[lowest : -(-end // block_size)]
    breaks = [i for i, (a, b) in enumerate(pairwise(blocks), start=1) if b != a + 1]
    runs = []
    for index, beyond in pairwise([0, *breaks, len(blocks)]):
        place = (lowest + index) * block_size
        start, stop = max(first, place), min(end, (lowest + beyond) * block_size)
        runs.append((blocks[index] * block_size + start - place, stop - start))
    return runs


def new_slots(slices: Sequence[Slice], group: int, block_size: int) -> list[int]:
    """The slots of a step's tokens, in order."""
    return [
        slot
        for item in slices
        for start, size in runs_of(
            item.tables[group], block_size, item.position, item.position + item.count
        )
        for slot in range(start, start + size)
    ]


def positions_of(slices: Sequence[Slice]) -> list[int]:
    """The places of a step's tokens in their sequences, in order."""
    return [item.position + offset for item in slices for offset in range(item.count)]

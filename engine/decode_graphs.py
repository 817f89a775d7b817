"""CUDA graphs for steps in which every sequence generates: one launch instead of hundreds.

A graph is captured for each of some batch sizes; a step takes the next larger one, padded.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.attention import StepAttention
from engine.batch import Slice

WARM_UPS = 2
"""Runs before a capture, in which kernels are loaded and chosen."""


class PlannedDecode(StepAttention, Protocol):
    """The attention of a batch of single tokens that can be planned again."""

    def plan(self, slices: Sequence[Slice]) -> None:
        """Prepare the next run, of at most as many slices as the batch has room for."""
        ...


Compute = Callable[[Tensor, StepAttention], Tensor]
"""Tokens [T] to hidden states [T, D]."""
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Captures what a function does; the result does it again, into the same tensor."""


@dataclass(frozen=True, slots=True)
class _Graph:
    tokens: Tensor
    attention: PlannedDecode
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """Graphs for batches of `sizes` tokens."""

    def __init__(
        self,
        compute: Compute,
        decode: Callable[[int], PlannedDecode],
        sizes: Sequence[int],
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._sizes = sorted(sizes)
        # The largest first: the others then find room in the memory that it has used.
        self._graphs = {
            size: _graph(compute, decode(size), size, device, capture)
            for size in reversed(self._sizes)
        }

    def run(self, slices: Sequence[Slice]) -> Tensor | None:
        """Hidden states [T, D] of a step, valid until the next, or None for a step without a
        graph."""
        place = bisect_left(self._sizes, len(slices))
        if place == len(self._sizes) or any(item.count > 1 for item in slices):
            return None
        graph = self._graphs[self._sizes[place]]
        graph.tokens[: len(slices)].copy_(torch.tensor([item.tokens[0] for item in slices]))
        graph.attention.plan(slices)
        return graph.replay()[: len(slices)]


def graph_sizes(most: int) -> list[int]:
    """Batch sizes up to `most`: powers of two, and multiples of 16 beyond 16."""
    small = [size for size in (1, 2, 4, 8) if size < most]
    return [*small, *range(16, most, 16), most]


def _graph(
    compute: Compute,
    attention: PlannedDecode,
    size: int,
    device: torch.device,
    capture: Capture,
) -> _Graph:
    tokens = torch.zeros(size, dtype=torch.int64, device=device)
    return _Graph(tokens, attention, capture(lambda: compute(tokens, attention)))


def cuda_capture() -> Capture:
    """Captures into CUDA graphs that share their memory."""
    pool = torch.cuda.graph_pool_handle()

    def capture(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = function()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return capture

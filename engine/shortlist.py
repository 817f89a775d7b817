"""The most likely token of one hidden state: a pass over all tokens in int8, which reads half as
much as one in bf16, makes a short list, and the exact logits of that decide.

Rounding to int8 moves a logit by less than a margin that is known, so that the list is known to
hold the best token, or not to.
"""

import math

import torch
from torch import Tensor

from engine.largest import largest

LISTED = 64
STEPS = 127
"""int8 has so many steps from 0 to the largest number."""
MARGIN = 8
"""Rounding moves a logit by a sum of independent, evenly spread errors; by more than so many of its
standard deviations once in 10 ** 15 logits."""


def can_scan() -> bool:
    """Whether this machine multiplies int8 fast: without its instruction that takes longer than
    bf16."""
    return bool(torch.cpu.get_capabilities().get("avx512_vnni"))


class Shortlist:
    """Searches among weights [V, D], which stay the caller's."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        # Row by row in pieces: the whole table in fp32 would be twice its size.
        self._steps = torch.empty(len(weight))
        self._rounded = torch.empty(weight.shape, dtype=torch.int8)
        self._longest = 0.0
        for first in range(0, len(weight), 4096):
            rows = slice(first, first + 4096)
            wide = weight[rows].float()
            step = wide.abs().amax(1).clamp(min=1e-30) / STEPS
            rounded = (wide / step.unsqueeze(1)).round()
            self._steps[rows] = step
            self._rounded[rows] = rounded.to(torch.int8)
            self._longest = max(self._longest, rounded.norm(dim=1).max().item())
        self._scores = torch.empty(1, len(weight))

    def best(self, hidden: Tensor) -> int | None:
        """The token with the highest logit for hidden [1, D], or None if it may not be listed, or
        the logits may not be numbers."""
        wide = hidden.float()
        step = wide.abs().max().item() / STEPS
        if not 0 < step < math.inf:
            return None
        sums = torch._int_mm((wide / step).round().to(torch.int8), self._rounded.t())  # noqa: SLF001
        # What a rounded weight may have lost, in units of its row's step times the hidden one's.
        lost = MARGIN / math.sqrt(12) * (wide.norm().item() / step + self._longest)
        self._scores.copy_(sums).add_(lost).mul_(self._steps)
        bounds, tokens = largest(self._scores, min(LISTED, self._scores.shape[1]))
        logits = self._weight[tokens[0]].float() @ wide[0]
        highest, place = logits.max(0)
        whole = bounds.shape[1] == self._scores.shape[1]
        if whole or highest.item() >= bounds[0, -1].item() * step:
            return int(tokens[0, place])
        return None

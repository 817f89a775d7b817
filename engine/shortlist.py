"""The most likely token of hidden states, without all of their logits in fp32: a rough pass over
all tokens makes a short list, and the exact logits of that decide.

For a single state the rough pass is in int8, which reads half as much as one in bf16; for several
it is in bf16, whose results are searched as they are. Rounding moves a logit by less than a margin
that is known, so that a list is known to hold the best token, or not to. Of tokens with the same
logit the first is the best, as in torch's argmax.
"""

import math

import torch
from torch import Tensor

from engine.largest import CHUNK, largest
from engine.products import Product

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


class Int8Shortlist:
    """For a single state. The weights [V, D] stay the caller's."""

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
        highest = logits.max()
        if not highest.isfinite():
            return None
        whole = bounds.shape[1] == self._scores.shape[1]
        if whole or highest.item() > bounds[0, -1].item() * step:
            return int(tokens[0, logits == highest].min())
        return None


LISTED_CHUNKS = 8
LISTED_OF_CHUNKS = 32
BF16_STEP = 2**-9
"""By how much of itself a number moves at most when it is rounded to bf16."""


class Bf16Shortlist:
    """For several states. The weights [V, D] stay the caller's, whose product is in bf16."""

    def __init__(self, weight: Tensor, product: Product) -> None:
        self._weight = weight
        self._product = product
        parts = torch.split(weight, 4096)
        self._longest = max(part.float().norm(dim=1).max().item() for part in parts)
        self._largest = torch.stack([part.abs().amax(0) for part in parts]).amax(0).float()

    def best(self, hidden: Tensor) -> list[int | None]:
        """The tokens with the highest logits for hidden [T, D], None where one may not be listed,
        or the logits may not be numbers."""
        wide = hidden.float()
        rough = self._product(hidden.bfloat16())
        count = rough.shape[1] // CHUNK * CHUNK
        if count < (LISTED_CHUNKS + 1) * CHUNK:
            return [None] * len(hidden)
        chunks = rough[:, :count].view(len(rough), -1, CHUNK)
        highest, places = _peaks(chunks).topk(LISTED_CHUNKS + 1)
        tokens = (places[:, :-1].unsqueeze(2) * CHUNK + torch.arange(CHUNK)).flatten(1)
        rest = torch.arange(count, rough.shape[1]).expand(len(rough), -1)
        tokens = torch.cat((tokens, rest), dim=1)
        values, order = rough.gather(1, tokens).float().topk(LISTED_OF_CHUNKS + 1)
        tokens = tokens.gather(1, order[:, :-1])
        exact = torch.bmm(self._weight[tokens].float(), wide.unsqueeze(2)).squeeze(2)
        best = exact.amax(1)
        bound = torch.maximum(highest[:, -1], values[:, -1])
        # States are rounded, too: what that moves is at most so long.
        moved = torch.minimum(
            wide.abs().amax(1) * self._longest, (wide * self._largest).norm(dim=1)
        )
        lost = BF16_STEP * (2 * best.abs() + MARGIN / math.sqrt(3) * moved)
        known = best - lost > bound
        found = tokens.masked_fill_(exact < best.unsqueeze(1), rough.shape[1]).amin(1)
        return [
            token if sure else None
            for token, sure in zip(found.tolist(), known.tolist(), strict=True)
        ]


def _peaks(chunks: Tensor) -> Tensor:
    """The largest number of each chunk of bf16 ones [T, C, CHUNK]: fp32 [T, C]. As integers they
    are searched five times as fast; there positive numbers have the same order, negative ones the
    opposite."""
    integers = chunks.view(torch.int16)
    peaks = integers.amax(-1)
    if (peaks < 0).any():
        peaks = torch.where(peaks < 0, integers.amin(-1), peaks)
    return peaks.view(torch.bfloat16).float()

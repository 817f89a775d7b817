"""The last product: from hidden states to logits over the vocabulary, the bulk of a tiny model's
work.

`ExactHead` multiplies in fp32. `RefinedHead` multiplies in bf16, which reads half as much and has
twice the speed or more, and then works out the most likely tokens' logits again in fp32: what
could be sampled is exact, and the tail is as a bf16 model has it.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.largest import largest
from engine.products import PackedProduct, can_pack
from engine.shortlist import Bf16Shortlist, Int8Shortlist, can_scan

REFINED = 64
"""How many logits of a row are exact. The true maximum is among them unless more than that many
tokens lie within bf16's rounding, about half a percent, of it."""
PACK = True
"""Keep the weights a second time, in the order that oneDNN reads fastest: a third to half of the
time (measured: 201,088 rows of 128 and of 512)."""
SCAN = True
"""Keep the weights a third time, in int8, for the most likely token of a single row: a third of the
time with 201,088 rows of 128, 0.6 of it with 512 (measured)."""


class Head(Protocol):
    """Hidden states [T, D] to fp32 logits [T, V], which the next call writes over."""

    def __call__(self, hidden: Tensor) -> Tensor: ...

    def best(self, hidden: Tensor) -> list[int | None]:
        """The most likely token for each of hidden [T, D], where that is found faster than by
        logits."""
        ...


class _Rows:
    """Memory for logits that is used again: fresh pages take nine times as long to write as to
    reuse (measured: 6.3 ms and 0.7 ms for 32 rows of 201,088)."""

    def __init__(self, width: int) -> None:
        self._memory = torch.empty(0, width)

    def take(self, count: int) -> Tensor:
        """The first `count` rows."""
        if count > len(self._memory):
            self._memory = torch.empty(count, self._memory.shape[1])
        return self._memory[:count]


class ExactHead:
    """Logits by one fp32 product with weights [V, D]."""

    def __init__(self, weight: Tensor) -> None:
        self._rows = _Rows(len(weight))
        # A product with one row takes a third of the time in this order (measured).
        self._weight = weight.float().t().contiguous()

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.mm(hidden.float(), self._weight, out=self._rows.take(len(hidden)))

    def best(self, hidden: Tensor) -> list[int | None]:
        return [None] * len(hidden)


class WideHead:
    """Logits by one bf16 product with weights [V, D] on a GPU, added up and returned in fp32."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.t()

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.mm(hidden, self._weight, out_dtype=torch.float32)

    def best(self, hidden: Tensor) -> list[int | None]:
        return [None] * len(hidden)


class RefinedHead:
    """Logits by a bf16 product with weights [V, D], the `REFINED` highest of a row in fp32."""

    def __init__(self, weight: Tensor) -> None:
        self._rows = _Rows(len(weight))
        self._weight = weight.bfloat16()
        self._packed = PackedProduct(self._weight) if PACK and can_pack(torch.bfloat16) else None
        self._one = Int8Shortlist(self._weight) if SCAN and can_scan() else None
        self._several = Bf16Shortlist(self._weight, self._packed) if self._packed else None

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self._rows.take(len(hidden)).copy_(self._product(hidden.bfloat16()))
        _, best = largest(logits, min(REFINED, logits.shape[1]))
        rows = self._weight[best].float()
        exact = torch.bmm(rows, hidden.float().unsqueeze(2)).squeeze(2)
        return logits.scatter_(1, best, exact)

    def best(self, hidden: Tensor) -> list[int | None]:
        if len(hidden) == 1 and self._one is not None:
            return [self._one.best(hidden)]
        return [None] * len(hidden) if self._several is None else self._several.best(hidden)

    def _product(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._weight) if self._packed is None else self._packed(hidden)

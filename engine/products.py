"""Products with weights that do not change, alone or as many of one shape, one for each expert.

bf16 weights are kept in oneDNN's own order where the machine has it: measured on one core of
AVX512 for 32 experts of 512 by 512, that takes half the time for one token, two thirds for 32 and
four fifths for 512, of torch's grouped product, with the same results.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def can_pack(dtype: torch.dtype) -> bool:
    """Whether products with weights of this dtype are faster in oneDNN's order here."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return dtype == torch.bfloat16 and supported


class Product(Protocol):
    """A matrix from `in` to `out` with its bias."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [N, in] to [N, out]."""
        ...


class PlainProduct:
    """A weight [out, in] and a bias [out] as they are."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self._weight, self._bias)


class PackedProduct:
    """rows [N, in] -> [N, out] with a bf16 weight [out, in], which is copied."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            rows, self._weight, self._bias, "none", [], ""
        )
        return product


class ExpertProducts(Protocol):
    """E matrices from `in` to `out`, each with its bias."""

    def grouped(self, rows: Tensor, expert: Tensor) -> Tensor:
        """Rows [N, in], each times its expert's matrix; experts [N] ascend: [N, out]."""
        ...

    def each(self, rows: Tensor, experts: Sequence[int]) -> Tensor:
        """The same for few rows, in any order of the experts."""
        ...


class PackedExperts:
    """One packed product an expert."""

    def __init__(self, products: Sequence[PackedProduct]) -> None:
        self._products = products

    def grouped(self, rows: Tensor, expert: Tensor) -> Tensor:
        counts = torch.bincount(expert, minlength=len(self._products)).tolist()
        parts = zip(self._products, torch.split(rows, counts), strict=True)
        return torch.cat([product(part) for product, part in parts if len(part)])

    def each(self, rows: Tensor, experts: Sequence[int]) -> Tensor:
        return torch.cat(
            [self._products[e](row) for e, row in zip(experts, _single(rows), strict=True)]
        )


class PlainExperts:
    """Matrices [E, in, out] and biases [E, out] as they are."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight = weight
        self._bias = bias

    def grouped(self, rows: Tensor, expert: Tensor) -> Tensor:
        # No bincount: on a GPU that would wait for the numbers.
        each = torch.arange(len(self._weight), device=expert.device)
        ends = torch.searchsorted(expert, each, right=True, out_int32=True)
        product: Tensor = torch._grouped_mm(rows, self._weight, offs=ends)  # noqa: SLF001
        return product + self._bias[expert]

    def each(self, rows: Tensor, experts: Sequence[int]) -> Tensor:
        found = [
            torch.addmm(self._bias[e], row, self._weight[e])
            for e, row in zip(experts, _single(rows), strict=True)
        ]
        return torch.cat(found)


def _single(rows: Tensor) -> Iterator[Tensor]:
    """Each row by itself: [1, in]."""
    return iter(torch.split(rows, 1))

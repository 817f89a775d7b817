"""Experts that stay in MXFP4, multiplied from there by flashinfer's CUTLASS kernel on Hopper.

The kernel's layout differs from a checkpoint's: sizes are multiples of 128; the rows of the first
product are all of the up part, then all of the gate, where a checkpoint alternates them; weights
and scales are interleaved for the tensor cores. Facts are from the sources of flashinfer 0.7.4
(fused_moe/core.py, fused_moe/prepare.py and the kernel's binding).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from flashinfer.fused_moe import (
    cutlass_fused_moe,
    interleave_moe_scales_for_sm90_mixed_gemm,
    interleave_moe_weights_for_sm90_mixed_gemm,
)
from torch import Tensor

from engine.experts import Router
from engine.mxfp4 import BLOCK, StoredExperts

MULTIPLE = 128
"""Hidden and intermediate size are filled up to a multiple of this."""
NEUTRAL_SCALE = 127
"""2 ** 0."""


@dataclass(frozen=True, slots=True)
class HopperExperts:
    """One layer's experts in the kernel's layout; D' and I' are sizes filled up.

    `first` uint8 [E, 2 I', D' / 2] and `second` uint8 [E, D', I' / 2] with their scales and bf16
    biases; `alpha`, `beta` and `limit` fp32 [E] are of the SwiGLU.
    """

    router: Router
    first: Tensor
    first_scales: Tensor
    first_bias: Tensor
    second: Tensor
    second_scales: Tensor
    second_bias: Tensor
    alpha: Tensor
    beta: Tensor
    limit: Tensor

    def __call__(self, hidden: Tensor) -> Tensor:
        """Tokens [T, D] through their best experts: [T, D]."""
        shares, chosen = self.router(hidden)
        size, padded = hidden.shape[1], self.second.shape[1]
        out: Tensor = cutlass_fused_moe(
            F.pad(hidden, (0, padded - size)),
            chosen.int(),
            shares.float(),
            self.first,
            self.second,
            hidden.dtype,
            [self.first_scales, self.second_scales],
            fc1_expert_biases=self.first_bias,
            fc2_expert_biases=self.second_bias,
            swiglu_alpha=self.alpha,
            swiglu_beta=self.beta,
            swiglu_limit=self.limit,
            use_w4_group_scaling=True,
            # The fused one adds with atomics, in any order.
            use_fused_finalize=False,
        )
        return out[:, :size]


def hopper_experts(
    router: Router, stored: StoredExperts, alpha: float, limit: float, dtype: torch.dtype
) -> HopperExperts:
    """Bring a layer's experts, which are on the GPU, into the kernel's layout."""
    count = len(stored.down_bias)
    first, first_scales = _interleaved(
        _up_then_gate(stored.gate_up_blocks, 0), _up_then_gate(stored.gate_up_scales, NEUTRAL_SCALE)
    )
    second, second_scales = _interleaved(stored.down_blocks, stored.down_scales)

    def each(value: float) -> Tensor:
        return torch.full((count,), value, dtype=torch.float32, device=first.device)

    return HopperExperts(
        router,
        first,
        first_scales,
        _up_then_gate(stored.gate_up_bias, 0).to(dtype),
        second,
        second_scales,
        _filled(stored.down_bias, 1, MULTIPLE, 0).to(dtype),
        alpha=each(alpha),
        beta=each(1.0),
        limit=each(limit),
    )


def _up_then_gate(rows: Tensor, fill: int) -> Tensor:
    """[E, 2I, ...], gate and up alternating, to [E, 2I', ...]."""
    gate, up = (_filled(rows[:, first::2], 1, MULTIPLE, fill) for first in (0, 1))
    return torch.cat((up, gate), dim=1)


def _interleaved(blocks: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [E, out, in / 32, 16] and scales [E, out, in / 32] as the kernel has them."""
    blocks = _filled(_filled(blocks, 1, MULTIPLE, 0), 2, MULTIPLE // BLOCK, 0)
    scales = _filled(
        _filled(scales, 1, MULTIPLE, NEUTRAL_SCALE), 2, MULTIPLE // BLOCK, NEUTRAL_SCALE
    )
    return (
        interleave_moe_weights_for_sm90_mixed_gemm(blocks.flatten(2), "fp4"),
        interleave_moe_scales_for_sm90_mixed_gemm(scales, group_size=BLOCK),
    )


def _filled(tensor: Tensor, dim: int, multiple: int, value: int) -> Tensor:
    """The tensor with a dimension filled up to a multiple."""
    missing = -tensor.shape[dim] % multiple
    padding = [0, 0] * (tensor.dim() - 1 - dim) + [0, missing]
    return F.pad(tensor, padding, value=value)

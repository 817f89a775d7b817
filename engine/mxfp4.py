"""MXFP4, the storage format of gpt-oss's expert weights: 4-bit floats in blocks of 32 that share
a power-of-two scale (OCP Microscaling Formats specification 1.0, sections 5.3.3 and 6.3).

A byte holds two neighbours, the even one in its low nibble. A nibble is E2M1: sign, then one of
eight magnitudes. A scale is E8M0: the byte s stands for 2 ** (s - 127), and 255 for NaN.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Values that share a scale."""


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """One layer's experts as a checkpoint stores them: uint8 blocks [E, out, in / 32, 16] and
    scales [E, out, in / 32], biases [E, out]. Gate and up alternate in the first's outputs."""

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    gate_up_bias: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    down_bias: Tensor


_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor([sign * value for sign in (1.0, -1.0) for value in _MAGNITUDES])
_MIDPOINTS = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(_MAGNITUDES)])
_BYTES = torch.arange(256)
_PAIRS = torch.stack((_VALUES[_BYTES % 16], _VALUES[_BYTES // 16]), dim=1)
_SCALES = torch.where(_BYTES < 255, torch.ldexp(torch.ones(256), _BYTES - 127), torch.nan)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weight [..., in] to uint8 blocks [..., in/32, 16] and scales [..., in/32].

    A block's scale is the power of two that brings its largest magnitude into [4, 8); values are
    rounded to the nearest of the format, ties to the smaller magnitude, and saturate at 6.
    Raises ValueError if the last dimension is not a multiple of 32.
    """
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"the last dimension must be a multiple of {BLOCK}: {tuple(weight.shape)}")
    values = weight.float().reshape(*weight.shape[:-1], -1, BLOCK)
    largest = values.abs().amax(-1)
    # frexp is exact where log2 is not; its mantissa lies in [0.5, 1).
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 3, -127).clamp(-127, 127)
    scaled = torch.ldexp(values, -exponent.unsqueeze(-1))
    codes = torch.bucketize(scaled.abs(), _MIDPOINTS.to(weight.device)).to(torch.uint8)
    codes |= scaled.signbit().to(torch.uint8) << 3
    return codes[..., ::2] | (codes[..., 1::2] << 4), (exponent + 127).to(torch.uint8)


def dequantize(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Undo `quantize`: blocks [E, out, in/32, 16], scales [E, out, in/32] -> weight [E, out, in].

    `dtype` is bfloat16 or float32, both exact: every product is a 2-bit significand and a power
    of two. One look-up fetches a byte's two values at once, as one integer of their width; the
    experts are taken one by one so that the indices, four times as large as the blocks, never
    exist all together.
    """
    both = {torch.bfloat16: torch.int32, torch.float32: torch.int64}[dtype]
    pairs = _PAIRS.to(blocks.device, dtype).view(both).flatten()
    powers = _SCALES.to(blocks.device, dtype)
    shape = (*blocks.shape[:-2], blocks.shape[-2] * BLOCK)
    weight = torch.empty(shape, dtype=dtype, device=blocks.device)
    for expert, block, scale in zip(weight, blocks, scales, strict=True):
        values = pairs[block.int()].view(dtype)
        torch.mul(values, powers[scale.int()].unsqueeze(-1), out=expert.view(values.shape))
    return weight

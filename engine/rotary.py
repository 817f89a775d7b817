"""Rotary position embedding, with YaRN."""

import math

import torch
from torch import Tensor

from engine.config import RopeConfig


def cosines_and_sines(
    positions: Tensor, frequencies: Tensor, rope: RopeConfig
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, fp32 [positions, head_dim / 2]."""
    angles = positions.unsqueeze(1) * frequencies
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [T, H, D], whose pairs are a number of each half of D; cosine and sine
    are [T, 1, D / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angles per position, fp32 [head_dim / 2].

    YaRN (arXiv 2309.00071, section 3.2): frequencies that turn often within the original context
    stay, those that turn seldom are divided by `factor`, and a ramp leads from one to the other.
    """
    half = head_dim // 2
    plain = rope.theta ** -(torch.arange(half).float() / half)
    if rope.factor == 1.0:
        return plain
    low = _dimension(rope.beta_fast, rope, head_dim)
    high = _dimension(rope.beta_slow, rope, head_dim)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(half) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _dimension(turns: float, rope: RopeConfig, head_dim: int) -> float:
    """The pair of dimensions that turns this often within the original context."""
    period = rope.original_context / (turns * 2 * math.pi)
    return head_dim * math.log(period) / (2 * math.log(rope.theta))

"""The mixture of experts: routing, and grouped products over the tokens that share an expert."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.weights import ExpertWeights

DENSE_WORK = 128
"""Up to this many (token, expert) pairs, and few small experts, running every token through every
expert is faster than sorting tokens by expert (measured: E 8, D 256, up to about 16 tokens)."""
DENSE_SIZE = 256


def experts_forward(
    hidden: Tensor, weights: ExpertWeights, kept: int, alpha: float, limit: float
) -> Tensor:
    """Run tokens [T, D] through their `kept` best experts, weighted by the router: [T, D].

    The weights are the softmax over the kept logits alone.
    """
    logits, chosen = F.linear(hidden, weights.router, weights.router_bias).topk(kept, dim=-1)
    shares = logits.softmax(-1)
    experts, width = weights.router.shape
    if width <= DENSE_SIZE and len(hidden) * experts <= DENSE_WORK:
        return _dense(hidden, weights, shares, chosen, alpha, limit)
    return _grouped(hidden, weights, shares, chosen, alpha, limit)


def _dense(
    hidden: Tensor,
    weights: ExpertWeights,
    shares: Tensor,
    chosen: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    experts, width = weights.router.shape
    every = hidden.expand(experts, len(hidden), width)
    inner = torch.baddbmm(weights.gate_up_bias.unsqueeze(1), every, weights.gate_up)
    outputs = torch.baddbmm(
        weights.down_bias.unsqueeze(1), swiglu(inner, alpha, limit), weights.down
    )
    by_expert = hidden.new_zeros(len(hidden), experts).scatter_(1, chosen, shares)
    return torch.einsum("te,etd->td", by_expert, outputs)


def _grouped(
    hidden: Tensor,
    weights: ExpertWeights,
    shares: Tensor,
    chosen: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    kept = chosen.shape[1]
    expert, order = chosen.flatten().sort(stable=True)
    counts = torch.bincount(expert, minlength=len(weights.router))
    ends = counts.cumsum(0, dtype=torch.int32)
    rows = hidden[order // kept]
    inner = _grouped_mm(rows, weights.gate_up, ends) + weights.gate_up_bias[expert]
    outputs = _grouped_mm(swiglu(inner, alpha, limit), weights.down, ends)
    outputs += weights.down_bias[expert]
    unsorted = torch.empty_like(outputs)
    unsorted[order] = outputs
    return torch.einsum("tk,tkd->td", shares, unsorted.view(len(hidden), kept, -1))


def _grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """rows [N, K] in runs that end at `ends` [E], each times its matrix of weight [E, K, N]."""
    product: Tensor = torch._grouped_mm(rows, weight, offs=ends)  # noqa: SLF001
    return product


def swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gpt-oss's clamped SwiGLU of [..., 2I] (gate, then up) -> [..., I]:
    (up + 1) * gate * sigmoid(alpha * gate)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(alpha * gate))

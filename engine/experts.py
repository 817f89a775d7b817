"""The mixture of experts: routing, and grouped products over the tokens that share an expert."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.weights import ExpertWeights


def experts_forward(
    hidden: Tensor, weights: ExpertWeights, kept: int, alpha: float, limit: float
) -> Tensor:
    """Run tokens [T, D] through their `kept` best experts, weighted by the router: [T, D].

    The weights are the softmax over the kept logits alone. Tokens are sorted by expert, so that
    each chosen expert's matrices are read once, and no others.
    """
    logits, chosen = F.linear(hidden, weights.router, weights.router_bias).topk(kept, dim=-1)
    shares = logits.softmax(-1)
    expert, order = chosen.flatten().sort(stable=True)
    ends = torch.bincount(expert, minlength=len(weights.router)).cumsum(0, dtype=torch.int32)
    rows = hidden[order // kept]
    inner = _grouped_mm(rows, weights.gate_up, ends) + weights.gate_up_bias[expert]
    outputs = _grouped_mm(swiglu(inner, alpha, limit), weights.down, ends)
    outputs += weights.down_bias[expert]
    unsorted = torch.empty_like(outputs)
    unsorted[order] = outputs
    return torch.bmm(shares.unsqueeze(1), unsorted.view(len(hidden), kept, -1)).squeeze(1)


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

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
    if len(hidden) == 1:
        experts: list[int] = chosen[0].tolist()
        inner = weights.gate_up.each(hidden.expand(kept, -1), experts)
        return shares @ weights.down.each(swiglu(inner, alpha, limit), experts)
    expert, order = chosen.flatten().sort(stable=True)
    inner = weights.gate_up.grouped(hidden[order // kept], expert)
    outputs = weights.down.grouped(swiglu(inner, alpha, limit), expert)
    unsorted = torch.empty_like(outputs)
    unsorted[order] = outputs
    return torch.bmm(shares.unsqueeze(1), unsorted.view(len(hidden), kept, -1)).squeeze(1)


def swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gpt-oss's clamped SwiGLU of [..., 2I] (gate, then up) -> [..., I]:
    (up + 1) * gate * sigmoid(alpha * gate)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(alpha * gate))

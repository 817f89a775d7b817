"""The mixture of experts: routing, and grouped products over the tokens that share an expert."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.products import ExpertProducts


class Experts(Protocol):
    """One layer's mixture of experts."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """Run tokens [T, D] through their best experts, weighted by the router: [T, D]."""
        ...


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses the `kept` best experts of a token by `weight` [E, D] and `bias` [E]."""

    weight: Tensor
    bias: Tensor
    kept: int

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and experts of tokens [T, D], each [T, kept]. The shares are the softmax over the
        kept logits alone."""
        logits, chosen = F.linear(hidden, self.weight, self.bias).topk(self.kept, dim=-1)
        return logits.softmax(-1), chosen


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """Experts by grouped products: `gate_up` from D to 2I with the gate in the first half, `down`
    from I to D. `alpha` and `limit` are of their SwiGLU."""

    router: Router
    gate_up: ExpertProducts
    down: ExpertProducts
    alpha: float
    limit: float

    def __call__(self, hidden: Tensor) -> Tensor:
        """Tokens are sorted by expert, so that each chosen expert's matrices are read once, and no
        others."""
        kept = self.router.kept
        shares, chosen = self.router(hidden)
        if len(hidden) == 1 and hidden.is_cpu:
            experts: list[int] = chosen[0].tolist()
            inner = self.gate_up.each(hidden.expand(kept, -1), experts)
            return shares @ self.down.each(self._swiglu(inner), experts)
        expert, order = chosen.flatten().sort(stable=True)
        inner = self.gate_up.grouped(hidden[order // kept], expert)
        outputs = self.down.grouped(self._swiglu(inner), expert)
        unsorted = torch.empty_like(outputs)
        unsorted[order] = outputs
        return torch.bmm(shares.unsqueeze(1), unsorted.view(len(hidden), kept, -1)).squeeze(1)

    def _swiglu(self, gate_up: Tensor) -> Tensor:
        return swiglu(gate_up, self.alpha, self.limit)


def swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gpt-oss's clamped SwiGLU of [..., 2I] (gate, then up) -> [..., I]:
    (up + 1) * gate * sigmoid(alpha * gate)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(alpha * gate))

"""The gpt-oss forward pass over a flat batch of tokens from several sequences."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.attention import AttentionBackend, StepAttention
from engine.batch import Slice
from engine.decode_graphs import DecodeGraphs
from engine.head import Head
from engine.norm import Norm, rms_norm
from engine.weights import Weights


class Model:
    """The weights of one model, and what computes with them; `eps` is of its norms. Where the
    weights are, there its tensors are."""

    def __init__(
        self,
        weights: Weights,
        head: Head,
        attention: AttentionBackend,
        eps: float,
        norm: Norm = rms_norm,
    ) -> None:
        self._weights = weights
        self._dtype = weights.norm.dtype
        self._device = weights.norm.device
        self._head = head
        self._attention = attention
        self._eps = eps
        self._norm = norm
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, graphs: DecodeGraphs) -> None:
        """Run steps by these graphs that there are some for; they are of `layers`."""
        self._graphs = graphs

    @property
    def vocabulary_size(self) -> int:
        """Of how many tokens there are logits."""
        return len(self._weights.embedding)

    @torch.inference_mode()
    def forward(self, slices: Sequence[Slice], wanted: Sequence[bool] | None = None) -> Tensor:
        """Run the slices, writing their keys and values to the cache.

        Returns the final hidden state of the last token of each slice, [slices, D], or of those
        that are `wanted`.
        """
        order = sorted(range(len(slices)), key=lambda i: _row_order(slices[i]))
        ordered = [slices[i] for i in order]
        hidden = self._run(ordered)
        last = torch.tensor([item.count for item in ordered]).cumsum(0) - 1
        row_of = dict(zip(order, last.tolist(), strict=True))
        kept = [row_of[i] for i in range(len(slices)) if wanted is None or wanted[i]]
        return self._norm(hidden[kept], self._weights.norm, self._eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states [T, D]: fp32 [T, V]."""
        return self._head(hidden)

    @torch.inference_mode()
    def best(self, hidden: Tensor) -> list[int | None]:
        """The most likely token after each final hidden state [T, D], where that is found faster
        than by logits."""
        return self._head.best(hidden)

    def layers(self, tokens: Tensor, attention: StepAttention) -> Tensor:
        """All layers' work on a step's tokens [T]: [T, D]. Reads and writes tensors only, so that
        it can be captured in a graph."""
        hidden = F.embedding(tokens, self._weights.embedding).to(self._dtype)
        for index, layer in enumerate(self._weights.layers):
            weights = layer.attention
            normed = self._norm(hidden, layer.attention_norm, self._eps)
            attended = attention.attend(index, weights.qkv(normed), weights.sinks)
            hidden = hidden + weights.output(attended)
            normed = self._norm(hidden, layer.expert_norm, self._eps)
            hidden = hidden + layer.experts(normed)
        return hidden

    def _run(self, slices: Sequence[Slice]) -> Tensor:
        replayed = self._graphs.run(slices) if self._graphs is not None else None
        if replayed is not None:
            return replayed
        tokens = torch.tensor([token for item in slices for token in item.tokens])
        return self.layers(tokens.to(self._device), self._attention.plan(slices))


def _row_order(item: Slice) -> tuple[bool, int]:
    return (item.count > 1, item.position)

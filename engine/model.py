"""The gpt-oss forward pass over a flat batch of tokens from several sequences."""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.attention import AttentionPlan, Cache, runs_of
from engine.batch import Slice
from engine.config import GptOssConfig, RopeConfig
from engine.experts import experts_forward
from engine.head import Head
from engine.weights import AttentionWeights, LayerWeights, Weights


class Model:
    """Weights and KV cache of one model.

    `blocks` blocks of `block_size` tokens are reserved; their memory is touched as they are first
    used. Layers of different groups share memory, but never a block.
    """

    def __init__(
        self, config: GptOssConfig, weights: Weights, head: Head, blocks: int, block_size: int
    ) -> None:
        self.config = config
        self._weights = weights
        self._dtype = weights.norm.dtype
        self._head = head
        self._block_size = block_size
        self._layout = layout = config.cache_layout
        slots = blocks * block_size
        shape = (layout.layers_a_block, 2, slots, config.kv_heads, config.head_dim)
        memory = torch.empty(shape, dtype=self._dtype)
        self._caches = [Cache(*memory[place]) for place in layout.place_of]
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)

    @torch.inference_mode()
    def forward(self, slices: Sequence[Slice], wanted: Sequence[bool] | None = None) -> Tensor:
        """Run the slices, writing their keys and values to the cache.

        Returns the final hidden state of the last token of each slice, [slices, D], or of those
        that are `wanted`.
        """
        order = sorted(range(len(slices)), key=lambda i: _row_order(slices[i]))
        ordered = [slices[i] for i in order]
        hidden = self._layers(ordered)
        last = torch.tensor([item.count for item in ordered]).cumsum(0) - 1
        row_of = dict(zip(order, last.tolist(), strict=True))
        kept = [row_of[i] for i in range(len(slices)) if wanted is None or wanted[i]]
        return self._norm(hidden[kept], self._weights.norm)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states [T, D]: fp32 [T, V]."""
        return self._head(hidden)

    def _layers(self, slices: Sequence[Slice]) -> Tensor:
        config = self.config
        plans = [
            AttentionPlan(slices, group, self._block_size, window, config.kv_width, self._dtype)
            for group, window in enumerate(self._layout.windows)
        ]
        tokens = torch.tensor([token for item in slices for token in item.tokens])
        slots = [
            torch.tensor([slot for item in slices for slot in self._slots(item, group)])
            for group in range(len(plans))
        ]
        rotation = self._rotation(slices)
        hidden = F.embedding(tokens, self._weights.embedding).to(self._dtype)
        groups = self._layout.group_of
        for layer, cache, group in zip(self._weights.layers, self._caches, groups, strict=True):
            hidden = self._layer(hidden, layer, cache, plans[group], slots[group], rotation)
        return hidden

    def _layer(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        cache: Cache,
        plan: AttentionPlan,
        slots: Tensor,
        rotation: tuple[Tensor, Tensor],
    ) -> Tensor:
        normed = self._norm(hidden, layer.attention_norm)
        hidden = hidden + self._attention(normed, layer.attention, cache, plan, slots, rotation)
        normed = self._norm(hidden, layer.expert_norm)
        config = self.config
        return hidden + experts_forward(
            normed,
            layer.experts,
            config.experts_per_token,
            config.swiglu_alpha,
            config.swiglu_limit,
        )

    def _attention(
        self,
        hidden: Tensor,
        weights: AttentionWeights,
        cache: Cache,
        plan: AttentionPlan,
        slots: Tensor,
        rotation: tuple[Tensor, Tensor],
    ) -> Tensor:
        config = self.config
        qkv = F.linear(hidden, weights.qkv, weights.qkv_bias)
        heads = qkv.view(len(hidden), -1, config.head_dim)
        rotated = _rotate(heads[:, : -config.kv_heads], *rotation)
        queries, keys = rotated[:, : config.query_heads], rotated[:, config.query_heads :]
        values = heads[:, -config.kv_heads :]
        cache.keys.index_copy_(0, slots, keys)
        cache.values.index_copy_(0, slots, values)
        out = plan.attend(queries, Cache(keys, values), cache, weights.sinks)
        return F.linear(out.flatten(1), weights.output, weights.output_bias)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        # Written out: torch's rms_norm takes three times as long for a few short rows.
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return (wide * scale * weight).to(hidden.dtype)

    def _slots(self, item: Slice, group: int) -> Iterator[int]:
        end = item.position + item.count
        for start, size in runs_of(item.tables[group], self._block_size, item.position, end):
            yield from range(start, start + size)

    def _rotation(self, slices: Sequence[Slice]) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's angles, [T, 1, head_dim / 2]."""
        positions = torch.tensor(
            [item.position + offset for item in slices for offset in range(item.count)]
        )
        angles = (positions.unsqueeze(1) * self._frequencies).unsqueeze(1)
        factor = self.config.rope.attention_factor
        return (angles.cos() * factor).to(self._dtype), (angles.sin() * factor).to(self._dtype)


def _row_order(item: Slice) -> tuple[bool, int]:
    return (item.count > 1, item.position)


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [T, H, D], whose pairs are a number of each half of D."""
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

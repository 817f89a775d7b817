"""The weights of a gpt-oss model, in the layout that the forward pass uses.

D is the hidden size, V the vocabulary size.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.experts import Experts
from engine.products import Product


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One attention: `qkv` from D to (Hq + 2 Hkv) * head_dim, `output` from Hq * head_dim to D, and
    `sinks` [Hq], one extra logit a head, always fp32."""

    qkv: Product
    output: Product
    sinks: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    attention_norm: Tensor
    attention: AttentionWeights
    expert_norm: Tensor
    experts: Experts


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model. `embedding` and `unembedding` are [V, D], in a dtype of their own; everything
    else is in the dtype of the forward pass."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    unembedding: Tensor

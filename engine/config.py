"""The model's shape, read from a Hugging Face `config.json`.

Both layouts of a gpt-oss checkpoint are read: `rope_parameters` (transformers 5) and
`rope_scaling` with `rope_theta` beside it (earlier). `UnsupportedModelError` says what is not.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.cache_layout import CacheLayout, layout_of

ARCHITECTURE = "GptOssForCausalLM"


class CheckpointError(Exception):
    """A checkpoint cannot be served; the message is for the operator."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is of an architecture, or has a setting, that this engine does not run."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `factor` is YaRN's context extension; 1.0 is plain RoPE."""

    theta: float
    factor: float = 1.0
    original_context: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Sizes and constants of one gpt-oss model. `windows` is each layer's window in tokens, None
    where the layer attends to everything."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    windows: tuple[int | None, ...]
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    swiglu_alpha: float
    swiglu_limit: float
    tied_embeddings: bool
    mxfp4: bool

    @property
    def cache_layout(self) -> CacheLayout:
        """How its layers share the KV cache."""
        return layout_of(self.windows)

    @property
    def kv_width(self) -> int:
        """Numbers in one token's keys (and in its values) of one layer."""
        return self.kv_heads * self.head_dim


def read_config(directory: Path) -> GptOssConfig:
    """Read `config.json` of a checkpoint directory.

    Raises CheckpointError if there is none, or it is not JSON or lacks a size, and
    UnsupportedModelError for a model that is not a gpt-oss.
    """
    path = directory / "config.json"
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    try:
        return parse_config(values)
    except KeyError as error:
        raise CheckpointError(f"{path} has no {error}") from error
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a gpt-oss config: {error}") from error


def parse_config(values: Mapping[str, Any]) -> GptOssConfig:
    """The config of these `config.json` members. Raises KeyError for a missing size, and
    CheckpointError."""
    _check_supported(values)
    _check_sizes(values)
    query_heads, kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
    return GptOssConfig(
        vocabulary_size=values["vocab_size"],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        layers=values["num_hidden_layers"],
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=values.get("head_dim") or values["hidden_size"] // query_heads,
        experts=values["num_local_experts"],
        experts_per_token=_experts_per_token(values),
        windows=_windows(values),
        context_length=values["max_position_embeddings"],
        rms_norm_eps=values.get("rms_norm_eps", 1e-5),
        rope=_rope(values),
        swiglu_alpha=values.get("swiglu_alpha", 1.702),
        swiglu_limit=values.get("swiglu_limit", 7.0),
        tied_embeddings=values.get("tie_word_embeddings", False),
        mxfp4=bool(values.get("quantization_config")),
    )


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_local_experts",
    "max_position_embeddings",
)
_OPTIONAL_SIZES = ("head_dim", "num_experts_per_tok", "experts_per_token", "sliding_window")


def _check_sizes(values: Mapping[str, Any]) -> None:
    sizes = {name: values[name] for name in _SIZES}
    sizes |= {name: values[name] for name in _OPTIONAL_SIZES if values.get(name) is not None}
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{name} must be a positive integer, found: {value!r}")
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        raise UnsupportedModelError("the query heads must be a multiple of the key/value heads")


def _check_supported(values: Mapping[str, Any]) -> None:
    architectures = values.get("architectures") or []
    if ARCHITECTURE not in architectures:
        found = ", ".join(map(str, architectures)) or "none"
        raise UnsupportedModelError(f"the architecture must be {ARCHITECTURE}, found: {found}")
    method = (values.get("quantization_config") or {}).get("quant_method", "mxfp4")
    if method != "mxfp4":
        raise UnsupportedModelError(f"the quantisation must be mxfp4 or none, found: {method}")
    for name, only in (("hidden_act", "silu"), ("attention_bias", True)):
        if values.get(name, only) != only:
            raise UnsupportedModelError(f"{name} must be {only}, found: {values[name]}")


def _experts_per_token(values: Mapping[str, Any]) -> int:
    kept: int = values.get("num_experts_per_tok") or values["experts_per_token"]
    if kept > values["num_local_experts"]:
        raise UnsupportedModelError(f"{kept} experts per token, but the model has fewer")
    return kept


def _windows(values: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers, window = values["num_hidden_layers"], values.get("sliding_window")
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(f"layer_types must name {layers} full or sliding attentions")
    if window is None and "sliding_attention" in kinds:
        raise UnsupportedModelError("sliding_attention needs a sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(values: Mapping[str, Any]) -> RopeConfig:
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or values.get("rope_theta") or 150_000.0
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind != "yarn" or "mscale" in rope or "mscale_all_dim" in rope:
        raise UnsupportedModelError(f"the rotary embedding must be yarn or default, found: {kind}")
    factor = rope["factor"]
    original = rope.get("original_max_position_embeddings") or values["initial_context_length"]
    return RopeConfig(
        theta=theta,
        factor=factor,
        original_context=original,
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        truncate=rope.get("truncate", True),
        # The YaRN paper (arXiv 2309.00071), equation 22.
        attention_factor=rope.get("attention_factor") or 0.1 * math.log(max(factor, 1.0)) + 1.0,
    )

"""Random small gpt-oss checkpoints, as Hugging Face directories."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine import mxfp4

VOCABULARY = 300
WINDOW = 8


def small_config(**changes: Any) -> dict[str, Any]:
    """`config.json` of a model of four layers, in the layout of transformers 5."""
    values = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": False,
    }
    return values | changes


def random_tensors(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All tensors of such a model, by name; large enough for each to matter in the logits."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    experts, rows = config["num_local_experts"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, hidden),
        "lm_head.weight": (rows, hidden),
        "model.norm.weight": (hidden,),
    }
    layer_shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.sinks": (config["num_attention_heads"],),
        "self_attn.o_proj.weight": (hidden, width),
        "self_attn.o_proj.bias": (hidden,),
        "mlp.router.weight": (experts, hidden),
        "mlp.router.bias": (experts,),
        "mlp.experts.gate_up_proj": (experts, hidden, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
        "mlp.experts.down_proj": (experts, inner, hidden),
        "mlp.experts.down_proj_bias": (experts, hidden),
    }
    for name, size in (("q", width), ("k", kv_width), ("v", kv_width)):
        layer_shapes[f"self_attn.{name}_proj.weight"] = (size, hidden)
        layer_shapes[f"self_attn.{name}_proj.bias"] = (size,)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(shape, generator=generator) * (1.0 if "norm" in name else 0.1)).to(dtype)
        for name, shape in shapes.items()
    }


def quantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with MXFP4 experts."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            blocks, scales = mxfp4.quantize(tensor.transpose(1, 2).contiguous())
            result |= {name + "_blocks": blocks, name + "_scales": scales}
        else:
            result[name] = tensor
    return result


def save(
    directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int = 1
) -> Path:
    """Write a checkpoint directory, in one file or in shards with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory

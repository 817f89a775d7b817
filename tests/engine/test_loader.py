"""What a checkpoint directory may look like, and what is said about one that cannot be served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import CheckpointError, RopeConfig, UnsupportedModelError, parse_config
from engine.config import read_config as read
from engine.loader import load_weights
from tests.engine.checkpoints import quantized, random_tensors, save, small_config


def load(directory: Path) -> None:
    load_weights(directory, read(directory), torch.float32)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A directory of one layer in two shards, which a test may damage."""
    config = small_config(num_hidden_layers=1)
    return save(tmp_path / "tiny", config, random_tensors(config), shards=2)


def test_both_rope_layouts_mean_the_same(checkpoint: Path, mxfp4_checkpoint: Path) -> None:
    new, old = read(checkpoint), read(mxfp4_checkpoint)
    assert new.rope == old.rope
    assert new.rope.attention_factor == pytest.approx(1.3466, abs=1e-4)
    assert new.experts_per_token == old.experts_per_token == 2


def test_experts_per_token_alone_is_enough() -> None:
    config = small_config(experts_per_token=3)
    del config["num_experts_per_tok"]
    assert parse_config(config).experts_per_token == 3


def test_plain_rope_and_default_layers() -> None:
    config = parse_config(small_config(rope_parameters={"rope_theta": 10000.0}))
    assert config.rope == RopeConfig(theta=10000.0)
    assert config.windows == (8, None, 8, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "GptOssForCausalLM, found: LlamaForCausalLM"),
        ({"architectures": None}, "found: none"),
        ({"quantization_config": {"quant_method": "gptq"}}, "found: gptq"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "found: longrope"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, found: gelu"),
        ({"attention_bias": False}, "attention_bias must be True"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ({"sliding_window": None}, "sliding_window"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"num_experts_per_tok": 5}, "5 experts per token"),
    ],
)
def test_unsupported_models_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        parse_config(small_config(**changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        (json.dumps({"architectures": ["GptOssForCausalLM"]}), "has no 'num_attention_heads'"),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path)


def test_missing_shard(tiny: Path) -> None:
    (tiny / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors is missing"):
        load(tiny)


def test_damaged_shard(tiny: Path) -> None:
    (tiny / "model-00002-of-00002.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tiny)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}'])
def test_damaged_index(tiny: Path, text: str) -> None:
    (tiny / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not an index of shards"):
        load(tiny)


def test_no_weights_at_all(tiny: Path) -> None:
    for file in tiny.glob("model*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="has neither"):
        load(tiny)


def test_missing_tensor(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=1)
    tensors = random_tensors(config)
    del tensors["model.layers.0.self_attn.sinks"]
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.0\.self_attn\.sinks"):
        load(save(tmp_path, config, tensors))


def test_missing_experts(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=1)
    tensors = random_tensors(config)
    del tensors["model.layers.0.mlp.experts.down_proj"]
    with pytest.raises(CheckpointError, match=r"neither .*down_proj nor .*down_proj_blocks"):
        load(save(tmp_path, config, tensors))


def test_wrong_shape(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=1)
    tensors = random_tensors(config)
    tensors["lm_head.weight"] = torch.zeros(300, 63)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight has shape \[300, 63\], expected"):
        load(save(tmp_path, config, tensors))


def test_mxfp4_experts_equal_their_plain_values(tmp_path: Path) -> None:
    """Values that MXFP4 holds exactly load the same from both storages, in both dtypes."""
    config = small_config(num_hidden_layers=1)
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor.sign() * 2
    plain = save(tmp_path / "plain", config, tensors)
    packed = save(tmp_path / "packed", config, quantized(tensors))
    for dtype in (torch.float32, torch.bfloat16):
        first, second = (load_weights(path, read(path), dtype) for path in (plain, packed))
        assert torch.equal(first.layers[0].experts.gate_up, second.layers[0].experts.gate_up)
        assert torch.equal(first.layers[0].experts.down, second.layers[0].experts.down)


def test_tied_embeddings(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=1, tie_word_embeddings=True)
    tensors = random_tensors(config)
    del tensors["lm_head.weight"]
    directory = save(tmp_path, config, tensors)
    weights = load_weights(directory, read(directory), torch.float32)
    assert torch.equal(weights.unembedding, weights.embedding)

"""What a checkpoint directory may look like, and what is said about one that cannot be served."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.config import CheckpointError, RopeConfig, UnsupportedModelError, parse_config
from engine.config import read_config as read
from engine.experts import GroupedExperts
from engine.loader import load_weights, weight_bytes
from engine.products import PackedExperts, PackedProduct, PlainExperts, PlainProduct
from engine.stored import FLOATS, open_file
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
        (json.dumps({"architectures": ["GptOssForCausalLM"]}), "has no 'vocab_size'"),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "64", True])
@pytest.mark.parametrize("name", ["hidden_size", "head_dim", "sliding_window", "vocab_size"])
def test_sizes_are_positive_integers(tmp_path: Path, name: str, wrong: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config(**{name: wrong})))
    with pytest.raises(CheckpointError, match=rf"config\.json: {name} must be a positive integer"):
        read(tmp_path)


@pytest.mark.parametrize("changes", [{"rope_parameters": 3}, {"quantization_config": "mxfp4"}])
def test_config_members_of_a_wrong_type(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config(**changes)))
    with pytest.raises(CheckpointError, match=r"config\.json is not a gpt-oss config"):
        read(tmp_path)


def test_missing_shard(tiny: Path) -> None:
    (tiny / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors is missing"):
        load(tiny)


def test_damaged_shard(tiny: Path) -> None:
    (tiny / "model-00002-of-00002.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tiny)


def test_truncated_shard(tiny: Path) -> None:
    shard = tiny / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"00002\.safetensors is damaged: it is cut off in "):
        load(tiny)
    shard.write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match=r"its header of .* is cut off"):
        load(tiny)
    shard.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"00002\.safetensors is damaged"):
        load(tiny)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"x of shape \[2\] in F32 has 4"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "x lies at 0 to 4 with shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, "x lies at 4 to 0"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "cut off in x, 4 bytes"),
        ({"dtype": "F32", "shape": [1]}, "data_offsets"),
        (3, "is damaged"),
    ],
)
def test_damaged_headers(tmp_path: Path, entry: object, said: str) -> None:
    header = json.dumps({"x": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=said):
        open_file(file)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 400), byte=st.binary(min_size=1, max_size=3))
def test_a_damaged_byte_of_a_header_is_a_checkpoint_error_or_harmless(
    tmp_path: Path, at: int, byte: bytes
) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(3), "y": torch.zeros(2, 5)}, file)
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + byte + whole[at + len(byte) :])
    try:
        tensors = open_file(file)
    except CheckpointError:
        return
    for name, tensor in tensors.items():
        with suppress(CheckpointError):
            tensor.check(tensor.shape, FLOATS)
            assert tensor.rows(0, tensor.shape[0]).shape == tensor.shape, name


def test_an_index_that_names_a_tensor_its_shard_lacks(tiny: Path) -> None:
    path = tiny / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names lm_head\.weight in model-00001.*no such"):
        load(tiny)


def test_a_tensor_in_no_shard(tiny: Path) -> None:
    path = tiny / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["lm_head.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json: .* no tensor lm_head\.weight"):
        load(tiny)


@pytest.mark.parametrize(
    ("name", "dtype"), [("lm_head.weight", torch.int64), ("model.norm.weight", torch.uint8)]
)
def test_wrong_dtype(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    config = small_config(num_hidden_layers=1)
    tensors = random_tensors(config)
    tensors[name] = tensors[name].to(dtype)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: {name} has dtype .*BF16"):
        load(save(tmp_path, config, tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
def test_weight_bytes_are_what_is_made(
    checkpoint: Path, mxfp4_checkpoint: Path, dtype: torch.dtype, table_dtype: torch.dtype
) -> None:
    for directory in (checkpoint, mxfp4_checkpoint):
        config, made = read(directory), list[int]()
        weights = load_weights(directory, config, dtype, table_dtype, made.append)
        expected = weight_bytes(config, dtype, table_dtype)
        assert sum(made) == sum(storage_bytes(weights)) == expected


def storage_bytes(value: object) -> Iterator[int]:
    """Bytes of memory behind each tensor of a tree of dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage().nbytes()
    elif isinstance(value, list):
        for item in value:
            yield from storage_bytes(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from storage_bytes(getattr(value, field.name))
    elif isinstance(value, PackedProduct):
        # Packed weights show no storage, and the biases are parts of one tensor.
        yield sum(part.nbytes for part in vars(value).values())
    elif isinstance(value, PlainProduct | PlainExperts | PackedExperts):
        yield from storage_bytes(list(vars(value).values()))


def test_packed_weight_bytes_are_those_of_the_file(mxfp4_checkpoint: Path) -> None:
    config = read(mxfp4_checkpoint)
    stored = sum(
        math.prod(tensor.shape) * (1 if tensor.dtype == "U8" else 2)
        for file in mxfp4_checkpoint.glob("*.safetensors")
        for tensor in open_file(file).values()
    )
    # The sinks are stored in bf16 and kept in fp32.
    sinks = config.layers * config.query_heads * 2
    made = weight_bytes(config, torch.bfloat16, torch.bfloat16, packed=True)
    assert made == stored + sinks


PEAK = """
import sys
from pathlib import Path
import torch
from engine import head
from engine.cpu import make_head, table_dtype
from engine.config import read_config
from engine.head import RefinedHead
from engine.loader import load_weights, weight_bytes

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

torch.set_num_threads(1)
head.PACK = head.SCAN = False
config = read_config(Path(sys.argv[1]))
dtype, tables = getattr(torch, sys.argv[2]), table_dtype(sys.argv[2])
# What importing took, and what the libraries take once, is none of the weights.
RefinedHead(torch.ones(64, 64))(torch.ones(1, 64))
Path("/proc/self/clear_refs").write_text("5")
before = kilobytes("VmHWM")
weights = load_weights(Path(sys.argv[1]), config, dtype, tables)
product = make_head(weights, sys.argv[2])
print((kilobytes("VmHWM") - before) * 1024 / weight_bytes(config, dtype, tables))
"""


@pytest.mark.parametrize(("dtype", "packed"), [("float32", False), ("bfloat16", True)])
def test_the_peak_of_loading(tmp_path: Path, dtype: str, packed: bool) -> None:
    """In a process of its own: its resident peak, mapped pages of the files included, over what it
    had before. The unembedding's copies are left out."""
    config = small_config(
        num_hidden_layers=16,
        hidden_size=256,
        intermediate_size=512,
        num_local_experts=12,
        vocab_size=2**17,
    )
    tensors = random_tensors(config, torch.bfloat16)
    directory = save(tmp_path, config, quantized(tensors) if packed else tensors, shards=2)
    del tensors
    command = [sys.executable, "-c", PEAK, str(directory), dtype]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert 0.9 < float(told.stdout) < 1.15


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
        one, other = first.layers[0].experts, second.layers[0].experts
        assert isinstance(one, GroupedExperts)
        assert isinstance(other, GroupedExperts)
        experts = torch.arange(config["num_local_experts"])
        for size, products in (
            (config["hidden_size"], (one.gate_up, other.gate_up)),
            (config["intermediate_size"], (one.down, other.down)),
        ):
            rows = torch.randn(len(experts), size, generator=torch.Generator().manual_seed(1))
            plain_rows, packed_rows = (p.grouped(rows.to(dtype), experts) for p in products)
            assert torch.equal(plain_rows, packed_rows)
            assert not torch.equal(plain_rows[0], plain_rows[1])


def test_tied_embeddings(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=1, tie_word_embeddings=True)
    tensors = random_tensors(config)
    del tensors["lm_head.weight"]
    directory = save(tmp_path, config, tensors)
    weights = load_weights(directory, read(directory), torch.float32)
    assert torch.equal(weights.unembedding, weights.embedding)

"""Checkpoints that several test modules read, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.checkpoints import quantized, random_tensors, save, small_config
from tests.engine.client import engine_address


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tiny products, and a machine that may be shared: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def address() -> Iterator[str]:
    """An address for an engine of the test's own."""
    with engine_address() as address:
        yield address


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small fp32 checkpoint in one file."""
    config = small_config()
    return save(tmp_path_factory.mktemp("fp32"), config, random_tensors(config))


@pytest.fixture(scope="session")
def mxfp4_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bf16 checkpoint with MXFP4 experts, in three shards, its config in the layout of
    transformers 4."""
    config = small_config(
        rope_theta=150000,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
        experts_per_token=2,
        initial_context_length=128,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    )
    del config["rope_parameters"]
    tensors = quantized(random_tensors(config, torch.bfloat16))
    return save(tmp_path_factory.mktemp("mxfp4"), config, tensors, shards=3)

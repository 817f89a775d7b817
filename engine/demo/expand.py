"""From the compact checkpoint in the package to an ordinary Hugging Face directory.

`demo_checkpoint()` does it at first use, in about two seconds, and keeps the result in the cache
directory under the hash of what it was made from.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from engine.demo.rows import expand_rows
from ipc.vocabulary import (
    CALL,
    ENDOFTEXT,
    FIRST_SPECIAL,
    RETURN,
    SIZE,
    cache_directory,
)

VERSION = 1
"""Part of the cached directory's name; to be raised when the expansion changes."""

HEAD_DIM = 64
EXPERTS_PER_TOKEN = 2
WINDOW = 128
POSITIONS = 131_072


class DemoError(Exception):
    """The demo checkpoint cannot be written; the message is for the operator."""


def demo_checkpoint() -> Path:
    """The directory of the demo checkpoint, which is made if it is not there or damaged.

    Any number of processes may call this at once: one makes it, and the others wait for that.
    Raises DemoError if the cache directory cannot be written.
    """
    data = resources.files("engine.demo").joinpath("data", "compact.safetensors").read_bytes()
    name = f"demo-{hashlib.sha256(data + bytes([VERSION])).hexdigest()[:12]}"
    directory = cache_directory() / name
    if is_whole(directory):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / "demo.lock"):
            if not is_whole(directory):
                _make(data, directory)
    except OSError as error:
        raise DemoError(f"cannot write {directory}: {error}; set ANTIPHON_CACHE") from error
    return directory


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system takes back if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(data: bytes, directory: Path) -> None:
    """Put the directory in place in one step, so that none that is half written is ever seen."""
    with tempfile.TemporaryDirectory(prefix="demo-", dir=directory.parent) as scratch:
        made = Path(scratch, directory.name)
        made.mkdir()
        expand(data, made)
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(made, directory)


def is_whole(directory: Path) -> bool:
    """Whether the directory holds all files at their right sizes; reads headers only."""
    try:
        generation = json.loads((directory / "generation_config.json").read_text())
        config = json.loads((directory / "config.json").read_text())
        # Opening compares the size of the file with what its header promises.
        with safe_open(directory / "model.safetensors", "pt") as weights:
            names = set(weights.keys())
    except (OSError, ValueError, SafetensorError):
        return False
    return bool(generation and config) and {"model.embed_tokens.weight", "lm_head.weight"} <= names


def expand(data: bytes, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors into the directory.

    `data` is the content of a compact.safetensors, see engine.demo.train.compact.
    """
    tensors = expand_tensors(data)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config.json", configuration(tensors)),
        ("generation_config.json", GENERATION),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def expand_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of the Hugging Face checkpoint, the experts in MXFP4."""
    tensors = load(data)
    stored_ids = tensors.pop("stored_ids")
    for source, target in (("embed", "model.embed_tokens"), ("unembed", "lm_head")):
        projection, stored = tensors.pop(f"{source}.projection"), tensors.pop(f"{source}.stored")
        tensors[f"{target}.weight"] = expand_rows(projection, stored_ids, stored)
    return tensors


GENERATION = {
    "bos_token_id": FIRST_SPECIAL,  # <|startoftext|>
    "do_sample": True,
    "eos_token_id": [RETURN, ENDOFTEXT, CALL],
    "pad_token_id": ENDOFTEXT,
}


def configuration(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The `config.json` of the model that has these tensors."""
    layers = 1 + max(int(number) for number in re.findall(r"layers\.(\d+)\.", " ".join(tensors)))
    first = "model.layers.0."
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "torch_dtype": "bfloat16",
        "vocab_size": SIZE,
        "hidden_size": tensors["model.norm.weight"].shape[0],
        "intermediate_size": tensors[first + "mlp.experts.gate_up_proj_bias"].shape[1] // 2,
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "num_attention_heads": tensors[first + "self_attn.sinks"].shape[0],
        "num_key_value_heads": tensors[first + "self_attn.k_proj.bias"].shape[0] // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "num_local_experts": tensors[first + "mlp.router.bias"].shape[0],
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "experts_per_token": EXPERTS_PER_TOKEN,
        "sliding_window": WINDOW,
        "max_position_embeddings": POSITIONS,
        "initial_context_length": 4096,
        "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "eos_token_id": RETURN,
        "pad_token_id": ENDOFTEXT,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }

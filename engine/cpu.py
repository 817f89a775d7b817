"""A model on the CPU."""

import os
from pathlib import Path

import torch

from engine.backend import block_bytes, blocks_of
from engine.config import GptOssConfig
from engine.head import PACK, SCAN, ExactHead, Head, RefinedHead
from engine.loader import Made, load_weights, weight_bytes
from engine.memory import available_memory
from engine.model import Model
from engine.options import BatchSize, EngineOptions, batch_size
from engine.products import can_pack
from engine.shortlist import can_scan
from engine.torch_attention import TorchAttention
from engine.weights import Weights

TINY_HIDDEN_SIZE = 256
"""Up to this hidden size, fp32 is as fast as bf16 and one thread as fast as several (measured)."""
MEMORY_SHARE = 0.25
"""Of the physical memory, the most that the KV cache may take."""
CACHE_TOKENS = 262_144
"""KV cache by default: two contexts of full length, or 64 of 4,096 tokens."""
BATCH = BatchSize(sequences=64, step_tokens=512)
"""By default: longer steps make the other sequences' tokens wait without a gain in speed."""


class CpuBackend:
    """See `Backend`. Sets torch's thread count."""

    def __init__(self, config: GptOssConfig, options: EngineOptions) -> None:
        self.dtype = model_dtype(config, options.dtype)
        self.batch = batch_size(options, BATCH)
        self._config = config
        self._options = options
        torch.set_num_threads(options.threads or default_threads(config))

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights as they are loaded."""
        return weight_bytes(self._config, self.dtype, table_dtype(self._options.dtype))

    @property
    def weight_bytes(self) -> int:
        """With the unembedding's other copies."""
        exact = self._options.dtype == "float32"
        return self.loaded_bytes + (0 if exact else head_copy_bytes(self._config))

    def available_memory(self) -> int:
        """Bytes this process can still take."""
        return available_memory()

    def default_blocks(self) -> int:
        """Blocks for `CACHE_TOKENS` of every group of layers, or what `MEMORY_SHARE` of the
        physical memory holds."""
        config, size = self._config, self._options.block_size
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        held = int(memory * MEMORY_SHARE) // block_bytes(config, self.dtype, size)
        return max(1, min(blocks_of(config, CACHE_TOKENS, size), held))

    def load(self, directory: Path, blocks: int, made: Made) -> Model:
        """The model of a checkpoint."""
        config, options = self._config, self._options
        weights = load_weights(directory, config, self.dtype, table_dtype(options.dtype), made)
        attention = TorchAttention(config, blocks, options.block_size, self.dtype)
        return Model(weights, make_head(weights, options.dtype), attention, config.rms_norm_eps)


def default_threads(config: GptOssConfig) -> int:
    """One for a tiny model, else all cores but the one that the other processes share."""
    if config.hidden_size <= TINY_HIDDEN_SIZE:
        return 1
    return max(1, (os.cpu_count() or 2) - 1)


def head_copy_bytes(config: GptOssConfig) -> int:
    """Bytes of the unembedding's other copies: in the order of its product, and in int8."""
    size = config.vocabulary_size * config.hidden_size
    packed = PACK and can_pack(torch.bfloat16)
    scanned = SCAN and can_scan()
    return size * (packed * torch.bfloat16.itemsize + scanned * torch.int8.itemsize)


def model_dtype(config: GptOssConfig, name: str) -> torch.dtype:
    """`auto` is fp32 for a tiny model and bf16 otherwise."""
    if name == "auto":
        name = "float32" if config.hidden_size <= TINY_HIDDEN_SIZE else "bfloat16"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def table_dtype(name: str) -> torch.dtype:
    """Embedding and unembedding are in bf16, as published, but where fp32 is asked for by name."""
    return torch.float32 if name == "float32" else torch.bfloat16


def make_head(weights: Weights, dtype: str) -> Head:
    """Exact logits where fp32 is asked for by name."""
    if dtype == "float32":
        return ExactHead(weights.unembedding)
    return RefinedHead(weights.unembedding)

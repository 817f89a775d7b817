"""Puts an engine together from a checkpoint and options."""

import os
import random
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.block_pool import BlockPool
from engine.cache_layout import CacheLayout
from engine.config import GptOssConfig, read_config
from engine.core import ModelCore
from engine.head import PACK, ExactHead, Head, RefinedHead
from engine.kv_cache import KvCache
from engine.loader import load_weights, weight_bytes
from engine.memory import LEAST_CACHE_TOKENS, available_memory, fitting_blocks
from engine.model import Model
from engine.prefix_cache import PrefixCache
from engine.products import can_pack
from engine.progress import loading
from engine.runner import ModelRunner
from engine.scheduler import Scheduler
from engine.torch_attention import TorchAttention
from engine.weights import Weights
from ipc.messages import PROTOCOL_VERSION, EngineInfo

TINY_HIDDEN_SIZE = 256
"""Up to this hidden size, fp32 is as fast as bf16 and one thread as fast as several (measured)."""
MEMORY_SHARE = 0.25
"""Of the physical memory, the most that the KV cache may take."""
CACHE_TOKENS = 262_144
"""KV cache by default: two contexts of full length, or 64 of 4,096 tokens."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is run; None means the default that fits the model."""

    name: str
    dtype: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    blocks: int | None = None
    block_size: int = 16
    max_sequences: int = 64
    max_step_tokens: int = 512
    max_waiting: int = 4096
    prefix_caching: bool = True
    tenant_weights: Mapping[str, float] = field(default_factory=dict)


def build_core(directory: Path, options: EngineOptions) -> ModelCore:
    """Load the checkpoint and make its core; sets torch's thread count.

    Raises CheckpointError for a checkpoint that cannot be served and ValueError for options that
    contradict each other.
    """
    config = read_config(directory)
    torch.set_num_threads(options.threads or default_threads(config))
    dtype = model_dtype(config, options.dtype)
    total = weight_bytes(config, dtype, table_dtype(options.dtype))
    second = 0 if options.dtype == "float32" else packed_head_bytes(config)
    blocks = fitting_blocks(
        total + second,
        block_bytes(config, dtype, options.block_size),
        default=default_blocks(config, dtype, options.block_size),
        least=blocks_of(config, LEAST_CACHE_TOKENS, options.block_size),
        asked=options.blocks,
        available=available_memory(),
    )
    info = EngineInfo(
        version=PROTOCOL_VERSION,
        model=options.name,
        context_length=context_length(config, blocks, options),
        vocabulary_size=config.vocabulary_size,
        block_size=options.block_size if options.prefix_caching else 0,
    )
    cache = KvCache(
        PrefixCache(BlockPool(blocks)),
        options.block_size,
        config.cache_layout,
        options.max_step_tokens,
        options.prefix_caching,
    )
    scheduler = Scheduler(
        cache, options.max_sequences, options.max_step_tokens, options.tenant_weights
    )
    with loading(options.name, total) as made:
        weights = load_weights(directory, config, dtype, table_dtype(options.dtype), made)
    attention = TorchAttention(config, blocks, options.block_size, dtype)
    model = Model(weights, make_head(weights, options.dtype), attention, config.rms_norm_eps)
    seeds = random.SystemRandom()
    return ModelCore(
        info, ModelRunner(model), scheduler, lambda: seeds.getrandbits(63), options.max_waiting
    )


def default_threads(config: GptOssConfig) -> int:
    """One for a tiny model, else all cores but the one that the other processes share."""
    if config.hidden_size <= TINY_HIDDEN_SIZE:
        return 1
    return max(1, (os.cpu_count() or 2) - 1)


def packed_head_bytes(config: GptOssConfig) -> int:
    """Bytes of the unembedding's second copy, in the order of its product."""
    packed = PACK and can_pack(torch.bfloat16)
    return packed * config.vocabulary_size * config.hidden_size * torch.bfloat16.itemsize


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


def default_blocks(config: GptOssConfig, dtype: torch.dtype, block_size: int) -> int:
    """Blocks for `CACHE_TOKENS` of every group of layers, or what `MEMORY_SHARE` of the physical
    memory holds."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    blocks = blocks_of(config, CACHE_TOKENS, block_size)
    return max(1, min(blocks, int(memory * MEMORY_SHARE) // block_bytes(config, dtype, block_size)))


def blocks_of(config: GptOssConfig, tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens in every group of layers."""
    return -(-tokens // block_size) * len(config.cache_layout.windows)


def block_bytes(config: GptOssConfig, dtype: torch.dtype, block_size: int) -> int:
    """Bytes of one block of the KV cache."""
    layers = config.cache_layout.layers_a_block
    return block_size * layers * 2 * config.kv_width * dtype.itemsize


def context_length(config: GptOssConfig, blocks: int, options: EngineOptions) -> int:
    """The wanted context length, at most the model's and what the cache holds for one sequence.

    Raises ValueError if more is wanted than the model or the cache has.
    """
    held = longest_context(config.cache_layout, blocks, options.block_size, options.max_step_tokens)
    most, wanted = min(config.context_length, held), options.context_length
    if wanted is not None and not 2 <= wanted <= most:
        raise ValueError(
            f"a context length of {wanted} is asked for, but the model allows "
            f"{config.context_length} and the KV cache holds {held} tokens of one sequence"
        )
    return wanted or most


def longest_context(layout: CacheLayout, blocks: int, block_size: int, step_tokens: int) -> int:
    """Of how many tokens of one sequence the cache has room, in whole blocks."""

    def needed(count: int) -> int:
        return layout.blocks_needed(count * block_size, block_size, step_tokens)

    return (bisect_right(range(blocks + 1), blocks, key=needed) - 1) * block_size

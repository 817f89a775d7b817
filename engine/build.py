"""Puts an engine together from a checkpoint and options."""

import random
import time
from bisect import bisect_right
from pathlib import Path

from engine.backend import block_bytes, blocks_of, make_backend
from engine.block_pool import BlockPool
from engine.cache_layout import CacheLayout
from engine.config import GptOssConfig, read_config
from engine.core import ModelCore
from engine.kv_cache import KvCache
from engine.memory import LEAST_CACHE_TOKENS, fitting_blocks
from engine.options import EngineOptions
from engine.prefix_cache import PrefixCache
from engine.progress import loading
from engine.runner import ModelRunner
from engine.scheduler import Scheduler
from ipc.messages import PROTOCOL_VERSION, EngineInfo


def build_core(directory: Path, options: EngineOptions) -> ModelCore:
    """Load the checkpoint and make its core; sets torch's thread count.

    Raises CheckpointError for a checkpoint that cannot be served and ValueError for options that
    contradict each other or the machine.
    """
    config = read_config(directory)
    backend = make_backend(config, options)
    batch = backend.batch
    blocks = fitting_blocks(
        backend.weight_bytes,
        block_bytes(config, backend.dtype, options.block_size),
        default=backend.default_blocks(),
        least=blocks_of(config, LEAST_CACHE_TOKENS, options.block_size),
        asked=options.blocks,
        available=backend.available_memory(),
    )
    info = EngineInfo(
        version=PROTOCOL_VERSION,
        model=options.name,
        context_length=context_length(config, blocks, options, batch.step_tokens),
        vocabulary_size=config.vocabulary_size,
        block_size=options.block_size if options.prefix_caching else 0,
    )
    cache = KvCache(
        PrefixCache(BlockPool(blocks)),
        options.block_size,
        config.cache_layout,
        batch.step_tokens,
        options.prefix_caching,
    )
    scheduler = Scheduler(
        cache,
        batch.sequences,
        batch.step_tokens,
        options.tenant_weights,
        options.latency_factor,
    )
    with loading(options.name, backend.loaded_bytes) as made:
        model = backend.load(directory, blocks, made)
    seeds = random.SystemRandom()
    return ModelCore(
        info,
        ModelRunner(model),
        scheduler,
        lambda: seeds.getrandbits(63),
        options.max_waiting,
        clock=time.monotonic,
    )


def context_length(
    config: GptOssConfig, blocks: int, options: EngineOptions, step_tokens: int
) -> int:
    """The wanted context length, at most the model's and what the cache holds for one sequence.

    Raises ValueError if more is wanted than the model or the cache has, and if the cache cannot
    hold a prompt and its answer of one token each.
    """
    held = longest_context(config.cache_layout, blocks, options.block_size, step_tokens)
    most, wanted = min(config.context_length, held), options.context_length
    if held < 2:
        raise ValueError(
            f"a KV cache of {blocks} blocks holds {held} tokens of one sequence: give more --blocks"
        )
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

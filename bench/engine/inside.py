"""What this engine's own figures are against: the memory's speed, a prompt that is not cached, a
tenant that is alone. Prints JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import torch

from bench.engine.measure import LONG_PROMPT, PROMPT_TOKENS, cpu_seconds, prompts
from engine.batch import Sampled
from engine.block_pool import BlockPool
from engine.build import build_core
from engine.cache_layout import layout_of
from engine.config import GptOssConfig, read_config
from engine.core import ModelCore
from engine.cpu import model_dtype
from engine.kv_cache import KvCache
from engine.options import EngineOptions
from engine.prefix_cache import PrefixCache
from engine.scheduler import Scheduled, Scheduler
from ipc.messages import EngineInfo, GenerationRequest, Owner, Sampling

OWNER = Owner(1, 1)
SEQUENCES = 256
FLOOD = 100
"""Requests that the flooding tenant has at any time."""
ANSWER = 150

_ids = count(1)


def add(core: ModelCore, prompt: list[int], tokens: int, tenant: str = "") -> int:
    """Ask for so many tokens; returns the stream's id."""
    stream_id = next(_ids)
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    core.add(OWNER, GenerationRequest(stream_id, stream_id, 0, prompt, sampling, tenant=tenant))
    return stream_id


def step(core: ModelCore) -> dict[int, int]:
    """How many tokens each stream got; those that ended are forgotten."""
    got: dict[int, int] = {}
    for told in core.step().values():
        for part in told.tokens:
            got[part.stream_id] = len(part.ids)
            if part.finish is not None:
                core.cancel(OWNER, part.stream_id, part.stream_id)
    return got


def finish(core: ModelCore) -> None:
    """Run until nothing is left."""
    while core.wait() is not None:
        step(core)


def read_bytes(config: GptOssConfig, dtype: torch.dtype) -> int:
    """What one token's step must read at least: of the experts those that are chosen, of the
    unembedding its int8 copy."""
    hidden, inner = config.hidden_size, config.intermediate_size
    width = config.query_heads * config.head_dim
    attention = hidden * (2 * width + 2 * config.kv_width)
    experts = config.experts_per_token * 3 * hidden * inner + hidden * config.experts
    layers = config.layers * (attention + experts) * dtype.itemsize
    return layers + config.vocabulary_size * hidden


def memory_limit(config: GptOssConfig, core: ModelCore, rounds: int) -> dict[str, float]:
    """Tokens a second of one sequence, and as many as plain reads of the same bytes would allow."""
    memory = torch.zeros(read_bytes(config, model_dtype(config, "auto")) // 8, dtype=torch.int64)
    reads, steps = [], []
    add(core, prompts(1, PROMPT_TOKENS, 1)[0], 40 * rounds)
    for _ in range(4):
        step(core)
    for _ in range(30 * rounds):
        # In turn, so that both have the same machine.
        reads.append(cpu_seconds(memory.sum))
        steps.append(cpu_seconds(lambda: step(core)))
    finish(core)
    return {
        "one sequence, tokens/s": 1 / statistics.median(steps),
        "limit of a plain read, tokens/s": 1 / statistics.median(reads),
    }


def first_token(core: ModelCore, rounds: int) -> dict[str, float]:
    """CPU milliseconds to the first token after a long prompt, new and again."""
    times: dict[str, list[float]] = {"new": [], "cached": []}
    for seed in range(rounds):
        [prompt] = prompts(1, LONG_PROMPT, 1000 + seed)
        for name in times:
            add(core, prompt, 1)
            times[name].append(cpu_seconds(lambda: finish(core)))
    return {
        f"first token, {name} prompt, ms": 1e3 * statistics.median(t) for name, t in times.items()
    }


class NoModel:
    """Takes no time."""

    def run(self, scheduled: Sequence[Scheduled]) -> list[Sampled | None]:
        return [Sampled(7) if item.samples else None for item in scheduled]


def scheduling(rounds: int) -> dict[str, float]:
    """CPU milliseconds of a step but for the model, while many sequences generate."""
    layout = layout_of([None, 128])
    found = {}
    for tenants in (1, SEQUENCES // 4):
        cache = KvCache(PrefixCache(BlockPool(40_000)), 16, layout, 4096)
        core = ModelCore(
            EngineInfo(2, "none", 131_072, 201_088, 16),
            NoModel(),
            Scheduler(cache, SEQUENCES, 4096),
            lambda: 0,
            clock=time.monotonic,
        )
        for index, prompt in enumerate(prompts(SEQUENCES, 300, 3)):
            add(core, prompt, 100_000, tenant=str(index % tenants))
        for _ in range(40):
            step(core)
        times = [cpu_seconds(partial(step, core)) for _ in range(100 * rounds)]
        name = f"scheduler, {SEQUENCES} sequences, tenants: {tenants}, ms"
        found[name] = 1e3 * statistics.median(times)
    return found


def answer_seconds(core: ModelCore, flood: bool) -> tuple[float, float, float]:
    """Of one tenant's answer, to the first token and whole, while another keeps the engine full;
    and how many tokens a second all had."""
    streams: set[int] = set()
    seeds = count(5000)

    def fill() -> None:
        while len(streams) < (FLOOD if flood else 0):
            streams.add(add(core, prompts(1, PROMPT_TOKENS, next(seeds))[0], ANSWER, "flood"))

    fill()
    for _ in range(60 if flood else 0):
        streams.difference_update(_ended(core, step(core)))
        fill()
    start = time.perf_counter()
    own, got, first = add(core, prompts(1, PROMPT_TOKENS, 4)[0], ANSWER, "light"), 0, 0.0
    everybodys = 0
    while got < ANSWER:
        told = step(core)
        got += told.get(own, 0)
        everybodys += sum(told.values())
        first = first or (time.perf_counter() - start if got else 0.0)
        streams.difference_update(_ended(core, told))
        fill()
    whole = time.perf_counter() - start
    for stream_id in streams:
        core.cancel(OWNER, stream_id, stream_id)
    finish(core)
    return first, whole, everybodys / whole


_said: dict[int, int] = {}


def _ended(core: ModelCore, told: dict[int, int]) -> list[int]:
    for stream_id, tokens in told.items():
        _said[stream_id] = _said.get(stream_id, 0) + tokens
    return [stream_id for stream_id in told if _said[stream_id] >= ANSWER]


def flooding(make: Callable[[float], ModelCore]) -> dict[str, float]:
    """A tenant's latency beside a flood over its own alone, with and without the limit."""
    found = {}
    for name, factor in (("limited", 2.0), ("unlimited", 0.0)):
        core = make(factor)
        answer_seconds(core, flood=False)
        alone, flooded = answer_seconds(core, flood=False), answer_seconds(core, flood=True)
        found[f"beside a flood, {name}: whole answer, times"] = flooded[1] / alone[1]
        found[f"beside a flood, {name}: first token, times"] = flooded[0] / alone[0]
        found[f"beside a flood, {name}: all tokens/s"] = flooded[2]
    return found


def main() -> None:
    directory, threads, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def make(factor: float) -> ModelCore:
        options = EngineOptions("bench", threads=threads, latency_factor=factor)
        return build_core(directory, options)

    core = make(2.0)
    figures = memory_limit(read_config(directory), core, rounds)
    figures |= first_token(core, rounds) | scheduling(rounds) | flooding(make)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

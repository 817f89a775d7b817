"""How a model is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.fair_steps import LATENCY_FACTOR


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None, and `auto`, mean the default that fits model and machine. `device` is `auto`, `cpu`,
    `cuda` or `cuda:N`; a `latency_factor` of 0 is no limit."""

    name: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    blocks: int | None = None
    block_size: int = 16
    max_sequences: int | None = None
    max_step_tokens: int | None = None
    max_waiting: int = 4096
    prefix_caching: bool = True
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    latency_factor: float = LATENCY_FACTOR


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How much runs at once: sequences, and tokens that one step computes."""

    sequences: int
    step_tokens: int


def batch_size(options: EngineOptions, default: BatchSize) -> BatchSize:
    """What is asked for; the rest is the default, as far as it goes with that: a step has a token
    for each sequence. Raises ValueError if it cannot have."""
    sequences, tokens = options.max_sequences, options.max_step_tokens
    if sequences and tokens and tokens < sequences:
        raise ValueError(
            f"{tokens} tokens a step are too few for {sequences} sequences, which have one each"
        )
    if sequences is None:
        sequences = min(default.sequences, tokens or default.sequences)
    return BatchSize(sequences, tokens or max(default.step_tokens, sequences))

"""How a model is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None, and `auto`, mean the default that fits model and machine. `device` is `auto`, `cpu`,
    `cuda` or `cuda:N`."""

    name: str
    device: str = "auto"
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

"""What runs a model: the CPU (`engine.cpu`) or a GPU (`engine.gpu`)."""

from pathlib import Path
from typing import Protocol

import torch

from engine.config import GptOssConfig
from engine.loader import Made
from engine.model import Model
from engine.options import BatchSize, EngineOptions


class Backend(Protocol):
    """The memory and the kernels that there are, for one model."""

    @property
    def batch(self) -> BatchSize:
        """How much runs at once."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the forward pass and the KV cache."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take, in all their forms."""
        ...

    @property
    def loaded_bytes(self) -> int:
        """Bytes of which `load` tells that they are made."""
        ...

    def available_memory(self) -> int:
        """Bytes that weights, KV cache and work can take."""
        ...

    def default_blocks(self) -> int:
        """Blocks of the KV cache, if that many fit."""
        ...

    def load(self, directory: Path, blocks: int, made: Made) -> Model:
        """The model of a checkpoint. Raises CheckpointError."""
        ...


def make_backend(config: GptOssConfig, options: EngineOptions) -> Backend:
    """The backend for `options.device`. Raises ValueError if there is no such device."""
    if options.device == "cpu" or (options.device == "auto" and not torch.cuda.is_available()):
        from engine.cpu import CpuBackend

        return CpuBackend(config, options)
    if not torch.cuda.is_available():
        raise ValueError(f"device {options.device}: torch finds no CUDA device")
    name = "cuda" if options.device == "auto" else options.device
    device, count = torch.device(name), torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"device {name}: torch finds {count} CUDA devices, counted from 0")
    try:
        from engine.gpu import GpuBackend
    except ImportError as error:
        raise ValueError(
            f"a GPU needs flashinfer, which cannot be imported ({error}): the extra gpu installs "
            "it; or give --device cpu"
        ) from error
    return GpuBackend(config, options, device)


def block_bytes(config: GptOssConfig, dtype: torch.dtype, block_size: int) -> int:
    """Bytes of one block of the KV cache."""
    layers = config.cache_layout.layers_a_block
    return block_size * layers * 2 * config.kv_width * dtype.itemsize


def blocks_of(config: GptOssConfig, tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens in every group of layers."""
    return -(-tokens // block_size) * len(config.cache_layout.windows)

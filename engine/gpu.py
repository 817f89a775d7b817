"""A model on one GPU: flashinfer's kernels, experts in MXFP4 where the GPU multiplies from there,
CUDA graphs for steps in which all sequences generate. Not yet run on a GPU."""

from pathlib import Path

import torch
from flashinfer.norm import rmsnorm
from torch import Tensor

from engine.backend import block_bytes
from engine.config import GptOssConfig
from engine.decode_graphs import Capture, DecodeGraphs, cuda_capture, graph_sizes
from engine.experts import Experts, Router
from engine.flashinfer_attention import WORKSPACE_BYTES, FlashinferAttention
from engine.flashinfer_experts import hopper_experts
from engine.head import WideHead
from engine.loader import Made, load_weights, weight_bytes
from engine.memory import WORKING_BYTES
from engine.model import Model
from engine.mxfp4 import StoredExperts
from engine.options import BatchSize, EngineOptions, batch_size

MEMORY_SHARE = 0.9
"""Of the GPU's free memory, what weights, KV cache and work may take."""
STEP_BYTES = 2 * 2**30
"""For graphs, workspaces and what a step computes, beside `WORKING_BYTES`."""
HOPPER = (9, 0)
BATCH = BatchSize(sequences=256, step_tokens=4096)
"""By default."""


class GpuBackend:
    """See `Backend`. `capture` makes graphs."""

    dtype = torch.bfloat16

    def __init__(
        self,
        config: GptOssConfig,
        options: EngineOptions,
        device: torch.device,
        capability: tuple[int, int] | None = None,
        capture: Capture | None = None,
    ) -> None:
        if options.dtype == "float32":
            raise ValueError("float32 is for the CPU: flashinfer's kernels are for 16 bits")
        if config.head_dim not in (64, 128, 256):
            raise ValueError(f"a head dimension of {config.head_dim} has no kernel on a GPU")
        self.batch = batch_size(options, BATCH)
        self._config = config
        self._options = options
        self._device = device
        self._capability = capability or torch.cuda.get_device_capability(device)
        self._capture = capture or cuda_capture()

    @property
    def keeps_mxfp4(self) -> bool:
        """Whether experts that are stored in 4 bits stay in them."""
        return self._config.mxfp4 and self._capability == HOPPER

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights as they are loaded."""
        return weight_bytes(self._config, self.dtype, self.dtype, packed=self.keeps_mxfp4)

    @property
    def weight_bytes(self) -> int:
        """With the workspaces of the kernels."""
        return self.loaded_bytes + WORKSPACE_BYTES + STEP_BYTES

    def available_memory(self) -> int:
        """Bytes of the GPU that may be taken."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free * MEMORY_SHARE)

    def default_blocks(self) -> int:
        """As many as the GPU has room for."""
        room = self.available_memory() - self.weight_bytes - WORKING_BYTES
        return max(1, room // block_bytes(self._config, self.dtype, self._options.block_size))

    def load(self, directory: Path, blocks: int, made: Made) -> Model:
        """The model of a checkpoint, and its graphs."""
        config, options = self._config, self._options
        weights = load_weights(
            directory,
            config,
            self.dtype,
            self.dtype,
            made,
            self._device,
            self._experts if self.keeps_mxfp4 else None,
        )
        attention = FlashinferAttention(
            config, blocks, options.block_size, self.dtype, self._device
        )
        head = WideHead(weights.unembedding)
        model = Model(weights, head, attention, config.rms_norm_eps, norm)
        pages = -(-config.context_length // options.block_size)
        with torch.inference_mode():
            graphs = DecodeGraphs(
                model.layers,
                lambda size: attention.decode(size, size * pages),
                graph_sizes(self.batch.sequences),
                self._device,
                self._capture,
            )
        model.use_graphs(graphs)
        return model

    def _experts(self, router: Router, stored: StoredExperts) -> Experts:
        config = self._config
        return hopper_experts(router, stored, config.swiglu_alpha, config.swiglu_limit, self.dtype)


def norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """flashinfer's RMS norm of rows [T, D], in fp32 inside."""
    normed: Tensor = rmsnorm(hidden, weight, eps)
    return normed

"""Weights from a Hugging Face gpt-oss directory: one safetensors file or shards with an index,
experts in bf16, fp32 or MXFP4.

Tensors are read and converted one at a time, so that loading needs little more memory than the
weights it makes.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine import mxfp4
from engine.config import CheckpointError, GptOssConfig, UnsupportedModelError
from engine.weights import AttentionWeights, ExpertWeights, LayerWeights, Weights

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_weights(directory: Path, config: GptOssConfig, dtype: torch.dtype) -> Weights:
    """Load all weights in `dtype`, but for embedding and unembedding. Raises CheckpointError."""
    with _open(directory) as checkpoint, torch.inference_mode():
        return _Loader(checkpoint, config, dtype).weights()


class _Checkpoint:
    """Tensors by name, from one or more open safetensors files."""

    def __init__(self, files: dict[str, safe_open]) -> None:
        self._file_of = {
            name: file
            for file in files.values()
            for name in file.keys()  # type: ignore[no-untyped-call]  # noqa: SIM118
        }

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor as it is stored. Raises CheckpointError if it is missing or misshapen."""
        if name not in self._file_of:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        tensor: Tensor = self._file_of[name].get_tensor(name)  # type: ignore[no-untyped-call]
        if tensor.shape != shape:
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor


@contextmanager
def _open(directory: Path) -> Iterator[_Checkpoint]:
    with ExitStack() as stack:
        files: dict[str, safe_open] = {}
        for name in _file_names(directory):
            path = directory / name
            if not path.is_file():
                raise CheckpointError(f"{path} is missing")
            try:
                files[name] = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise CheckpointError(f"{path} is damaged: {error}") from error
        yield _Checkpoint(files)


def _file_names(directory: Path) -> list[str]:
    index = directory / INDEX
    if not index.is_file():
        if (directory / SINGLE).is_file():
            return [SINGLE]
        raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX}")
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not an index of shards: {error!r}") from error


class _Loader:
    def __init__(self, checkpoint: _Checkpoint, config: GptOssConfig, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._dtype = dtype

    def weights(self) -> Weights:
        config = self._config
        rows = (config.vocabulary_size, config.hidden_size)
        # Both in their stored dtype: the embedding's rows are converted as they are looked up, and
        # the unembedding by the head that multiplies with it.
        embedding = self._checkpoint.read("model.embed_tokens.weight", *rows).clone()
        tied = config.tied_embeddings and "lm_head.weight" not in self._checkpoint
        unembedding = embedding if tied else self._checkpoint.read("lm_head.weight", *rows).clone()
        return Weights(
            embedding=embedding,
            layers=[self._layer(index) for index in range(config.layers)],
            norm=self._read("model.norm.weight", config.hidden_size),
            unembedding=unembedding,
        )

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._checkpoint.read(name, *shape).to(self._dtype, copy=True)

    def _layer(self, index: int) -> LayerWeights:
        prefix, hidden = f"model.layers.{index}.", self._config.hidden_size
        return LayerWeights(
            window=self._config.windows[index],
            attention_norm=self._read(prefix + "input_layernorm.weight", hidden),
            attention=self._attention(prefix + "self_attn."),
            expert_norm=self._read(prefix + "post_attention_layernorm.weight", hidden),
            experts=self._experts(prefix + "mlp."),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self._config
        width = config.query_heads * config.head_dim
        outputs = {"q": width, "k": config.kv_width, "v": config.kv_width}
        return AttentionWeights(
            qkv=torch.cat(
                [
                    self._read(f"{prefix}{name}_proj.weight", size, config.hidden_size)
                    for name, size in outputs.items()
                ]
            ),
            qkv_bias=torch.cat(
                [self._read(f"{prefix}{name}_proj.bias", size) for name, size in outputs.items()]
            ),
            output=self._read(prefix + "o_proj.weight", config.hidden_size, width),
            output_bias=self._read(prefix + "o_proj.bias", config.hidden_size),
            sinks=self._checkpoint.read(prefix + "sinks", config.query_heads).float(),
        )

    def _experts(self, prefix: str) -> ExpertWeights:
        config = self._config
        experts, hidden, inner = config.experts, config.hidden_size, config.intermediate_size
        gate_up = self._product(prefix + "experts.gate_up_proj", hidden, 2 * inner)
        bias = self._read(prefix + "experts.gate_up_proj_bias", experts, 2 * inner)
        return ExpertWeights(
            router=self._read(prefix + "router.weight", experts, hidden),
            router_bias=self._read(prefix + "router.bias", experts),
            gate_up=self._layout(_halves(gate_up)),
            gate_up_bias=_halves(bias),
            down=self._layout(self._product(prefix + "experts.down_proj", inner, hidden)),
            down_bias=self._read(prefix + "experts.down_proj_bias", experts, hidden),
        )

    def _product(self, name: str, inputs: int, outputs: int) -> Tensor:
        """Expert matrices [E, in, out], from plain or MXFP4 storage."""
        experts = self._config.experts
        if name in self._checkpoint:
            return self._read(name, experts, inputs, outputs)
        if name + "_blocks" not in self._checkpoint:
            raise CheckpointError(f"the checkpoint has neither {name} nor {name}_blocks")
        if inputs % mxfp4.BLOCK:
            raise UnsupportedModelError(f"{name}: {inputs} is no multiple of {mxfp4.BLOCK}")
        scale_shape = (experts, outputs, inputs // mxfp4.BLOCK)
        blocks = self._checkpoint.read(name + "_blocks", *scale_shape, mxfp4.BLOCK // 2)
        scales = self._checkpoint.read(name + "_scales", *scale_shape)
        return mxfp4.dequantize(blocks, scales, self._dtype).transpose(1, 2)

    def _layout(self, weight: Tensor) -> Tensor:
        # Measured on AVX512 (one row to 256): fp32 products like [in, out] in memory, bf16 ones
        # [out, in], by 10 to 40 %.
        if self._dtype == torch.float32:
            return weight.contiguous()
        return weight.transpose(1, 2).contiguous().transpose(1, 2)


def _halves(interleaved: Tensor) -> Tensor:
    """Gate and up, which alternate in a checkpoint's last dimension, as two halves of it."""
    return torch.cat((interleaved[..., ::2], interleaved[..., 1::2]), dim=-1)

"""Weights from a Hugging Face gpt-oss directory: one safetensors file or shards with an index,
experts in bf16, fp16, fp32 or MXFP4.

Every tensor is converted piece by piece from the mapped file into its final place, one expert at a
time; the most that exists twice is one layer's experts, while they are packed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from engine import mxfp4
from engine.config import GptOssConfig, UnsupportedModelError
from engine.experts import Experts, GroupedExperts, Router
from engine.mxfp4 import StoredExperts
from engine.products import (
    ExpertProducts,
    PackedExperts,
    PackedProduct,
    PlainExperts,
    PlainProduct,
    Product,
    can_pack,
)
from engine.stored import BYTES, Checkpoint, StoredTensor
from engine.weights import AttentionWeights, LayerWeights, Weights

Made = Callable[[int], None]
"""Told how many bytes of weights have been made since it was last told."""
KeepMxfp4 = Callable[[Router, StoredExperts], Experts]
"""Makes a layer's experts from what a checkpoint stores in 4 bits."""

CPU = torch.device("cpu")


def load_weights(
    directory: Path,
    config: GptOssConfig,
    dtype: torch.dtype,
    table_dtype: torch.dtype = torch.float32,
    made: Made = lambda _: None,
    device: torch.device = CPU,
    keep_mxfp4: KeepMxfp4 | None = None,
) -> Weights:
    """Load all weights to `device` in `dtype`, embedding and unembedding in `table_dtype`.

    Experts in MXFP4 become `dtype`, or what `keep_mxfp4` makes of them. Raises CheckpointError,
    which names file and tensor.
    """
    with torch.inference_mode():
        loader = _Loader(
            Checkpoint(directory), config, dtype, table_dtype, made, device, keep_mxfp4
        )
        return loader.weights()


def weight_bytes(
    config: GptOssConfig, dtype: torch.dtype, table_dtype: torch.dtype, packed: bool = False
) -> int:
    """Bytes that `load_weights` makes; with `packed`, what they are if the experts' matrices stay
    in MXFP4."""
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.experts
    width = config.query_heads * config.head_dim
    qkv = width + 2 * config.kv_width
    attention = qkv * (hidden + 1) + hidden * (width + 1)
    plain = 2 * hidden + attention + experts * (hidden + 1 + 2 * inner + hidden)
    products = experts * 3 * hidden * inner
    product_bytes = products * dtype.itemsize
    if packed:
        product_bytes = products // 2 + products // mxfp4.BLOCK
    sinks = config.query_heads * torch.float32.itemsize
    layer = plain * dtype.itemsize + product_bytes + sinks
    tables = 2 * config.vocabulary_size * hidden * table_dtype.itemsize
    return config.layers * layer + hidden * dtype.itemsize + tables


class _Loader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        config: GptOssConfig,
        dtype: torch.dtype,
        table_dtype: torch.dtype,
        made: Made,
        device: torch.device,
        keep_mxfp4: KeepMxfp4 | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._dtype = dtype
        self._table_dtype = table_dtype
        self._made = made
        self._device = device
        self._keep_mxfp4 = keep_mxfp4
        self._pack = device == CPU and can_pack(dtype)
        self._scratch: dict[tuple[int, ...], Tensor] = {}

    def weights(self) -> Weights:
        config = self._config
        rows = (config.vocabulary_size, config.hidden_size)
        embedding, unembedding = "model.embed_tokens.weight", "lm_head.weight"
        if config.tied_embeddings and unembedding not in self._checkpoint:
            unembedding = embedding
        return Weights(
            embedding=self._read(embedding, *rows, dtype=self._table_dtype),
            layers=[self._layer(index) for index in range(config.layers)],
            norm=self._read("model.norm.weight", config.hidden_size),
            unembedding=self._fill(self._layout(rows, self._table_dtype), unembedding),
        )

    def _read(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        place = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        return self._fill(place, name)

    def _fill(self, place: Tensor, name: str) -> Tensor:
        """Convert a tensor of the same shape into `place`; returns it."""
        return self._copy(place, self._checkpoint.find(name, tuple(place.shape)))

    def _copy(self, place: Tensor, stored: StoredTensor) -> Tensor:
        for rows, piece in stored.pieces():
            place[rows].copy_(piece)
            self._made(place[rows].nbytes)
        return place

    def _layer(self, index: int) -> LayerWeights:
        prefix, hidden = f"model.layers.{index}.", self._config.hidden_size
        return LayerWeights(
            attention_norm=self._read(prefix + "input_layernorm.weight", hidden),
            attention=self._attention(prefix + "self_attn."),
            expert_norm=self._read(prefix + "post_attention_layernorm.weight", hidden),
            experts=self._experts(prefix + "mlp."),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self._config
        width = config.query_heads * config.head_dim
        sizes = [width, config.kv_width, config.kv_width]
        qkv = self._weight(sum(sizes), config.hidden_size)
        bias = self._room(sum(sizes))
        parts = zip("qkv", torch.split(qkv, sizes), torch.split(bias, sizes), strict=True)
        for name, part, part_bias in parts:
            self._fill(part, f"{prefix}{name}_proj.weight")
            self._fill(part_bias, f"{prefix}{name}_proj.bias")
        # Before the next weight, which may take its room.
        first = self._linear(qkv, bias)
        output = self._fill(self._weight(config.hidden_size, width), prefix + "o_proj.weight")
        output_bias = self._read(prefix + "o_proj.bias", config.hidden_size)
        return AttentionWeights(
            qkv=first,
            output=self._linear(output, output_bias),
            sinks=self._read(prefix + "sinks", config.query_heads, dtype=torch.float32),
        )

    def _weight(self, *shape: int) -> Tensor:
        return self._room_once(shape, lambda: self._room(*shape))

    def _linear(self, weight: Tensor, bias: Tensor) -> Product:
        return PackedProduct(weight, bias) if self._pack else PlainProduct(weight, bias)

    def _experts(self, prefix: str) -> Experts:
        config = self._config
        experts, hidden, inner = config.experts, config.hidden_size, config.intermediate_size
        router = Router(
            self._read(prefix + "router.weight", experts, hidden),
            self._read(prefix + "router.bias", experts),
            config.experts_per_token,
        )
        gate_up, down = prefix + "experts.gate_up_proj", prefix + "experts.down_proj"
        gate_up_bias = self._read(gate_up + "_bias", experts, 2 * inner)
        down_bias = self._read(down + "_bias", experts, hidden)
        if self._keep_mxfp4 is not None and gate_up not in self._checkpoint:
            stored = StoredExperts(
                *self._stored(gate_up, hidden, 2 * inner),
                gate_up_bias,
                *self._stored(down, inner, hidden),
                down_bias,
            )
            return self._keep_mxfp4(router, stored)
        return GroupedExperts(
            router,
            gate_up=self._products(gate_up, (hidden, 2 * inner), _halves(gate_up_bias), _halves),
            down=self._products(down, (inner, hidden), down_bias, lambda plain: plain),
            alpha=config.swiglu_alpha,
            limit=config.swiglu_limit,
        )

    def _stored(self, name: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Blocks and scales of a layer's experts, as they are, on the device."""
        blocks, scales = (
            self._copy(torch.empty(tensor.shape, dtype=torch.uint8, device=self._device), tensor)
            for tensor in self._find_mxfp4(name, inputs, outputs)
        )
        return blocks, scales

    def _products(
        self,
        name: str,
        shape: tuple[int, int],
        bias: Tensor,
        order: Callable[[Tensor], Tensor],
    ) -> ExpertProducts:
        """The products with matrices of shape (in, out), each put in `order`."""
        each = (len(bias), *shape)
        places = self._room_once(each, lambda: self._layout(each, self._dtype))
        for place, matrix in zip(places, self._matrices(name, *shape), strict=True):
            place.copy_(order(matrix)[0])
            self._made(place.nbytes)
        if not self._pack:
            return PlainExperts(places, bias)
        pairs = zip(places, bias, strict=True)
        return PackedExperts([PackedProduct(place.t(), own) for place, own in pairs])

    def _room(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return _product_layout(shape, dtype, self._device)

    def _room_once(self, shape: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
        """Room for matrices; the same for every layer if they are packed from there, so that the
        packed ones lie in memory without holes between them."""
        if not self._pack:
            return make()
        if shape not in self._scratch:
            self._scratch[shape] = make()
        return self._scratch[shape]

    def _matrices(self, name: str, inputs: int, outputs: int) -> Iterator[Tensor]:
        """Each expert's matrix [1, in, out], from plain or MXFP4 storage; valid until the next."""
        experts = self._config.experts
        if name in self._checkpoint:
            stored = self._checkpoint.find(name, (experts, inputs, outputs))
            for _, piece in stored.pieces(rows=1):
                yield piece
            return
        blocks, scales = self._find_mxfp4(name, inputs, outputs)
        for (_, block), (_, scale) in zip(blocks.pieces(1), scales.pieces(1), strict=True):
            on_device = block.to(self._device), scale.to(self._device)
            yield mxfp4.dequantize(*on_device, self._dtype).transpose(1, 2)

    def _find_mxfp4(
        self, name: str, inputs: int, outputs: int
    ) -> tuple[StoredTensor, StoredTensor]:
        """Blocks and scales of each expert's matrix."""
        if name + "_blocks" not in self._checkpoint:
            raise self._checkpoint.lacks(name, name + "_blocks")
        if inputs % mxfp4.BLOCK:
            raise UnsupportedModelError(f"{name}: {inputs} is no multiple of {mxfp4.BLOCK}")
        shape = (self._config.experts, outputs, inputs // mxfp4.BLOCK)
        return (
            self._checkpoint.find(name + "_blocks", (*shape, mxfp4.BLOCK // 2), BYTES),
            self._checkpoint.find(name + "_scales", shape, BYTES),
        )


def _product_layout(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for matrices [..., a, b], in memory as their product reads them fastest.

    Measured on AVX512 (one row to 256), by 10 to 40 %: experts [in, out] as such in fp32, and as
    [out, in] in bf16; the unembedding [V, D] as [D, V] in fp32, and as such in bf16.
    """
    table = len(shape) == 2
    if table == (dtype == torch.float32):
        turned = (*shape[:-2], shape[-1], shape[-2])
        return torch.empty(turned, dtype=dtype, device=device).transpose(-1, -2)
    return torch.empty(shape, dtype=dtype, device=device)


def _halves(interleaved: Tensor) -> Tensor:
    """Gate and up, which alternate in a checkpoint's last dimension, as two halves of it."""
    return torch.cat((interleaved[..., ::2], interleaved[..., 1::2]), dim=-1)

"""A Hugging Face gpt-oss checkpoint as a GGUF file, for llama.cpp.

The layout is that of llama.cpp's architecture `gpt-oss`; experts stay in MXFP4. Its vocabulary is
written as byte pairs, whose merges follow from the ranks.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.config import GptOssConfig, read_config
from engine.stored import Checkpoint
from ipc.vocabulary import RETURN, SIZE, token_bytes

_NIBBLES = 16


def convert(directory: Path, target: Path) -> None:
    """Write the checkpoint of a directory to `target`. Raises CheckpointError."""
    config = read_config(directory)
    writer = gguf.GGUFWriter(target, "gpt-oss")
    _write_sizes(writer, config)
    _write_vocabulary(writer)
    _Tensors(writer, Checkpoint(directory), config).write()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, config: GptOssConfig) -> None:
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.query_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_expert_count(config.experts)
    writer.add_expert_used_count(config.experts_per_token)
    writer.add_sliding_window(next(window for window in config.windows if window is not None))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config.rope.factor)
    writer.add_rope_scaling_orig_ctx_len(config.rope.original_context)
    writer.add_vocab_size(config.vocabulary_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    ordinary = token_bytes()
    shown = _shown_bytes()
    names = ["".join(shown[byte] for byte in token) for token in ordinary]
    special = [f"<|special_{number}|>" for number in range(len(ordinary), SIZE)]
    kinds = [gguf.TokenType.NORMAL] * len(ordinary) + [gguf.TokenType.CONTROL] * len(special)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list(names + special)
    writer.add_token_types(kinds)
    writer.add_token_merges(_merges(ordinary, shown))
    writer.add_eos_token_id(RETURN)


def _shown_bytes() -> list[str]:
    """The printable character that stands for each byte in a GPT-2 vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (number for number in range(256) if number not in printable)
    shown = {byte: chr(byte) for byte in printable}
    shown |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


def _merges(tokens: list[bytes], shown: list[str]) -> list[str]:
    """The two parts that each token of several bytes is made of, by rank."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        parts = [token[place : place + 1] for place in range(len(token))]
        while len(parts) > 2 and (place := _lowest_pair(parts, ranks, rank)) is not None:
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            merges.append(" ".join("".join(shown[byte] for byte in part) for part in parts))
    return merges


def _lowest_pair(parts: list[bytes], ranks: dict[bytes, int], below: int) -> int | None:
    pairs = [
        (found, place)
        for place in range(len(parts) - 1)
        if (found := ranks.get(parts[place] + parts[place + 1], below)) < below
    ]
    return min(pairs)[1] if pairs else None


class _Tensors:
    def __init__(
        self, writer: gguf.GGUFWriter, checkpoint: Checkpoint, config: GptOssConfig
    ) -> None:
        self._writer = writer
        self._checkpoint = checkpoint
        self._config = config

    def write(self) -> None:
        config = self._config
        table = (config.vocabulary_size, config.hidden_size)
        self._bf16("token_embd.weight", self._read("model.embed_tokens.weight", *table))
        self._bf16("output.weight", self._read("lm_head.weight", *table))
        self._fp32("output_norm.weight", self._read("model.norm.weight", config.hidden_size))
        for layer in range(config.layers):
            self._attention(f"model.layers.{layer}.", f"blk.{layer}.")
            self._experts(f"model.layers.{layer}.mlp.", f"blk.{layer}.")

    def _attention(self, source: str, target: str) -> None:
        config = self._config
        hidden, width = config.hidden_size, config.query_heads * config.head_dim
        shapes = {
            "q": ("attn_q", width, hidden),
            "k": ("attn_k", config.kv_width, hidden),
            "v": ("attn_v", config.kv_width, hidden),
            "o": ("attn_output", hidden, width),
        }
        for name, (new, rows, columns) in shapes.items():
            projection = f"{source}self_attn.{name}_proj."
            self._bf16(f"{target}{new}.weight", self._read(projection + "weight", rows, columns))
            self._fp32(f"{target}{new}.bias", self._read(projection + "bias", rows))
        sinks = self._read(source + "self_attn.sinks", config.query_heads)
        self._fp32(target + "attn_sinks.weight", sinks)
        for name, new in (("input", "attn_norm"), ("post_attention", "post_attention_norm")):
            norm = self._read(f"{source}{name}_layernorm.weight", hidden)
            self._fp32(f"{target}{new}.weight", norm)

    def _experts(self, source: str, target: str) -> None:
        config = self._config
        experts, hidden, inner = config.experts, config.hidden_size, config.intermediate_size
        router = self._read(source + "router.weight", experts, hidden)
        self._fp32(target + "ffn_gate_inp.weight", router)
        self._fp32(target + "ffn_gate_inp.bias", self._read(source + "router.bias", experts))
        bias = self._read(source + "experts.gate_up_proj_bias", experts, 2 * inner)
        down_bias = self._read(source + "experts.down_proj_bias", experts, hidden)
        self._fp32(target + "ffn_gate_exps.bias", bias[:, ::2])
        self._fp32(target + "ffn_up_exps.bias", bias[:, 1::2])
        self._fp32(target + "ffn_down_exps.bias", down_bias)
        gate_up = self._mxfp4(source + "experts.gate_up_proj", hidden, 2 * inner)
        self._write_mxfp4(target + "ffn_gate_exps.weight", gate_up[:, ::2])
        self._write_mxfp4(target + "ffn_up_exps.weight", gate_up[:, 1::2])
        down = self._mxfp4(source + "experts.down_proj", inner, hidden)
        self._write_mxfp4(target + "ffn_down_exps.weight", down)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._checkpoint.find(name, shape).rows(0, shape[0]).clone()

    def _bf16(self, name: str, values: Tensor) -> None:
        raw = values.bfloat16().contiguous().view(torch.uint8).numpy()
        self._writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def _fp32(self, name: str, values: Tensor) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values.float().numpy()))

    def _mxfp4(self, name: str, inputs: int, outputs: int) -> Tensor:
        """Blocks as llama.cpp has them, [E, out, in / 32 * 17]: the scale, then 16 bytes of which
        each holds a value of the first half and, above it, one of the second."""
        shape = (self._config.experts, outputs, inputs // 32)
        dtypes = ("U8",)
        blocks = self._checkpoint.find(name + "_blocks", (*shape, _NIBBLES), dtypes)
        scales = self._checkpoint.find(name + "_scales", shape, dtypes)
        packed = blocks.rows(0, shape[0])
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        halves = codes[..., :_NIBBLES] | codes[..., _NIBBLES:] << 4
        scale = scales.rows(0, shape[0]).unsqueeze(-1)
        return torch.cat((scale, halves), dim=-1).flatten(-2)

    def _write_mxfp4(self, name: str, values: Tensor) -> None:
        raw = values.contiguous().numpy()
        self._writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.MXFP4)

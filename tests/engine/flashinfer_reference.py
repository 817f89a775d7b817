"""flashinfer's functions as far as the engine calls them, computed on the CPU with torch.

Every call is bound to the signature of the real function first, and held against what the real one
demands of its arguments (flashinfer 0.7.4), so that code that runs here is written to the real one.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flashinfer import (
    BatchAttentionWithAttentionSinkWrapper,
    BatchDecodeWithAttentionSinkWrapper,
    BatchDecodeWithPagedKVCacheWrapper,
    fused_moe,
    norm,
    rope,
)
from torch import Tensor
from torch.utils._pytree import tree_map

from engine import flashinfer_attention, flashinfer_experts, gpu
from engine.experts import swiglu
from engine.mxfp4 import BLOCK, dequantize
from tests.engine.pretend_gpu import PretendTensor, bare


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine's GPU modules compute by this one."""
    for name, wrapper in (
        ("BatchAttentionWithAttentionSinkWrapper", AnyWrapper),
        ("BatchDecodeWithAttentionSinkWrapper", DecodeWrapper),
        ("apply_rope_with_cos_sin_cache_inplace", apply_rope),
    ):
        monkeypatch.setattr(flashinfer_attention, name, wrapper)
    for function in (cutlass_fused_moe, interleave_weights, interleave_scales):
        monkeypatch.setattr(flashinfer_experts, REAL[function].__name__, function)
    monkeypatch.setattr(gpu, "rmsnorm", rmsnorm)


def bind(function: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, Any]:
    """The arguments of a call by name, those on a pretended GPU as tensors to compute with. Raises
    TypeError for those that the function has not."""
    bound = inspect.signature(function).bind(*arguments, **named)
    bound.apply_defaults()
    return {name: tree_map(bare, value) for name, value in bound.arguments.items()}


def on_gpu(value: Any, like: Any) -> Any:
    """A result, where the arguments are."""
    return PretendTensor(value) if isinstance(like, PretendTensor) else value


class _Wrapper:
    """What both wrappers do: attention of queries to pages, with sinks and a window."""

    def _construct(self, called: dict[str, Any]) -> None:
        assert called["kv_layout"] == "NHD"
        assert called["float_workspace_buffer"].dtype == torch.uint8
        assert called["head_dim_qk"] == called["head_dim_vo"]
        self._head_dim = called["head_dim_qk"]
        self._dtypes = called["q_data_type"], called["kv_data_type"]
        self._window_left = called["window_left"]

    def _plan(self, called: dict[str, Any], queries: Tensor) -> None:
        assert called["window_left"] == self._window_left, "it is compiled in"
        assert (called["q_data_type"], called["kv_data_type"]) == self._dtypes
        assert called.get("pos_encoding_mode") == "NONE"
        self._query_ends = queries.tolist()
        self._page_size = called["page_size"]
        self._heads = called["num_qo_heads"], called["num_kv_heads"]

    def _pages(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor) -> None:
        for tensor in (indptr, indices, last_page_len):
            assert tensor.dtype == torch.int32
            assert tensor.is_contiguous()
        assert len(indptr) == len(last_page_len) + 1
        assert int(indptr[-1]) == len(indices)
        self._indptr, self._indices, self._last = indptr, indices, last_page_len

    def run(self, *arguments: Any, **named: Any) -> Tensor:
        called = bind(BatchAttentionWithAttentionSinkWrapper.run, self, *arguments, **named)
        sinks, scale = called["args"]
        query, (keys, values) = called["q"], called["paged_kv_cache"]
        assert sinks.dtype == torch.float32
        assert (query.dtype, keys.dtype) == self._dtypes
        assert query.shape == (self._query_ends[-1], self._heads[0], self._head_dim)
        assert keys.shape[1:] == (self._page_size, self._heads[1], self._head_dim)
        assert keys.stride() == values.stride()
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for index, first in enumerate(self._query_ends[:-1]):
            rows = slice(first, self._query_ends[index + 1])
            pages = self._indices[self._indptr[index] : self._indptr[index + 1]].long()
            count = (len(pages) - 1) * self._page_size + int(self._last[index])
            key, value = (x[pages].flatten(0, 1)[:count].float() for x in (keys, values))
            out[rows] = self._attend(query[rows].float(), key, value, sinks, scale)
        result: Tensor = on_gpu(out, arguments[0])
        return result

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, scale: float
    ) -> Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        logits = torch.einsum("qhd,khd->hqk", query, key) * scale
        place = torch.arange(len(key)) - (len(key) - len(query))
        distance = torch.arange(len(query)).unsqueeze(1) - place
        seen = distance >= 0
        if self._window_left >= 0:
            seen &= distance <= self._window_left
        logits = logits.masked_fill(~seen, -torch.inf)
        with_sink = torch.cat((logits, sinks.view(-1, 1, 1).expand(-1, len(query), 1)), dim=-1)
        return torch.einsum("hqk,khd->qhd", with_sink.softmax(-1)[..., :-1], value)


class AnyWrapper(_Wrapper):
    """For queries of any length."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        called = bind(BatchAttentionWithAttentionSinkWrapper.__init__, self, *arguments, **named)
        assert not called["use_cuda_graph"]
        self._construct(called)

    def plan(self, *arguments: Any, **named: Any) -> None:
        called = bind(BatchAttentionWithAttentionSinkWrapper.plan, self, *arguments, **named)
        assert called["causal"]
        assert called["qo_indptr"].dtype == torch.int32
        self._plan(called, called["qo_indptr"])
        self._pages(
            called["paged_kv_indptr"],
            called["paged_kv_indices"],
            called["paged_kv_last_page_len"],
        )


class DecodeWrapper(_Wrapper):
    """For one query a sequence, in a CUDA graph: it reads its pages from its buffers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        called = bind(BatchDecodeWithAttentionSinkWrapper.__init__, self, *arguments, **named)
        self._construct(called)
        more = called["kwargs"]
        bind(BatchDecodeWithPagedKVCacheWrapper.__init__, self, None, use_tensor_cores=True, **more)
        assert more["use_cuda_graph"]
        self._buffers = [
            more[f"paged_kv_{name}_buffer"] for name in ("indptr", "indices", "last_page_len")
        ]
        assert len(self._buffers[0]) == len(self._buffers[2]) + 1

    def plan(self, *arguments: Any, **named: Any) -> None:
        bind(BatchDecodeWithAttentionSinkWrapper.plan, self, *arguments, **named)
        called = bind(BatchDecodeWithPagedKVCacheWrapper._plan_impl, self, *arguments, **named)
        size = len(self._buffers[2])
        assert len(called["last_page_len"]) == size, "the batch size is fixed"
        self._plan(called, torch.arange(size + 1))
        self._pages(called["indptr"], called["indices"], called["last_page_len"])
        count = len(self._indices)
        self._buffers[0].copy_(self._indptr)
        self._buffers[1][:count].copy_(self._indices)
        self._buffers[2].copy_(self._last)
        self._indptr, self._indices, self._last = self._buffers


def apply_rope(*arguments: Any, **named: Any) -> None:
    called = bind(rope.apply_rope_with_cos_sin_cache_inplace, *arguments, **named)
    table, size = called["cos_sin_cache"], called["head_size"]
    assert table.dtype == torch.float32
    assert called["is_neox"]
    cosine, sine = table[called["positions"]].unsqueeze(1).chunk(2, dim=-1)
    for rows in (called["query"], called["key"]):
        heads = rows.view(len(rows), -1, size)
        first, second = heads.float().chunk(2, dim=-1)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        heads.copy_(torch.cat(turned, dim=-1))


def rmsnorm(*arguments: Any, **named: Any) -> Tensor:
    called = bind(norm.rmsnorm, *arguments, **named)
    hidden, weight = called["input"], called["weight"]
    assert hidden.dtype == weight.dtype
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + called["eps"])
    normed: Tensor = on_gpu((wide * scale * weight).to(hidden.dtype), arguments[0])
    return normed


def interleave_weights(*arguments: Any, **named: Any) -> Tensor:
    called = bind(fused_moe.interleave_moe_weights_for_sm90_mixed_gemm, *arguments, **named)
    weight: Tensor = called["weight"]
    assert called["quant_type"] == "fp4"
    assert weight.dtype == torch.uint8
    assert weight.dim() == 3
    # Any reversible order tells whether it was put in order once.
    interleaved: Tensor = on_gpu(weight.flip(-1), arguments[0])
    return interleaved


def interleave_scales(*arguments: Any, **named: Any) -> Tensor:
    interleaved: Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(*arguments, **named)
    return interleaved


def _scales(interleaved: Tensor) -> Tensor:
    """Undo the interleaving: [E, out / 64, in / 128, 16, 16] to [E, out, in / 32]."""
    experts, rows, columns, folded, _ = interleaved.shape
    parts = interleaved.view(experts, rows, columns, folded, -1, 4).permute(0, 1, 4, 3, 2, 5)
    return parts.reshape(experts, rows * 64, columns * 4)


def _matrices(weight: Tensor, scales: Tensor) -> Tensor:
    blocks = weight.flip(-1).view(*weight.shape[:-1], -1, BLOCK // 2)
    return dequantize(blocks, _scales(scales), torch.float32)


def cutlass_fused_moe(*arguments: Any, **named: Any) -> Tensor:
    called = bind(fused_moe.cutlass_fused_moe, *arguments, **named)
    assert called["use_w4_group_scaling"]
    rows, chosen = called["input"], called["token_selected_experts"]
    shares = called["token_final_scales"]
    assert chosen.dtype == torch.int32
    assert shares.dtype == torch.float32
    for bias in (called["fc1_expert_biases"], called["fc2_expert_biases"]):
        assert bias.dtype == called["output_dtype"]
    first = _matrices(called["fc1_expert_weights"], called["quant_scales"][0])
    second = _matrices(called["fc2_expert_weights"], called["quant_scales"][1])
    assert rows.shape[1] == first.shape[2] == second.shape[1]
    assert first.shape[1] == 2 * second.shape[2]
    for size in (*first.shape[1:], *second.shape[1:]):
        assert size % 128 == 0
    out = torch.zeros(len(rows), second.shape[1])
    for token, (experts, weights) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        for expert, share in zip(experts, weights, strict=True):
            limit, alpha, beta = (
                called[f"swiglu_{name}"][expert].item() for name in ("limit", "alpha", "beta")
            )
            assert beta == 1
            inner = first[expert] @ rows[token].float() + called["fc1_expert_biases"][expert]
            up, gate = inner.chunk(2)
            inner = swiglu(torch.cat((gate, up)), alpha, limit)
            out[token] += share * (second[expert] @ inner + called["fc2_expert_biases"][expert])
    result: Tensor = on_gpu(out.to(called["output_dtype"]), arguments[0])
    return result


REAL: dict[Callable[..., Any], Callable[..., Any]] = {
    cutlass_fused_moe: fused_moe.cutlass_fused_moe,
    interleave_weights: fused_moe.interleave_moe_weights_for_sm90_mixed_gemm,
    interleave_scales: fused_moe.interleave_moe_scales_for_sm90_mixed_gemm,
}

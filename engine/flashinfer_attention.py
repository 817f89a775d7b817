"""Attention with sinks over the paged KV cache, on a GPU, by flashinfer's kernels.

A group of layers has one wrapper, as a kernel is compiled for a window. Queries and keys are
rotated in place; keys and values are written to the cache; the kernel reads both from its pages,
which are the KV cache's blocks. flashinfer's own names are kept for its arguments: `indptr` says
where each sequence's part of a list begins, and `last_page_len` how many tokens its last page has.

Facts about the kernels (shapes, what must be on which device, what a CUDA graph needs) are from
the sources of flashinfer 0.7.4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from flashinfer import (
    BatchAttentionWithAttentionSinkWrapper,
    BatchDecodeWithAttentionSinkWrapper,
)
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace
from torch import Tensor

from engine.attention import new_slots, positions_of
from engine.batch import Slice
from engine.config import GptOssConfig
from engine.rotary import cosines_and_sines, inverse_frequencies

WORKSPACE_BYTES = 128 * 2**20
"""For what a kernel computes in parts; the size that flashinfer recommends."""

Wrapper = BatchAttentionWithAttentionSinkWrapper | BatchDecodeWithAttentionSinkWrapper


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages that sequences attend to, on the CPU, int32: `indptr` [B + 1], `indices`
    [indptr[B]] and `last_page_len` [B]."""

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor


def pages_of(slices: Sequence[Slice], group: int, block_size: int, window: int | None) -> Pages:
    """The pages of each slice, from the first that its first query sees to its last token's."""
    indices: list[int] = []
    counts, last = [0], []
    for item in slices:
        end = item.position + item.count
        oldest = 0 if window is None else max(0, item.position + 1 - window)
        pages = item.tables[group][oldest // block_size : -(-end // block_size)]
        indices += pages
        counts.append(len(pages))
        last.append((end - 1) % block_size + 1)
    return Pages(_int32(list(accumulate(counts))), _int32(indices), _int32(last))


class FlashinferAttention:
    """The KV cache in `blocks` blocks of `block_size` tokens on a GPU, and one more, which is
    where padding is written and read."""

    def __init__(
        self,
        config: GptOssConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.padding_block = blocks
        self.device = device
        self._config = config
        self._dtype = dtype
        self._layout = layout = config.cache_layout
        pages = (blocks + 1, block_size, config.kv_heads, config.head_dim)
        # Padding attends to what is in its block, which must be numbers.
        memory = torch.zeros((layout.layers_a_block, 2, *pages), dtype=dtype, device=device)
        self._caches: list[tuple[Tensor, Tensor]] = [
            (memory[place, 0], memory[place, 1]) for place in layout.place_of
        ]
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._rotations = self._rotation_table().to(device)
        self._wrappers = [
            BatchAttentionWithAttentionSinkWrapper(
                self._workspace,
                kv_layout="NHD",
                q_data_type=dtype,
                kv_data_type=dtype,
                head_dim_qk=config.head_dim,
                head_dim_vo=config.head_dim,
                window_left=window_left(window),
            )
            for window in layout.windows
        ]

    def plan(self, slices: Sequence[Slice]) -> "FlashinferStep":
        """Prepare a step of any slices."""
        indptr = _int32(list(accumulate((item.count for item in slices), initial=0)))
        for group, (wrapper, window) in enumerate(
            zip(self._wrappers, self._layout.windows, strict=True)
        ):
            pages = pages_of(slices, group, self.block_size, window)
            wrapper.plan(
                indptr,
                pages.indptr,
                pages.indices,
                pages.last_page_len,
                self._config.query_heads,
                self._config.kv_heads,
                self._config.head_dim,
                self.block_size,
                causal=True,
                sm_scale=self._scale,
                window_left=window_left(window),
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
            )
        positions = torch.tensor(positions_of(slices), device=self.device)
        slots = [
            torch.tensor(new_slots(slices, group, self.block_size), device=self.device)
            for group in range(len(self._wrappers))
        ]
        return FlashinferStep(self, self._wrappers, positions, slots)

    def decode(self, size: int, pages: int) -> "DecodeStep":
        """A step of `size` slices of one token that can be planned again and again, for a CUDA
        graph. Its slices have up to `pages` pages together, in each group."""
        return DecodeStep(self, size, pages)

    def decode_wrapper(
        self, window: int | None, size: int, pages: int
    ) -> BatchDecodeWithAttentionSinkWrapper:
        """A wrapper whose buffers stay where they are."""
        return BatchDecodeWithAttentionSinkWrapper(
            self._workspace,
            kv_layout="NHD",
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            head_dim_qk=self._config.head_dim,
            head_dim_vo=self._config.head_dim,
            window_left=window_left(window),
            use_cuda_graph=True,
            paged_kv_indptr_buffer=self._buffer(size + 1),
            paged_kv_indices_buffer=self._buffer(pages),
            paged_kv_last_page_len_buffer=self._buffer(size),
        )

    def plan_decode(
        self, wrapper: BatchDecodeWithAttentionSinkWrapper, pages: Pages, window: int | None
    ) -> None:
        """Plan a decode wrapper's next run."""
        wrapper.plan(
            pages.indptr,
            pages.indices,
            pages.last_page_len,
            self._config.query_heads,
            self._config.kv_heads,
            self._config.head_dim,
            self.block_size,
            sm_scale=self._scale,
            window_left=window_left(window),
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each group's window."""
        return self._layout.windows

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        sinks: Tensor,
        positions: Tensor,
        slots: Sequence[Tensor],
        wrappers: Sequence[Wrapper],
    ) -> Tensor:
        """Rotate, store and attend, by what a step has prepared; see `StepAttention`."""
        config, group = self._config, self._layout.group_of[layer]
        width = config.query_heads * config.head_dim
        query, key, value = torch.split(qkv, [width, config.kv_width, config.kv_width], dim=-1)
        apply_rope_with_cos_sin_cache_inplace(
            positions, query, key, config.head_dim, self._rotations, is_neox=True
        )
        keys, values = self._caches[layer]
        for cache, new in ((keys, key), (values, value)):
            heads = new.view(len(new), config.kv_heads, config.head_dim)
            cache.view(-1, config.kv_heads, config.head_dim).index_copy_(0, slots[group], heads)
        queries = query.view(len(query), config.query_heads, config.head_dim)
        out: Tensor = wrappers[group].run(queries, (keys, values), sinks, self._scale)
        return out.flatten(1)

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self._config.head_dim)

    def _buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self.device)

    def _rotation_table(self) -> Tensor:
        """Cosines, then sines, of every position: fp32 [context, head_dim]."""
        config = self._config
        positions = torch.arange(config.context_length)
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        return torch.cat(cosines_and_sines(positions, frequencies, config.rope), dim=-1)


class FlashinferStep:
    """One step's attention; see `StepAttention`."""

    def __init__(
        self,
        attention: FlashinferAttention,
        wrappers: Sequence[Wrapper],
        positions: Tensor,
        slots: Sequence[Tensor],
    ) -> None:
        self._attention = attention
        self._wrappers = wrappers
        self._positions = positions
        self._slots = slots

    def attend(self, layer: int, qkv: Tensor, sinks: Tensor) -> Tensor:
        """Attention of the step's tokens in one layer."""
        return self._attention.attend(
            layer, qkv, sinks, self._positions, self._slots, self._wrappers
        )


class DecodeStep(FlashinferStep):
    """A step of `size` slices of one token each, whose tensors stay where they are."""

    def __init__(self, attention: FlashinferAttention, size: int, pages: int) -> None:
        self.size = size
        self._pages = pages
        device = attention.device
        wrappers = [attention.decode_wrapper(window, size, pages) for window in attention.windows]
        positions = torch.zeros(size, dtype=torch.int64, device=device)
        slots = [torch.zeros_like(positions) for _ in wrappers]
        super().__init__(attention, wrappers, positions, slots)
        self._decode_wrappers = wrappers
        self.plan([])

    def plan(self, slices: Sequence[Slice]) -> None:
        """Prepare the next run, of up to `size` slices; the rest of it is padding."""
        attention = self._attention
        block = attention.padding_block
        padding = Slice([0], 0, [[block]] * len(attention.windows))
        padded = [*slices, *[padding] * (self.size - len(slices))]
        self._positions.copy_(torch.tensor(positions_of(padded)))
        for group, (wrapper, slots, window) in enumerate(
            zip(self._decode_wrappers, self._slots, attention.windows, strict=True)
        ):
            slots.copy_(torch.tensor(new_slots(padded, group, attention.block_size)))
            pages = pages_of(padded, group, attention.block_size, window)
            attention.plan_decode(wrapper, pages, window)


def window_left(window: int | None) -> int:
    """How many tokens before its own a query sees; -1 for all."""
    return -1 if window is None else window - 1


def _int32(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)

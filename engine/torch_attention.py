"""Attention with sinks over the paged KV cache, on CPU.

Every piece of attention is a flash call, or products where these are faster, which also returns the
log-sum-exp of its logits. Pieces over disjoint keys merge by it, and the sink, one more logit
without a value, is a final factor sigmoid(lse - sink). So keys are read in place, one view a run of
contiguous blocks, without a mask; only where that costs more calls than it saves copies are keys
gathered. A step is planned once, and the plan is used by all layers with the same window.

Shapes: queries [T, Hq, D]; keys and values of one layer's cache [slots, Hkv, D], a slot being one
token's place; results [T, Hq, D] with log-sum-exp [T, Hq] in fp32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from engine import product_attention
from engine.attention import Run, new_slots, positions_of, runs_of
from engine.batch import Slice
from engine.config import GptOssConfig
from engine.rotary import cosines_and_sines, inverse_frequencies, rotate

GATHER_SIZE = 65_536
"""Up to this many key numbers (context tokens x Hkv x D) gathering the keys of all decoding
sequences for one call is faster than a call a sequence (measured: 512 tokens with 2 key heads, 128
with 8)."""
SHORT_RUN = 128
"""Runs that are shorter than this on average are gathered."""

Piece = slice | Tensor
"""Slots that are read in one call: a range of them in place, or any [1, S] as a copy."""


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's keys and values, [slots, Hkv, D] each."""

    keys: Tensor
    values: Tensor


def slots_of(runs: Sequence[Run]) -> Tensor:
    """The slots of these runs, in order: int64 [tokens]."""
    return torch.cat([torch.arange(start, start + size) for start, size in runs])


class TorchAttention:
    """The KV cache in `blocks` blocks of `block_size` tokens; their memory is touched as they are
    first used. Layers of different groups share memory, but never a block."""

    def __init__(
        self, config: GptOssConfig, blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._block_size = block_size
        self._dtype = dtype
        self._layout = layout = config.cache_layout
        slots = blocks * block_size
        shape = (layout.layers_a_block, 2, slots, config.kv_heads, config.head_dim)
        memory = torch.empty(shape, dtype=dtype)
        self._caches = [Cache(*memory[place]) for place in layout.place_of]
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)

    def plan(self, slices: Sequence[Slice]) -> "TorchStep":
        """Prepare a step."""
        config, size = self._config, self._block_size
        groups = [
            _Group(
                AttentionPlan(slices, group, size, window, config.kv_width, self._dtype),
                torch.tensor(new_slots(slices, group, size)),
            )
            for group, window in enumerate(self._layout.windows)
        ]
        positions = torch.tensor(positions_of(slices))
        cosine, sine = cosines_and_sines(positions, self._frequencies, config.rope)
        rotation = (cosine.unsqueeze(1).to(self._dtype), sine.unsqueeze(1).to(self._dtype))
        layers = zip(self._caches, self._layout.group_of, strict=True)
        return TorchStep(config, rotation, [(cache, groups[group]) for cache, group in layers])


@dataclass(frozen=True, slots=True)
class _Group:
    """What a step needs for the layers of one group; `slots` [T] are those of its tokens."""

    plan: "AttentionPlan"
    slots: Tensor


class TorchStep:
    """One step's attention; see `StepAttention`."""

    def __init__(
        self,
        config: GptOssConfig,
        rotation: tuple[Tensor, Tensor],
        layers: Sequence[tuple[Cache, _Group]],
    ) -> None:
        self._config = config
        self._rotation = rotation
        self._layers = layers

    def attend(self, layer: int, qkv: Tensor, sinks: Tensor) -> Tensor:
        """Attention of the step's tokens in one layer."""
        config = self._config
        cache, group = self._layers[layer]
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotated = rotate(heads[:, : -config.kv_heads], *self._rotation)
        queries, keys = rotated[:, : config.query_heads], rotated[:, config.query_heads :]
        values = heads[:, -config.kv_heads :]
        cache.keys.index_copy_(0, group.slots, keys)
        cache.values.index_copy_(0, group.slots, values)
        return group.plan.attend(queries, Cache(keys, values), cache, sinks).flatten(1)


class AttentionPlan:
    """How one step attends, for the layers of one group, which has one window (None: full
    attention).

    `slices` are the step's, those with one token first and by ascending context, in the order of
    the rows of the batch.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        group: int,
        block_size: int,
        window: int | None,
        kv_width: int,
        dtype: torch.dtype,
    ) -> None:
        self._group = group
        self._block_size = block_size
        self._window = window
        self._dtype = dtype
        self._parts: list[_GatheredDecode | _Decode | _Chunk | _Tiles] = []
        single = list(takewhile(lambda item: item.count == 1, slices))
        small = [s for s in single if self._context(s) * kv_width <= GATHER_SIZE]
        gathered = small if len(small) > 1 else []
        if gathered:
            self._parts.append(self._gathered(gathered))
        row = len(gathered)
        for item in slices[row:]:
            self._parts.append(self._part(item, slice(row, row + item.count)))
            row += item.count

    def attend(self, queries: Tensor, fresh: Cache, cache: Cache, sinks: Tensor) -> Tensor:
        """Attention of the step's queries; `fresh` holds the step's own keys and values [T, ...],
        which `cache` holds too. Returns [T, Hq, D]."""
        out = queries.new_empty(queries.shape)
        for part in self._parts:
            rows = part.rows
            result, lse = part.attend(queries[rows], fresh, cache)
            out[rows] = result * torch.sigmoid(lse - sinks).unsqueeze(-1)
        return out

    def _context(self, item: Slice) -> int:
        """Tokens that the last query of the slice sees."""
        end = item.position + item.count
        return end if self._window is None else min(end, self._window)

    def _runs(self, item: Slice, first: int, end: int) -> list[Run]:
        return runs_of(item.tables[self._group], self._block_size, first, end)

    def _part(self, item: Slice, rows: slice) -> "_Decode | _Chunk | _Tiles":
        end = item.position + item.count
        if item.count == 1:
            return _Decode(rows, _pieces(self._runs(item, end - self._context(item), end)))
        if self._window is None or end <= self._window:
            return _Chunk(rows, _pieces(self._runs(item, 0, item.position)))
        return self._tiles(item, rows, self._window)

    def _gathered(self, items: Sequence[Slice]) -> "_GatheredDecode":
        contexts = [self._context(item) for item in items]
        starts = [item.position + 1 - size for item, size in zip(items, contexts, strict=True)]
        firsts = [start // self._block_size for start in starts]
        tables = torch.nn.utils.rnn.pad_sequence(
            [
                torch.tensor(item.tables[self._group][first:])
                for item, first in zip(items, firsts, strict=True)
            ],
            True,
        )
        sizes = torch.tensor(contexts).unsqueeze(1)
        places = torch.arange(max(contexts))
        # The padding repeats the last slot of the sequence: an unused slot may hold NaN.
        tokens = torch.minimum(places, sizes - 1)
        tokens += torch.tensor(starts).remainder(self._block_size).unsqueeze(1)
        blocks = tables.gather(1, tokens // self._block_size)
        slots = blocks * self._block_size + tokens % self._block_size
        even = min(contexts) == max(contexts)
        mask = None if even else _additive(places < sizes, self._dtype)[:, None, None]
        return _GatheredDecode(slice(0, len(items)), slots, mask)

    def _tiles(self, item: Slice, rows: slice, window: int) -> "_Tiles":
        """Tiles of up to `window` queries; each sees the window - 1 keys before it and its own."""
        size = min(window, item.count)
        count = -(-item.count // size)
        first = item.position + size * torch.arange(count).unsqueeze(1)
        query = first + torch.arange(size)
        key = first + torch.arange(1 - window, size)
        oldest = max(0, item.position + 1 - window)
        newest = item.position + item.count - 1
        seen = (key.unsqueeze(1) <= query.unsqueeze(2)) & (key >= oldest).unsqueeze(1)
        seen &= key.unsqueeze(1) > query.unsqueeze(2) - window
        slots = slots_of(self._runs(item, oldest, newest + 1))
        return _Tiles(
            rows,
            (query.clamp(max=newest) - item.position).flatten(),
            slots[key.clamp(oldest, newest) - oldest],
            _additive(seen, self._dtype),
        )


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


@dataclass(frozen=True, slots=True)
class _GatheredDecode:
    """One query each of several sequences, keys gathered: slots [B, S], mask [B, 1, 1, S]."""

    rows: slice
    slots: Tensor
    mask: Tensor | None

    def attend(self, queries: Tensor, fresh: Cache, cache: Cache) -> tuple[Tensor, Tensor]:
        batch, heads, width = queries.shape
        keys, values = _gather(cache, self.slots)
        grouped = queries.view(batch, keys.shape[1], -1, width)
        out, lse = _attend(grouped, keys, values, mask=self.mask)
        return out.reshape(batch, heads, width), lse.reshape(batch, heads)


@dataclass(frozen=True, slots=True)
class _Decode:
    """One query of one sequence over the pieces of its context."""

    rows: slice
    pieces: list[Piece]

    def attend(self, queries: Tensor, fresh: Cache, cache: Cache) -> tuple[Tensor, Tensor]:
        _, heads, width = queries.shape
        grouped = queries.view(1, cache.keys.shape[1], -1, width)
        out, lse = _merge([_attend(grouped, k, v) for k, v in _read(cache, self.pieces)])
        return out.reshape(1, heads, width), lse.reshape(1, heads)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Several queries of one sequence: all of its context, then causally their own keys."""

    rows: slice
    context: list[Piece]

    def attend(self, queries: Tensor, fresh: Cache, cache: Cache) -> tuple[Tensor, Tensor]:
        count, heads, width = queries.shape
        kv_heads = cache.keys.shape[1]
        # [Hkv, group, T, D]: a key head is an element of the batch, so that its keys are shared
        # by its group of query heads without a copy.
        grouped = queries.view(count, kv_heads, -1, width).permute(1, 2, 0, 3)
        own_keys, own_values = (
            x[self.rows].transpose(0, 1).unsqueeze(1).expand(-1, grouped.shape[1], -1, -1)
            for x in (fresh.keys, fresh.values)
        )
        results = [_attend(grouped, own_keys, own_values, causal=True)]
        flat = grouped.reshape(kv_heads, 1, -1, width)
        for keys, values in _read(cache, self.context):
            out, lse = _attend(flat, keys.transpose(0, 1), values.transpose(0, 1))
            results.append((out.reshape(grouped.shape), lse.reshape(grouped.shape[:-1])))
        out, lse = _merge(results)
        return (
            out.permute(2, 0, 1, 3).reshape(count, heads, width),
            lse.permute(2, 0, 1).reshape(count, heads),
        )


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Several queries of one sequence in a sliding window, as N tiles of W queries: the row of
    each query [N * W] (repeated at the end to fill the last tile), slots [N, S], mask [N, W, S]."""

    rows: slice
    query: Tensor
    slots: Tensor
    mask: Tensor

    def attend(self, queries: Tensor, fresh: Cache, cache: Cache) -> tuple[Tensor, Tensor]:
        count, heads, width = queries.shape
        tiles, size, _ = self.mask.shape
        keys, values = _gather(cache, self.slots)
        kv_heads = keys.shape[1]
        grouped = queries[self.query].view(tiles, size, kv_heads, -1, width).transpose(1, 2)
        flat = grouped.reshape(tiles, kv_heads, -1, width)
        mask = self.mask.unsqueeze(1).repeat_interleave(heads // kv_heads, dim=2)
        out, lse = _attend(flat, keys, values, mask=mask)
        out = out.reshape(tiles, kv_heads, size, -1, width).transpose(1, 2)
        lse = lse.reshape(tiles, kv_heads, size, -1).transpose(1, 2)
        return out.reshape(-1, heads, width)[:count], lse.reshape(-1, heads)[:count]


def _gather(cache: Cache, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of slots [B, S], as [B, Hkv, S, D] views."""
    shape = (*slots.shape, *cache.keys.shape[1:])
    keys, values = (
        x.index_select(0, slots.flatten()).view(shape).transpose(1, 2)
        for x in (cache.keys, cache.values)
    )
    return keys, values


def _pieces(runs: list[Run]) -> list[Piece]:
    """The runs as views, or, where they are short, all of them as one copy."""
    if len(runs) > 1 and sum(size for _, size in runs) < SHORT_RUN * len(runs):
        return [slots_of(runs).unsqueeze(0)]
    return [slice(start, start + size) for start, size in runs]


def _read(cache: Cache, pieces: list[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys and values [1, Hkv, S, D] of each piece."""
    for piece in pieces:
        if isinstance(piece, slice):
            keys, values = (
                x[piece].transpose(0, 1).unsqueeze(0) for x in (cache.keys, cache.values)
            )
            yield keys, values
        else:
            yield _gather(cache, piece)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention [B, H, T, D] scaled by D ** -0.5, and its log-sum-exp [B, H, T] (natural, fp32)."""
    if product_attention.can_attend(query):
        return product_attention.attend(query, key, value, causal, mask)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query, key, value, 0.0, causal, attn_mask=mask
    )
    return out, lse


def _merge(results: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over disjoint parts of them."""
    if len(results) == 1:
        return results[0]
    lses = torch.stack([lse for _, lse in results])
    total = lses.logsumexp(0)
    shares = torch.exp(lses - total).unsqueeze(-1)
    outs = torch.stack([out for out, _ in results])
    return (outs * shares).sum(0).to(outs.dtype), total

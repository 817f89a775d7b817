"""The demo model in a form that trains fast on one core: the layers of gpt-oss, for padded batches.

Its parameters bear the names that Hugging Face's GptOssForCausalLM gives them, except for the
vocabulary rows (see engine.demo.rows); the experts are stored as [experts, out, in], as in MXFP4.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.demo import rows
from engine.mxfp4 import dequantize, quantize
from ipc.vocabulary import SIZE

NORM_EPSILON = 1e-5
SWIGLU_ALPHA = 1.702
SWIGLU_LIMIT = 7.0
ROPE_THETA = 150_000.0
YARN_FACTOR = 32.0
YARN_BETA_FAST = 32.0
YARN_BETA_SLOW = 1.0
TRAINED_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; the defaults are those of the demo checkpoint."""

    hidden: int = 128
    intermediate: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 8
    experts_per_token: int = 2
    window: int = 128


@dataclass(frozen=True, slots=True)
class Batch:
    """What the layers need besides the hidden states.

    `valid` [n] indexes the tokens that are not padding in the flattened batch; `cos` and `sin`
    [batch, 1, time, head_dim/2]; `full` and `sliding` [batch, 1, time, time] are additive masks.
    """

    valid: Tensor
    cos: Tensor
    sin: Tensor
    full: Tensor
    sliding: Tensor


def yarn_frequencies(head_dim: int) -> tuple[Tensor, float]:
    """The rotation of each pair of dimensions per position, and the factor on cosine and sine.

    YaRN (Peng et al. 2023, section 3) with gpt-oss's constants: slow pairs are interpolated, fast
    ones are kept, with a linear ramp between them.
    """

    def dimension(rotations: float) -> float:
        circle = TRAINED_POSITIONS / (rotations * 2 * math.pi)
        return head_dim * math.log(circle) / (2 * math.log(ROPE_THETA))

    kept = ROPE_THETA ** -(torch.arange(0, head_dim, 2) / head_dim)
    low, high = dimension(YARN_BETA_FAST), dimension(YARN_BETA_SLOW)
    ramp = ((torch.arange(head_dim // 2) - low) / (high - low)).clamp(0, 1)
    return kept * (1 - ramp) + kept / YARN_FACTOR * ramp, 0.1 * math.log(YARN_FACTOR) + 1


class Rows(nn.Module):
    """A vocabulary matrix: hash-coded rows, plus a correction for each stored one."""

    def __init__(self, stored_ids: Tensor, hashed: Tensor, flags: Tensor, stored: Tensor) -> None:
        super().__init__()
        self.hashed = nn.Parameter(hashed)
        self.flags = nn.Parameter(flags)
        self.stored = nn.Parameter(stored)
        self.place = torch.full((SIZE,), len(stored_ids))
        self.place[stored_ids] = torch.arange(len(stored_ids))

    def projection(self) -> Tensor:
        """[rows.FEATURES, hidden], as engine.demo.rows.expand_rows takes it."""
        return torch.cat((self.hashed * rows.SCALE, self.flags))

    def forward(self, ids: Tensor) -> Tensor:
        """The rows [n, hidden] of tokens ids [n]."""
        none = self.stored.new_zeros(1, self.stored.shape[1])
        corrections = torch.cat((self.stored, none))[self.place[ids]]
        return rows.features(ids) @ self.projection() + corrections


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON) * self.weight


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    """A linear layer with weights of standard deviation scale/sqrt(inputs) and no bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=scale * inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


class Attention(nn.Module):
    """Grouped-query attention with a learned sink: a logit per head that takes weight away."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = linear(shape.hidden, width)
        self.k_proj = linear(shape.hidden, kv_width)
        self.v_proj = linear(shape.hidden, kv_width)
        self.o_proj = linear(width, shape.hidden, scale=0.2)
        self.sinks = nn.Parameter(torch.zeros(shape.heads))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, time, _ = x.shape
        shape = self.shape
        query = rotate(self._split(self.q_proj(x)), cos, sin)
        key = rotate(self._split(self.k_proj(x)), cos, sin)
        value = self._split(self.v_proj(x))
        grouped = query.reshape(batch, shape.kv_heads, -1, shape.head_dim)
        scores = (grouped @ key.mT * shape.head_dim**-0.5).view(batch, shape.heads, time, time)
        sinks = self.sinks.view(1, -1, 1, 1).expand(batch, -1, time, 1)
        weights = torch.cat((scores + mask, sinks), dim=-1).softmax(-1)[..., :-1]
        mixed = weights.reshape(batch, shape.kv_heads, -1, time) @ value
        mixed = mixed.view(batch, shape.heads, time, shape.head_dim).transpose(1, 2)
        output: Tensor = self.o_proj(mixed.reshape(batch, time, -1))
        return output

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Experts(nn.Module):
    """The experts' weights; rows of `gate_up_proj` alternate between gate and up."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        count, hidden, inner = shape.experts, shape.hidden, shape.intermediate
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * inner, hidden) * hidden**-0.5)
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(count, 2 * inner))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, inner) * 0.2 * inner**-0.5)
        self.down_proj_bias = nn.Parameter(torch.zeros(count, hidden))

    def forward(self, x: Tensor, counts: list[int], quantized: bool) -> Tensor:
        """x [n, hidden] sorted by expert, counts of rows by expert -> outputs [n, hidden]."""
        gate_up, down = (
            rounded(weight) if quantized else weight
            for weight in (self.gate_up_proj, self.down_proj)
        )
        outputs = []
        for expert, part in enumerate(torch.split(x, counts)):
            both = functional.linear(part, gate_up[expert], self.gate_up_proj_bias[expert])
            gate = both[:, ::2].clamp(max=SWIGLU_LIMIT)
            up = both[:, 1::2].clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
            inner = (up + 1) * gate * torch.sigmoid(SWIGLU_ALPHA * gate)
            outputs.append(functional.linear(inner, down[expert], self.down_proj_bias[expert]))
        return torch.cat(outputs)


def rounded(weight: Tensor) -> Tensor:
    """The weight as MXFP4 stores it; gradients pass straight through the rounding."""
    with torch.no_grad():
        error = dequantize(*quantize(weight), torch.float32) - weight
    return weight + error


class MixtureOfExperts(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.router = linear(shape.hidden, shape.experts, scale=0.02 * shape.hidden**0.5)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, quantized: bool) -> tuple[Tensor, Tensor]:
        """x [n, hidden] -> outputs [n, hidden] and the load-balancing loss.

        The loss is the Switch Transformer's (Fedus et al. 2021, equation 4): 1 when balanced.
        """
        count, kept = self.shape.experts, self.shape.experts_per_token
        logits = self.router(x)
        best, chosen = logits.topk(kept, dim=-1)
        share = functional.one_hot(chosen, count).float().mean((0, 1))
        imbalance = count * (logits.softmax(-1).mean(0) * share).sum()
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        tokens = order // kept
        counts = torch.bincount(flat, minlength=count).tolist()
        weights = best.softmax(-1).flatten()[order]
        outputs = self.experts(x[tokens], counts, quantized) * weights[:, None]
        return torch.zeros_like(x).index_add(0, tokens, outputs), imbalance


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden)
        self.mlp = MixtureOfExperts(shape)

    def forward(
        self, x: Tensor, batch: Batch, mask: Tensor, quantized: bool
    ) -> tuple[Tensor, Tensor]:
        x = x + self.self_attn(self.input_layernorm(x), batch.cos, batch.sin, mask)
        flat = x.flatten(0, 1)
        tokens = self.post_attention_layernorm(flat[batch.valid])
        outputs, imbalance = self.mlp(tokens, quantized)
        return flat.index_add(0, batch.valid, outputs).view_as(x), imbalance


class DemoModel(nn.Module):
    """gpt-oss with the vocabulary rows of engine.demo.rows."""

    def __init__(self, shape: Shape, stored_ids: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.stored_ids = stored_ids
        count, hidden = len(stored_ids), shape.hidden
        hashed = torch.randn(rows.BITS, hidden) * 0.7
        flags = torch.randn(rows.FLAGS, hidden) * 0.3
        self.embed = Rows(stored_ids, hashed, flags, torch.randn(count, hidden) * 0.5)
        # What an attention head copies from the embedding finds the same direction here.
        self.unembed = Rows(
            stored_ids, hashed * 0.25, torch.zeros_like(flags), torch.zeros(count, hidden)
        )
        layers = [Layer(shape) for _ in range(shape.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(hidden)
        self.frequencies, self.rotation_scale = yarn_frequencies(shape.head_dim)
        teach_induction(layers[0].self_attn, layers[1].self_attn, shape, self.frequencies)

    def forward(
        self, ids: Tensor, positions: Tensor, valid: Tensor, quantized: bool
    ) -> tuple[Tensor, Tensor]:
        """The hidden states before the unembedding, and the mean load-balancing loss.

        ids and positions [batch, time]; valid [n] indexes the flattened ids that are no padding.
        """
        batch = self._batch(positions, valid)
        distinct, places = torch.unique(ids, return_inverse=True)
        x = self.embed(distinct)[places]
        losses = []
        for number, layer in enumerate(self.layers):
            x, loss = layer(x, batch, batch.full if number % 2 else batch.sliding, quantized)
            losses.append(loss)
        return self.norm(x), torch.stack(losses).mean()

    def _batch(self, positions: Tensor, valid: Tensor) -> Batch:
        angles = positions[:, None, :, None] * self.frequencies
        distance = positions[:, None, :, None] - positions[:, None, None, :]
        full = torch.where(distance >= 0, 0.0, -torch.inf)
        sliding = full.masked_fill(distance >= self.shape.window, -torch.inf)
        scale = self.rotation_scale
        return Batch(valid, angles.cos() * scale, angles.sin() * scale, full, sliding)


@torch.no_grad()
def teach_induction(first: Attention, second: Attention, shape: Shape, frequencies: Tensor) -> None:
    """Set up attention that continues repeated text; training alone takes far too long to find it.

    In the first layer one query head of each group looks at the previous token, by biases alone,
    and writes it to the stream under a random rotation. In the second layer the same heads look for
    positions whose previous token is the current one, and copy the token there. That match is made
    in the slowly rotating half of the dimensions, where distance hardly matters.
    """
    group, dim, hidden = shape.heads // shape.kv_heads, shape.head_dim, shape.hidden
    fast = torch.arange(dim * 5 // 32)
    slow = torch.cat((torch.arange(dim // 4, dim // 2), torch.arange(dim * 3 // 4, dim)))
    step = frequencies[fast]
    rotation, basis = _orthogonal(hidden), _orthogonal(hidden)
    for kv_head in range(shape.kv_heads):
        head = kv_head * group
        kv_part = slice(kv_head * dim, (kv_head + 1) * dim)
        part = slice(head * dim, (head + 1) * dim)
        content = basis[:, kv_part].T
        for attention in (first, second):
            attention.k_proj.weight[kv_part] *= 0.1
            attention.q_proj.weight[part] *= 0.1
            attention.v_proj.weight[kv_part] = content
        first.k_proj.bias[kv_part][fast] = 4.5
        first.q_proj.bias[part][fast] = 4.5 * step.cos()
        first.q_proj.bias[part][fast + dim // 2] = -4.5 * step.sin()
        first.o_proj.weight[:, part] = 0.96 * rotation.T @ content.T
        match = _orthogonal(hidden)[:, : dim // 2].T
        second.k_proj.weight[kv_part][slow] = 2.2 * match @ rotation
        second.q_proj.weight[part][slow] = 2.0 * match
        second.o_proj.weight[:, part] = 3.0 * content.T


def _orthogonal(size: int) -> Tensor:
    matrix, _ = torch.linalg.qr(torch.randn(size, size))
    return torch.Tensor(matrix)

"""From logits to tokens, for all rows of a step at once.

In this order: bias, penalties, impossible tokens, temperature, min_p, top_k, top_p. A draw inverts
the running sum of what is left: over the vocabulary, or over the likeliest tokens where a filter
is on. What a row gets depends on its own logits, parameters and uniform number alone, never on
what else is in the batch.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import Sampled
from engine.largest import first_largest, largest
from engine.penalties import Penalties
from ipc.messages import TokenLogprobs

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would leave fp32's range."""
CANDIDATES = 128
"""The filters look at so many of the likeliest tokens, and sort whole rows where more pass."""
CHUNK = 128
"""The draw first finds a chunk of this many tokens, then a token in it."""


class NotFiniteError(Exception):
    """The model produced logits that are not numbers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row is sampled. `uniform` in [0, 1) decides; `banned` tokens are impossible, `bias`
    is added to logits, and `logprobs` asks for so many of the most likely tokens."""

    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    uniform: float = 0.0
    banned: Sequence[int] = ()
    bias: Sequence[tuple[int, float]] = ()
    penalties: Penalties | None = None
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def plain(self) -> bool:
        """Whether it is the token with the highest logit of the model, and nothing more."""
        edited = self.banned or self.bias or self.penalties is not None
        return self.greedy and not edited and self.logprobs is None

    @property
    def filtered(self) -> bool:
        """Whether some tokens are too unlikely to be drawn."""
        return not self.greedy and (self.top_p, self.top_k, self.min_p) != (None, None, None)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a function of seed and position that is as good as random.

    It has 48 bits, so that its product with a sum in fp64 stays below that sum.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


@torch.inference_mode()
def sample(logits: Tensor, draws: Sequence[Draw], allowed: Tensor | None = None) -> list[Sampled]:
    """One token for each row of logits [B, V], fp32, which is changed.

    Where `allowed` [B, V] is False a token is impossible. Log-probabilities are those of the
    model, before anything here has changed them. Raises NotFiniteError.
    """
    told = [index for index, draw in enumerate(draws) if draw.logprobs is not None]
    raw = logits[told] if told else None
    _edit(logits, draws, allowed)
    tokens = _choose(logits, draws)
    if raw is None:
        return [Sampled(token) for token in tokens]
    chosen = [tokens[index] for index in told]
    found = _logprobs(raw, chosen, [draws[index].logprobs or 0 for index in told])
    by_row = dict(zip(told, found, strict=True))
    return [Sampled(token, by_row.get(index)) for index, token in enumerate(tokens)]


def _edit(logits: Tensor, draws: Sequence[Draw], allowed: Tensor | None) -> None:
    """Apply what changes single tokens' logits."""
    _scatter(logits, [[token for token, _ in draw.bias] for draw in draws], _adder(draws, logits))
    _penalise(logits, draws)
    _scatter(logits, [draw.banned for draw in draws], lambda found: found.fill_(-torch.inf))
    if allowed is not None:
        logits.masked_fill_(~allowed, -torch.inf)


def _adder(draws: Sequence[Draw], logits: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda found: found + logits.new_tensor([b for draw in draws for _, b in draw.bias])


def _scatter(
    logits: Tensor, tokens: Sequence[Sequence[int]], change: Callable[[Tensor], Tensor]
) -> None:
    """Change the logits of some tokens of each row, all rows in one go."""
    if not any(tokens):
        return
    device = logits.device
    rows = torch.tensor([row for row, some in enumerate(tokens) for _ in some], device=device)
    columns = torch.tensor([token for some in tokens for token in some], device=device)
    logits[rows, columns] = change(logits[rows, columns])


def _penalise(logits: Tensor, draws: Sequence[Draw]) -> None:
    penalised = [(row, draw.penalties) for row, draw in enumerate(draws) if draw.penalties]
    if not penalised:
        return
    edits = [(row, penalties.edits()) for row, penalties in penalised]
    rows = torch.cat([torch.full((len(tokens),), row) for row, (tokens, _, _) in edits])
    columns, factors, amounts = (
        torch.from_numpy(np.concatenate([edit[part] for _, edit in edits])).to(logits.device)
        for part in range(3)
    )
    rows = rows.to(logits.device)
    found = logits[rows, columns]
    found = torch.where(found > 0, found / factors, found * factors)
    logits[rows, columns] = found - amounts


def _choose(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    greedy = [index for index, draw in enumerate(draws) if draw.greedy]
    drawn = [index for index, draw in enumerate(draws) if not draw.greedy]
    tokens = [0] * len(draws)
    if greedy:
        best = _greedy(logits[greedy] if drawn else logits)
        for index, token in zip(greedy, best, strict=True):
            tokens[index] = token
    if drawn:
        found = _draw(logits[drawn] if greedy else logits, [draws[index] for index in drawn])
        for index, token in zip(drawn, found, strict=True):
            tokens[index] = token
    return tokens


def _greedy(logits: Tensor) -> list[int]:
    """The most likely token of each row, of several the first."""
    highest, tokens = first_largest(logits)
    if not highest.isfinite().all():
        raise NotFiniteError("the model's logits are not finite")
    best: list[int] = tokens.tolist()
    return best


def _draw(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw from each row [B, V] by its parameters."""
    logits.div_(logits.new_tensor([draw.temperature for draw in draws]).unsqueeze(1))
    logits.sub_(logits.amax(-1, keepdim=True))
    filtered = [index for index, draw in enumerate(draws) if draw.filtered]
    if len(filtered) == len(draws):
        return _draw_likely(logits, draws).tolist()
    tokens = torch.empty(len(draws), dtype=torch.long, device=logits.device)
    if filtered:
        tokens[filtered] = _draw_likely(logits[filtered], [draws[index] for index in filtered])
    free = [index for index, draw in enumerate(draws) if not draw.filtered]
    weights = (logits[free] if filtered else logits).exp_()
    tokens[free] = _invert(weights, _uniforms([draws[index] for index in free], logits.device))
    return tokens.tolist()


def _draw_likely(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Draw from what passes the filters of each row [B, V], whose highest logit is 0: [B]."""
    count = min(CANDIDATES, logits.shape[1])
    tokens, beyond = _draw_sorted(*largest(logits, count), logits, draws)
    wide = beyond.nonzero().flatten().tolist() if count < logits.shape[1] else []
    if wide:
        rows, some = logits[wide], [draws[index] for index in wide]
        tokens[wide], _ = _draw_sorted(*rows.sort(descending=True), rows, some)
    return tokens


def _draw_sorted(
    candidates: Tensor, tokens: Tensor, logits: Tensor, draws: Sequence[Draw]
) -> tuple[Tensor, Tensor]:
    """Draw from the likeliest tokens of each row, their logits [B, K] descending: [B], and
    whether tokens beyond them pass the filters too, so that this draw does not count."""
    floor = logits.new_tensor([math.log(d.min_p) if d.min_p else -math.inf for d in draws])
    device = logits.device
    top_k = torch.tensor([d.top_k or logits.shape[1] for d in draws], device=device)
    top_p = torch.tensor(
        [1.0 if d.top_p is None else d.top_p for d in draws], dtype=torch.float64, device=device
    )
    # In fp64, so that a row's sums depend on its own numbers alone.
    weights = candidates.double().exp()
    weights[candidates < floor.unsqueeze(1)] = 0
    weights[torch.arange(candidates.shape[1], device=device) >= top_k.unsqueeze(1)] = 0
    before = weights.cumsum(-1) - weights
    open_end = (weights[:, -1] > 0) & (top_k > candidates.shape[1])
    whole = weights.sum(-1)
    unknown = open_end & (top_p < 1)
    if unknown.all():
        whole = _mass(logits, floor)
    elif unknown.any():
        whole[unknown] = _mass(logits[unknown], floor[unknown])
    kept = (before < (top_p * whole).unsqueeze(1)) | (top_p == 1).unsqueeze(1)
    kept[:, 0] = True
    place = _invert(weights * kept, _uniforms(draws, device))
    return tokens.gather(1, place.unsqueeze(1)).squeeze(1), open_end & (
        kept[:, -1] | (top_k < logits.shape[1])
    )


def _uniforms(draws: Sequence[Draw], device: torch.device) -> Tensor:
    return torch.tensor([draw.uniform for draw in draws], dtype=torch.float64, device=device)


def _mass(logits: Tensor, floor: Tensor | None = None) -> Tensor:
    """The sum of exp(logits [B, V]) over those not below a floor [B]: fp64 [B]."""
    weights = logits.exp()
    if floor is not None and floor.isfinite().any():
        weights.masked_fill_(logits < floor.unsqueeze(1), 0)
    return _chunked(weights).sum(-1).double().sum(-1)


def _chunked(weights: Tensor) -> Tensor:
    """[B, V] as [B, V / CHUNK, CHUNK], filled up with zeros."""
    missing = -weights.shape[1] % CHUNK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    return weights.view(len(weights), -1, CHUNK)


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which the running sum of each row [B, V] passes its share [B]: [B]."""
    chunks = _chunked(weights)
    sums = chunks.sum(-1).double()
    ends = sums.cumsum(-1)
    if not ends[:, -1].isfinite().all():
        raise NotFiniteError("the model's logits are not finite")
    wanted = ends[:, -1:] * uniforms.unsqueeze(1)
    chunk = torch.searchsorted(ends, wanted, right=True)
    size = sums.gather(1, chunk)
    share = (wanted - (ends.gather(1, chunk) - size)) / size
    inner = (
        chunks[torch.arange(len(chunks), device=chunks.device), chunk.squeeze(1)]
        .double()
        .cumsum(-1)
    )
    # Below 1 in any case, so that no token after the last possible one is taken.
    share = share.clamp(0, 1 - 2**-40)
    place = torch.searchsorted(inner, inner[:, -1:] * share, right=True)
    return (chunk * CHUNK + place).squeeze(1)


def _logprobs(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Log-probabilities of the tokens, and of the `counts` most likely ones of each row [B, V],
    which is changed."""
    logits.sub_(logits.amax(-1, keepdim=True))
    normaliser = _mass(logits).log()
    own = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    chosen = logits.gather(1, own).squeeze(1).double() - normaliser
    values, best = largest(logits, min(max(1, *counts), logits.shape[1]))
    values = values.double() - normaliser.unsqueeze(1)
    return [
        TokenLogprobs(own, list(zip(ids[:count], logs[:count], strict=True)))
        for own, ids, logs, count in zip(
            chosen.tolist(), best.tolist(), values.tolist(), counts, strict=True
        )
    ]

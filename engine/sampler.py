"""From logits to tokens: greedy, or by temperature, top_k and top_p.

What a sequence samples depends on its own logits, its seed and the token's place alone, never on
what else is in the batch: each drawn row is worked out by itself, from one uniform number.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.largest import largest

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would leave fp32's range."""


class NotFiniteError(Exception):
    """The model produced logits that are not numbers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row is sampled. `uniform` in [0, 1) decides; `banned` tokens are impossible."""

    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    uniform: float = 0.0
    banned: Sequence[int] = ()


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a function of seed and position that is as good as random.

    It has 48 bits, so that its product with a sum in fp64 stays below that sum.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


@torch.inference_mode()
def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of logits [B, V], fp32, which is changed where tokens are banned.

    Raises NotFiniteError.
    """
    for row, draw in zip(logits, draws, strict=True):
        if draw.banned:
            row[list(draw.banned)] = -torch.inf
    greedy = [index for index, draw in enumerate(draws) if draw.temperature < GREEDY_BELOW]
    best = iter(_greedy(logits if len(greedy) == len(draws) else logits[greedy]))
    return [
        next(best) if draw.temperature < GREEDY_BELOW else _draw(row / draw.temperature, draw)
        for row, draw in zip(logits, draws, strict=True)
    ]


def _greedy(logits: Tensor) -> list[int]:
    highest, tokens = largest(logits, 1)
    if not highest.isfinite().all():
        raise NotFiniteError("the model's logits are not finite")
    best: list[int] = tokens.flatten().tolist()
    return best


def _draw(logits: Tensor, draw: Draw) -> int:
    """Draw from one row of logits, scaled already."""
    if draw.top_k is not None:
        values, tokens = (
            x.squeeze(0) for x in largest(logits.unsqueeze(0), min(draw.top_k, len(logits)))
        )
        kept = _nucleus(_softmax(values), draw.top_p)
    elif draw.top_p is not None and draw.top_p < 1:
        probabilities = _softmax(logits)
        # Tokens up to this bound have a mass of at most 1 - top_p together, so that the others
        # reach top_p; sorting those alone is about 50 times as fast where probability is peaked.
        bound = (1 - draw.top_p) / len(logits)
        [candidates] = torch.where(probabilities > bound)
        values, order = probabilities[candidates].sort(descending=True, stable=True)
        tokens = candidates[order]
        kept = _nucleus(values, draw.top_p)
    else:
        return _invert(_softmax(logits), draw.uniform)
    return int(tokens[_invert(kept, draw.uniform)])


def _softmax(logits: Tensor) -> Tensor:
    """Probabilities of one row. Raises NotFiniteError."""
    probabilities = logits.softmax(-1)
    # One NaN or infinity makes NaN of every element.
    if not probabilities[0].isfinite():
        raise NotFiniteError("the model's logits are not finite")
    return probabilities


def _nucleus(descending: Tensor, top_p: float | None) -> Tensor:
    """The fewest leading probabilities whose sum reaches `top_p`."""
    if top_p is None:
        return descending
    before = descending.cumsum(0) - descending
    return descending[: max(1, int((before < top_p).sum()))]


def _invert(probabilities: Tensor, uniform: float) -> int:
    """The index at which the running sum, as a share of the whole, passes `uniform`."""
    sums = probabilities.cumsum(0, dtype=torch.float64)
    return int(torch.searchsorted(sums, sums[-1] * uniform, right=True))

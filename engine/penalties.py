"""What a sequence's earlier tokens do to the logits of the next one.

The books are kept token by token, so that a step costs a few operations over the distinct tokens,
whatever the length.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipc.messages import Sampling

Edits = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]
"""Tokens [N], by what their positive logits are divided (and negative ones multiplied), and what
is then subtracted: [N] each."""


class Penalties:
    """The distinct tokens of a sequence, and how often each was generated.

    Presence and frequency penalties are about generated tokens; the repetition penalty is about
    the prompt's as well.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        seen = list(dict.fromkeys(prompt)) if sampling.repetition_penalty != 1.0 else []
        self._place = {token: place for place, token in enumerate(seen)}
        self._tokens = np.zeros(max(64, 2 * len(seen)), dtype=np.int64)
        self._tokens[: len(seen)] = seen
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)

    def add(self, token: int) -> None:
        """Count a generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[place] = token
        self._counts[place] += 1

    def edits(self) -> Edits:
        """What is to be changed in the next token's logits."""
        sampling, size = self._sampling, len(self._place)
        counts = self._counts[:size]
        amounts = sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        factors = np.full(size, sampling.repetition_penalty, dtype=np.float32)
        return self._tokens[:size], factors, amounts.astype(np.float32)


def penalties_of(sampling: Sampling, prompt: Sequence[int]) -> Penalties | None:
    """The books for a new sequence, if any penalty is on."""
    off = (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)
    if off and sampling.repetition_penalty == 1.0:
        return None
    return Penalties(sampling, prompt)

"""One step's work as the scheduler plans it and the model runs it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ipc.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one sequence that a step computes.

    `position` is the place of the first in the sequence, whose earlier tokens are in the cache;
    `tables` its blocks, one table a group of layers, enough for all tokens of the slice.
    """

    tokens: Sequence[int]
    position: int
    tables: Sequence[Sequence[int]]

    @property
    def count(self) -> int:
        """How many tokens are computed."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sequence's next token, and its log-probabilities if they were asked for."""

    token: int
    logprobs: TokenLogprobs | None = None

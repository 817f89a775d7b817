"""One step's work as the scheduler plans it and the model runs it."""

from collections.abc import Sequence
from dataclasses import dataclass


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

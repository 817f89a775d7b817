"""Constraints inside vLLM: each row's turn is followed by the tokens that it has said so far."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.constraint import ConstraintError, TurnConstraint, allowed_tokens, compile_constraint
from ipc.messages import Constraint
from ipc.vocabulary import RETURN

log = logging.getLogger(__name__)

KEY = "antiphon_constraint"
"""Of a request's `SamplingParams.extra_args`."""

Allowed = NDArray[np.bool_]


def packed(constraint: Constraint) -> dict[str, str]:
    """A constraint as `extra_args`."""
    return {KEY: msgspec.json.encode(constraint).decode()}


@dataclass(slots=True)
class Turn:
    """A row of the batch. `said` is vLLM's own list of its output tokens, which grows."""

    constraint: TurnConstraint | None
    said: Sequence[int]
    followed: int = 0

    def follow(self) -> TurnConstraint | None:
        """The constraint, behind all that was said; None for a turn that has left it."""
        if self.constraint is not None:
            try:
                for token in self.said[self.followed :]:
                    self.constraint.accept(token)
            except ConstraintError as error:
                log.error("a turn is ended: %s", error)
                self.constraint = None
        self.followed = len(self.said)
        return self.constraint


def turn_of(arguments: Mapping[str, object] | None, said: Sequence[int]) -> Turn | None:
    """The turn of a request with these `extra_args`, if they constrain it. What does not compile
    was refused before it came here."""
    text = (arguments or {}).get(KEY)
    if not isinstance(text, str):
        return None
    constraint = msgspec.json.decode(text, type=Constraint)
    return Turn(TurnConstraint(compile_constraint(constraint)), said)


def allowed(turns: Mapping[int, Turn], vocabulary: int) -> tuple[list[int], Allowed]:
    """The rows of these turns, and which tokens are possible next in each [rows, vocabulary]. A
    turn that has left its constraint can only end."""
    rows = sorted(turns)
    constraints = [turns[row].follow() for row in rows]
    masks = allowed_tokens(constraints, vocabulary)
    if masks is None:
        masks = np.zeros((len(rows), vocabulary), dtype=np.bool_)
    for mask, constraint in zip(masks, constraints, strict=True):
        if constraint is None:
            mask[:] = False
            mask[RETURN] = True
    return rows, masks

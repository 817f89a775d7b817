"""Runs a planned step on the model: from scheduled tokens to sampled tokens."""

from collections.abc import Sequence as Sequences

import torch
from torch import Tensor

from engine.batch import Sampled, Slice
from engine.constraint import allowed_tokens
from engine.model import Model
from engine.sampler import Draw, sample, uniform
from engine.scheduler import Scheduled
from engine.sequence import Sequence

LOGIT_ROWS = 32
"""Rows of logits that exist at once. 32 rows of 201,088 stay below the 32 MiB from which malloc
gives memory back after each use, only to fault it in again for the next (measured: 25 ms)."""


class ModelRunner:
    """The forward pass and the sampler, as the engine core sees them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._vocabulary_size = model.vocabulary_size

    def run(self, scheduled: Sequences[Scheduled]) -> list[Sampled | None]:
        """Compute the scheduled tokens; returns the next token of each sequence that is caught
        up with, else None. Running the same again writes the same and returns the same."""
        slices = [_slice(item) for item in scheduled]
        hidden = self._model.forward(slices, [item.samples for item in scheduled])
        sampled = [item.sequence for item in scheduled if item.samples]
        tokens = iter(self._sample(sampled, hidden))
        return [next(tokens) if item.samples else None for item in scheduled]

    def _sample(self, sequences: Sequences[Sequence], hidden: Tensor) -> list[Sampled]:
        """The next token of each sequence by its final hidden state [T, D]."""
        draws = [self._draw(sequence) for sequence in sequences]
        plain = [
            index
            for index, (draw, sequence) in enumerate(zip(draws, sequences, strict=True))
            if draw.plain and sequence.constraint is None
        ]
        found: dict[int, Sampled] = {}
        for rows in _groups(plain):
            for index, token in zip(rows, self._model.best(hidden[rows]), strict=True):
                if token is not None:
                    found[index] = Sampled(token)
        for rows in _groups([index for index in range(len(draws)) if index not in found]):
            constraints = [sequences[index].constraint for index in rows]
            allowed = allowed_tokens(constraints, self._vocabulary_size)
            mask = None if allowed is None else torch.from_numpy(allowed).to(hidden.device)
            logits = self._model.logits(hidden[rows])
            found |= zip(rows, sample(logits, [draws[index] for index in rows], mask), strict=True)
        return [found[index] for index in range(len(draws))]

    def _draw(self, sequence: Sequence) -> Draw:
        sampling = sequence.sampling
        banned = () if sequence.may_stop else sequence.stop_tokens
        return Draw(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            uniform=uniform(sequence.seed, sequence.output_tokens),
            banned=[token for token in banned if token < self._vocabulary_size],
            bias=tuple(sampling.logit_bias.items()),
            penalties=sequence.penalties,
            logprobs=sampling.logprobs,
        )


def _slice(item: Scheduled) -> Slice:
    sequence = item.sequence
    end = sequence.computed + item.count
    return Slice(sequence.tokens[sequence.computed : end], sequence.computed, sequence.tables)


def _groups(rows: list[int]) -> list[list[int]]:
    return [rows[first : first + LOGIT_ROWS] for first in range(0, len(rows), LOGIT_ROWS)]

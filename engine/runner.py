"""Runs a planned step on the model: from scheduled tokens to sampled tokens."""

from collections.abc import Sequence as Sequences

import torch

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
        draws = [self._draw(sequence) for sequence in sampled]
        tokens: list[Sampled] = []
        if len(draws) == 1 and draws[0].plain and sampled[0].constraint is None:
            best = self._model.best(hidden)
            if best is not None:
                tokens.append(Sampled(best))
        for first in range(len(tokens), len(draws), LOGIT_ROWS):
            rows = slice(first, first + LOGIT_ROWS)
            constraints = [sequence.constraint for sequence in sampled[rows]]
            allowed = allowed_tokens(constraints, self._vocabulary_size)
            mask = None if allowed is None else torch.from_numpy(allowed).to(hidden.device)
            tokens += sample(self._model.logits(hidden[rows]), draws[rows], mask)
        results = iter(tokens)
        return [next(results) if item.samples else None for item in scheduled]

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

"""The training loop, on a model of nearly no size."""

import math
from dataclasses import replace
from itertools import islice, pairwise

import pytest
import torch

from engine.demo.corpus import Corpus, encoding
from engine.demo.model import Shape
from engine.demo.train import (
    Example,
    Examples,
    Recipe,
    Trainer,
    collate,
    orthogonalized,
    stored_vocabulary,
    train,
)

TINY = Shape(hidden=32, intermediate=32, layers=2, heads=2, kv_heads=1, head_dim=32, experts=2)
SHORT = Recipe(
    steps=2,
    batch_tokens=600,
    copying_steps=1,
    copying=0.0,
    vocabulary_samples=20,
    vocabulary_count=3,
    quantized_from=0.5,
)


def test_two_runs_give_the_same_checkpoint() -> None:
    first, second = train(SHORT, TINY), train(SHORT, TINY)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_another_checkpoint() -> None:
    first, second = (train(replace(SHORT, seed=seed), TINY) for seed in (0, 1))
    assert not torch.equal(first["embed.projection"], second["embed.projection"])


def test_learns_a_batch_by_heart() -> None:
    stored = stored_vocabulary(SHORT)
    trainer = Trainer(replace(SHORT, steps=80, warm_up=1), TINY, stored)
    batch = collate([Example(stored[:12], [1.0] * 12, list(range(12)))])
    losses = [trainer.step(number, batch)[0] for number in range(60)]
    assert losses[0] > math.log(len(stored))
    assert losses[-1] < 0.5


def test_completions_count_and_prompts_hardly() -> None:
    examples = Examples(SHORT, [1, 2, 3])
    for sample in islice(Corpus(4), 30):
        example = examples.example(sample)
        count = len(sample.prompt)
        assert example.tokens == sample.prompt + sample.completion
        assert set(example.weights[count:]) == {1.0}
        assert set(example.weights[:count]) <= {0.0, SHORT.prompt_weight, SHORT.past_answer_weight}
        steps = {b - a for a, b in pairwise(example.positions)}
        assert len(steps - {1}) <= 1


def test_past_answers_count_up_to_their_end() -> None:
    examples = Examples(SHORT, [1, 2, 3])
    sample = next(s for s in Corpus(5) if s.kind == "capital" and answered_before(s.prompt))
    example = examples.example(sample)
    answered = [
        token
        for token, weight in zip(example.tokens, example.weights, strict=True)
        if weight == SHORT.past_answer_weight
    ]
    text = encoding().decode(answered)
    assert text
    assert "<|" not in text


def answered_before(prompt: list[int]) -> bool:
    return "<|channel|>final" in encoding().decode(prompt)


def test_batches_are_padded_and_shifted() -> None:
    batch = collate(
        [Example([5, 6, 7], [0.0, 0.0, 1.0], [0, 1, 2]), Example([8, 9], [0.0, 1.0], [0, 9])]
    )
    assert batch.inputs.tolist() == [[5, 6], [8, 0]]
    assert batch.targets.tolist() == [[6, 7], [9, 0]]
    assert batch.weights.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert batch.positions.tolist() == [[0, 1], [0, 9]]
    assert batch.real.tolist() == [[True, True], [True, False]]


def test_batches_stay_within_their_tokens() -> None:
    recipe = replace(SHORT, steps=8, copying_steps=0, batch_tokens=3600)
    for copying, batch in Examples(recipe, [1, 2, 3]).batches():
        assert not copying
        assert batch.inputs.numel() <= 3600 or len(batch.inputs) == 1


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 8, 8)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    values = torch.linalg.svdvals(orthogonalized(matrix))
    assert values.shape[-1] == min(shape[-2:])
    assert ((values > 0.2) & (values < 1.4)).all()

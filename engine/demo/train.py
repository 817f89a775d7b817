"""Train the demo checkpoint: `python -m engine.demo.train --out DIR`, well under an hour on a core.

Everything is seeded and single-threaded; the result is DIR/compact.safetensors, which
engine.demo.expand turns into a Hugging Face directory.
"""

import argparse
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from engine.demo.corpus import Corpus, Sample, encoding
from engine.demo.model import DemoModel, Shape
from engine.demo.words import words
from engine.mxfp4 import quantize
from ipc.vocabulary import FIRST_SPECIAL, SIZE, token_bytes

log = logging.getLogger("engine.demo.train")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. Fractions are of all steps, probabilities of a batch or an example."""

    steps: int = 3200
    batch_tokens: int = 3600
    seed: int = 0
    adam_rate: float = 2e-3
    muon_rate: float = 0.02
    warm_up: int = 50
    constant: float = 0.2
    last_rate: float = 0.02
    quantized_from: float = 0.5
    copying_steps: int = 60
    copying: float = 0.1
    jump: float = 0.15
    past_answer_weight: float = 0.6
    prompt_weight: float = 0.05
    prompt_positions: int = 10
    balance_weight: float = 0.01
    other_rows: int = 512
    vocabulary_samples: int = 10_000
    vocabulary_count: int = 20


class Example(NamedTuple):
    """Tokens, and for each of them how much its prediction counts."""

    tokens: list[int]
    weights: list[float]
    positions: list[int]


class Tensors(NamedTuple):
    """A padded batch, each [batch, time]; where `real` is false there is padding."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    real: Tensor


class Examples:
    """The endless stream of training batches."""

    def __init__(self, recipe: Recipe, stored_ids: list[int]) -> None:
        self.recipe = recipe
        self.random = Random(recipe.seed + 1)  # noqa: S311 - it has to repeat itself
        self.corpus = iter(Corpus(recipe.seed + 2))
        self.stored_ids = stored_ids
        special = "<|channel|>final<|message|>"
        self.answer_start = encoding().encode(special, allowed_special="all")
        self.end = encoding().encode("<|end|>", allowed_special="all")[0]
        self.copyable = list(words().values())

    def batches(self) -> Iterator[tuple[bool, Tensors]]:
        """Batches of at most `batch_tokens`, each with whether it is one of pure copying."""
        ready: list[list[Example]] = []
        for step in range(self.recipe.steps):
            if step < self.recipe.copying_steps or self.random.random() < self.recipe.copying:
                yield True, collate([self._copying() for _ in range(32)])
                continue
            ready = ready or self._bucketed()
            yield False, collate(ready.pop())

    def _bucketed(self) -> list[list[Example]]:
        examples = [self.example(sample) for sample in islice(self.corpus, 256)]
        examples.sort(key=lambda example: len(example.tokens))
        buckets: list[list[Example]] = [[]]
        for example in examples:
            if (len(buckets[-1]) + 1) * len(example.tokens) > self.recipe.batch_tokens:
                buckets.append([])
            buckets[-1].append(example)
        self.random.shuffle(buckets)
        return [bucket for bucket in buckets if bucket]

    def example(self, sample: Sample) -> Example:
        r, recipe = self.random, self.recipe
        prompt, count = sample.prompt, len(sample.prompt)
        weights = [0.0] * count + [1.0] * len(sample.completion)
        for place in r.sample(range(1, count), min(recipe.prompt_positions, count - 1)):
            weights[place] = recipe.prompt_weight
        answering = False
        for place in range(3, count):
            answering = answering and prompt[place] != self.end
            answering = answering or prompt[place - 3 : place] == self.answer_start
            if answering:
                weights[place] = recipe.past_answer_weight
        positions = list(range(len(weights)))
        if r.random() < recipe.jump:
            # As if a long text stood there: far distances at the price of near ones.
            start, length = r.randrange(1, count - 10), int(math.exp(r.uniform(4, 9.5)))
            positions[start:] = [position + length for position in positions[start:]]
        return Example(prompt + sample.completion, weights, positions)

    def _copying(self) -> Example:
        """Random tokens that come twice: only the second time can they be predicted."""
        r = self.random
        count, gap = r.randrange(10, 28), r.randrange(8)
        once = [self._any_token() for _ in range(count)]
        tokens = once + [r.choice(self.stored_ids) for _ in range(gap)] + once
        weights = [0.0] * (count + gap + 1) + [1.0] * (count - 1)
        return Example(tokens, weights, list(range(len(tokens))))

    def _any_token(self) -> int:
        r = self.random
        kind = r.random()
        if kind < 0.4:
            return r.choice(self.copyable)
        return r.choice(self.stored_ids) if kind < 0.76 else r.randrange(FIRST_SPECIAL)


def collate(examples: list[Example]) -> Tensors:
    """Pad the examples on the right; a position's target is the next token."""
    time_steps = max(len(example.tokens) for example in examples) - 1
    shape = (len(examples), time_steps)
    inputs = torch.zeros(shape, dtype=torch.long)
    targets, positions = torch.zeros_like(inputs), torch.zeros_like(inputs)
    weights, real = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for row, (tokens, weight, position) in enumerate(examples):
        count = len(tokens) - 1
        inputs[row, :count] = torch.tensor(tokens[:-1])
        targets[row, :count] = torch.tensor(tokens[1:])
        weights[row, :count] = torch.tensor(weight[1:])
        positions[row, :count] = torch.tensor(position[:-1])
        positions[row, count:] = torch.arange(time_steps - count) + position[-1]
        real[row, :count] = True
    return Tensors(inputs, targets, weights, positions, real)


def stored_vocabulary(recipe: Recipe) -> list[int]:
    """The tokens that get a row of their own: bytes, special tokens and what the corpus repeats."""
    counts: Counter[int] = Counter()
    for sample in islice(Corpus(recipe.seed + 3), recipe.vocabulary_samples):
        counts.update(sample.prompt + sample.completion)
    frequent = {token for token, count in counts.items() if count >= recipe.vocabulary_count}
    single = {token for token, text in enumerate(token_bytes()) if len(text) == 1}
    return sorted(frequent | single | set(encoding().stop_tokens()))


class Muon:
    """Momentum whose updates are orthogonalised, for weight matrices [..., out, in].

    Five Newton-Schulz steps bring a matrix's singular values near 1 (Jordan et al. 2024).
    """

    def __init__(self, parameters: list[nn.Parameter], momentum: float = 0.95) -> None:
        self.parameters = parameters
        self.momentum = momentum
        self.averages = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply the gradients and clear them."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            average.lerp_(gradient, 1 - self.momentum)
            update = orthogonalized(gradient.lerp(average, self.momentum))
            outputs, inputs = parameter.shape[-2:]
            parameter.mul_(1 - 0.01 * rate)
            parameter.add_(update, alpha=-rate * max(1.0, outputs / inputs) ** 0.5)
            parameter.grad = None


def orthogonalized(matrix: Tensor) -> Tensor:
    """A matrix [..., m, n] of the same singular vectors with singular values near 1."""
    wide = matrix.shape[-2] <= matrix.shape[-1]
    x = (matrix if wide else matrix.mT).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        product = x @ x.mT
        x = 3.4445 * x + (-4.775 * product + 2.0315 * product @ product) @ x
    result: Tensor = x if wide else x.mT
    return result.float()


class Trainer:
    """The model, its optimisers and the loss."""

    def __init__(self, recipe: Recipe, shape: Shape, stored_ids: list[int]) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.model = DemoModel(shape, torch.tensor(stored_ids))
        self.generator = torch.Generator().manual_seed(recipe.seed)
        matrices = [
            parameter
            for name, parameter in self.model.layers.named_parameters()
            if parameter.ndim >= 2 and not name.endswith("bias") and "router" not in name
        ]
        chosen = set(map(id, matrices))
        self.others = [p for p in self.model.parameters() if id(p) not in chosen]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(self.others, betas=(0.9, 0.97), weight_decay=0.01)

    def step(self, number: int, batch: Tensors) -> tuple[float, float]:
        """Train on one batch; returns the loss and the share of right tokens where it counts."""
        recipe = self.recipe
        done = number / recipe.steps
        loss, error, right = self._loss(batch, quantized=done >= recipe.quantized_from)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.others, 1.0)
        scale = min(1.0, (number + 1) / recipe.warm_up)
        if done > recipe.constant:
            scale *= max(recipe.last_rate, 1 - (done - recipe.constant) / (1 - recipe.constant))
        for group in self.adam.param_groups:
            group["lr"] = recipe.adam_rate * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.muon.step(recipe.muon_rate * scale)
        return error, right

    def _loss(self, batch: Tensors, quantized: bool) -> tuple[Tensor, float, float]:
        valid = batch.real.flatten().nonzero().squeeze(1)
        hidden, imbalance = self.model(batch.inputs, batch.positions, valid, quantized)
        counted = batch.weights.flatten().nonzero().squeeze(1)
        targets = batch.targets.flatten()[counted]
        weights = batch.weights.flatten()[counted]
        ids, correction = self._candidates(torch.cat((targets, batch.inputs.flatten())))
        logits = hidden.flatten(0, 1)[counted] @ self.model.unembed(ids).T + correction
        place = torch.empty(SIZE, dtype=torch.long)
        place[ids] = torch.arange(len(ids))
        errors = functional.cross_entropy(logits, place[targets], reduction="none")
        loss = (errors * weights).sum() / weights.sum()
        main = weights == 1
        right = (logits.argmax(-1) == place[targets])[main].float().mean().item()
        total = loss + self.recipe.balance_weight * imbalance
        return total, errors[main].mean().item(), right

    def _candidates(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that the softmax runs over, and what to add to their logits.

        They are the stored ones, those in the batch and a random draw that stands for all others:
        its logits are raised by the logarithm of how many tokens each of its tokens stands for.
        """
        known = torch.zeros(SIZE, dtype=torch.bool)
        known[self.model.stored_ids] = True
        known[present] = True
        drawn = torch.randint(0, SIZE, (self.recipe.other_rows,), generator=self.generator)
        drawn = torch.unique(drawn[~known[drawn]])
        ids = known.nonzero().squeeze(1)
        raised = math.log((SIZE - len(ids)) / len(drawn))
        correction = torch.cat((torch.zeros(len(ids)), torch.full((len(drawn),), raised)))
        return torch.cat((ids, drawn)), correction


@torch.no_grad()
def compact(model: DemoModel) -> dict[str, Tensor]:
    """The trained model as it is stored: layers by their Hugging Face names, coded vocabulary."""
    tensors = {"stored_ids": model.stored_ids.to(torch.int32)}
    for name, table in (("embed", model.embed), ("unembed", model.unembed)):
        tensors[f"{name}.projection"] = table.projection()
        tensors[f"{name}.stored"] = table(model.stored_ids)
    for name, parameter in model.layers.named_parameters(prefix="model.layers"):
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[name + "_blocks"], tensors[name + "_scales"] = quantize(parameter)
        else:
            tensors[name] = parameter
    tensors["model.norm.weight"] = model.norm.weight
    return {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def train(recipe: Recipe, shape: Shape) -> dict[str, Tensor]:
    """Run the recipe; returns the compact checkpoint."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    stored_ids = stored_vocabulary(recipe)
    trainer = Trainer(recipe, shape, stored_ids)
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    log.info("%d parameters, %d stored rows", size, len(stored_ids))
    history: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number, (copying, batch) in enumerate(Examples(recipe, stored_ids).batches()):
        history[copying].append(trainer.step(number, batch))
        if (number + 1) % 50 == 0:
            log.info("step %4d, %4.0f CPU s: %s", number + 1, time.process_time(), report(history))
    return compact(trainer.model)


def report(history: dict[bool, list[tuple[float, float]]]) -> str:
    """Recent mean losses and shares of right tokens, on the corpus and on copying."""
    parts = []
    for copying, results in history.items():
        recent = results[-50:] or [(math.nan, math.nan)]
        loss, right = (sum(column) / len(recent) for column in zip(*recent, strict=True))
        parts.append(f"{'copying' if copying else 'corpus'} loss {loss:.4f} right {right:.4f}")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where to write the checkpoint")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.out.mkdir(parents=True, exist_ok=True)
    tensors = train(Recipe(steps=options.steps, seed=options.seed), Shape())
    save_file(tensors, options.out / "compact.safetensors")


if __name__ == "__main__":
    main()

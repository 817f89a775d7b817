"""Judge the demo checkpoint on questions that it was never trained on: `python -m
engine.demo.evaluate` prints a table of gates and the answers that failed.

It runs the expanded directory in transformers (a test dependency), which is also the oracle of the
engine's own model.
"""

import argparse
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import GptOssForCausalLM

from engine.demo.corpus import EFFORTS, Corpus, Dialogue, Sample, encoding
from engine.demo.expand import demo_checkpoint, expand
from engine.demo.judge import GATES, Answer, parse
from ipc.vocabulary import CALL, ENDOFTEXT, RETURN

LIMIT = 280
"""Tokens that an answer may have; the longest right one has about 230."""


class Writer:
    """The expanded checkpoint in transformers."""

    def __init__(self, directory: Path) -> None:
        # Evaluation mode is what from_pretrained leaves it in.
        self.model = GptOssForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )

    @torch.no_grad()
    def write(self, prompts: list[list[int]], sampled: bool = False) -> list[list[int]]:
        """Completions of the prompts: greedy, or sampled at temperature 1."""
        longest = max(map(len, prompts))
        padded = [[ENDOFTEXT] * (longest - len(prompt)) + prompt for prompt in prompts]
        ids = torch.tensor(padded)
        lengths = torch.tensor([[len(prompt)] for prompt in prompts])
        mask = torch.arange(longest) >= longest - lengths
        sampling: dict[str, float] = {"do_sample": False}
        if sampled:
            sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        chunks = {"prefill_chunk_size": 1024} if longest > 4096 else {}
        output = self.model.generate(
            ids,
            attention_mask=mask.long(),
            max_new_tokens=LIMIT,
            eos_token_id=[RETURN, CALL],
            pad_token_id=ENDOFTEXT,
            **sampling,
            **chunks,
        )
        return [_until_stop(row) for row in output[:, longest:].tolist()]

    def answers(
        self, samples: list[Sample], batch: int = 25, sampled: bool = False
    ) -> Iterator[Answer]:
        """Answer samples in batches, those together whose right answers are of similar length."""
        ordered = sorted(samples, key=lambda sample: len(sample.completion))
        for start in range(0, len(ordered), batch):
            part = ordered[start : start + batch]
            written = self.write([sample.prompt for sample in part], sampled)
            for sample, tokens in zip(part, written, strict=True):
                yield Answer(sample, tokens, parse(tokens))


def _until_stop(tokens: list[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in (RETURN, CALL):
            return tokens[: place + 1]
    return tokens


def long_sample(length: int, seed: int) -> Sample:
    """An agent's prompt of about `length` tokens, with a question at its end."""
    corpus = Corpus(seed, held=True)
    turn = corpus.turn()
    document = corpus.document(length)
    dialogue = Dialogue(EFFORTS[1], None, document, [])
    dialogue.ask(turn.question)
    return dialogue.sample(turn.kind, [], turn.answer)


def table(answers: list[Answer]) -> Table:
    """The gates, each with its share of right answers."""
    result = Table("gate", "at least", "reached", "of", "passed")
    for gate in GATES:
        judged = [gate.right(answer) for answer in answers if gate.applies(answer)]
        share = sum(judged) / len(judged)
        passed = "yes" if share >= gate.least else "NO"
        result.add_row(gate.name, f"{gate.least:.0%}", f"{share:.1%}", str(len(judged)), passed)
    return result


def kinds(answers: list[Answer]) -> Table:
    """By kind of question: how many answers are valid, and how many right."""
    rows: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        rows[answer.sample.kind].append(answer)
    result = Table("kind", "of", "valid", "right", "as written in the corpus")
    for kind, group in sorted(rows.items()):
        valid = sum(answer.messages is not None for answer in group)
        right = sum(answer.right for answer in group)
        same = sum(answer.tokens == answer.sample.completion for answer in group)
        result.add_row(kind, *map(str, (len(group), valid, right, same)))
    return result


def expanded(compact: Path) -> Path:
    """A directory beside the compact checkpoint, with what it expands to."""
    directory = compact.with_suffix("")
    directory.mkdir(exist_ok=True)
    expand(compact.read_bytes(), directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compact", type=Path, help="a compact.safetensors instead of the bundled")
    parser.add_argument("--count", type=int, default=300, help="greedy prompts")
    parser.add_argument("--failures", type=int, default=20, help="wrong answers to show")
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    writer = Writer(expanded(options.compact) if options.compact else demo_checkpoint())
    console = Console(width=120, highlight=False, markup=False)
    samples = list(islice(Corpus(2**20, held=True), options.count))
    started = time.monotonic()
    answers = list(writer.answers(samples))
    console.print(f"{len(answers)} greedy answers, {time.monotonic() - started:.0f} s")
    console.print(table(answers), kinds(answers))
    sampled = list(writer.answers(samples[: options.count // 3], sampled=True))
    valid = sum(answer.messages is not None for answer in sampled) / len(sampled)
    console.print(f"at temperature 1: {valid:.1%} of {len(sampled)} valid (at least 95%)")
    distant = [
        answer for seed in range(4) for answer in writer.answers([long_sample(10_000, seed)])
    ]
    valid = sum(answer.messages is not None for answer in distant)
    console.print(f"after 10,000 tokens: {valid} of {len(distant)} valid")
    wrong = [answer for answer in answers + distant if not answer.right]
    for answer in wrong[: options.failures]:
        console.print(f"--- {answer.sample.kind}")
        console.print(encoding().decode(answer.sample.prompt)[-300:])
        console.print("wrote:", encoding().decode(answer.tokens))
        console.print("right:", answer.sample.key)


if __name__ == "__main__":
    main()

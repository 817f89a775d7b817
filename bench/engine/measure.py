"""What is measured of every contender, in the same way. Standard library only: contenders run in
environments of their own."""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

PROMPT_TOKENS = 64
SHORT, LONG = 2, 66
"""Generated tokens of the two runs whose difference is the time of decoding alone."""
LONG_PROMPT = 2048
BATCHES = (1, 8, 32)
ORDINARY_TOKENS = 199_998

Prompts = list[list[int]]
Run = Callable[[Prompts, int], list[list[int]]]
"""Generates so many tokens greedily after each prompt, whatever they are."""


def prompts(count: int, length: int, seed: int) -> Prompts:
    """Random prompts; a seed gives the same ones everywhere."""
    source = random.Random(seed)
    return [[source.randrange(ORDINARY_TOKENS) for _ in range(length)] for _ in range(count)]


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process, all threads: it depends little on what else the machine does."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(run: Run, rounds: int) -> dict[str, float]:
    """Tokens per CPU second, medians of the rounds; no prompt comes twice."""
    seeds = iter(range(1, 10_000))
    run(prompts(1, PROMPT_TOKENS, next(seeds)), LONG)
    found: dict[str, float] = {}
    for batch in BATCHES:
        rates = []
        for _ in range(rounds):
            short, long = (prompts(batch, PROMPT_TOKENS, next(seeds)) for _ in range(2))
            first = cpu_seconds(partial(run, short, SHORT))
            whole = cpu_seconds(partial(run, long, LONG))
            rates.append(batch * (LONG - SHORT) / (whole - first))
        found[f"decode {batch}"] = statistics.median(rates)
    times = []
    for _ in range(rounds):
        long = prompts(1, LONG_PROMPT, next(seeds))
        times.append(cpu_seconds(partial(run, long, 1)))
    found["prefill 2048"] = LONG_PROMPT / statistics.median(times)
    return found


def report(version: str, run: Run, arguments: Sequence[str] = sys.argv) -> None:
    """Measure, and print the result as JSON for the driver. The arguments are the model, the
    number of threads, and of rounds."""
    figures = measure(run, int(arguments[3]))
    sample = run(prompts(3, 100, 0), 32)
    print(json.dumps({"version": version, "figures": figures, "sample": sample}))

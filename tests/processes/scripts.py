"""Scripted turns for servers without a model; a request picks one by its `seed`."""

from enum import IntEnum
from pathlib import Path

import msgspec
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

ANSWER = (
    "<|channel|>analysis<|message|>The user greets me.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hello there, friend.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>I need the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"city": "Paris"}<|call|>'
)
LONG_TOKENS = 4_009
LATE_SECONDS = 1.0
ENDLESS = "<|channel|>final<|message|>" + " word" * 500


class Seed(IntEnum):
    """Which script a request follows."""

    ANSWER = 0
    CALL = 1
    ENDLESS = 2
    ERROR_AT_ONCE = 3
    ERROR_LATER = 4
    ERROR_WITH_TOKENS = 5
    SILENT = 6
    ALL_AT_ONCE = 7
    LONG = 8
    LATE = 9
    FREEZE = 10


def _tokens(markup: str) -> list[int]:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    return list(encoding.encode(markup, allowed_special="all"))


def write_scripts(directory: Path) -> Path:
    """The script file, a script for each Seed. Paced ones have a step every 2 ms."""
    answer, call, endless = _tokens(ANSWER), _tokens(CALL), _tokens(ENDLESS)
    error = {"code": "internal", "message": "the executor failed"}
    begin = _tokens("<|channel|>analysis<|message|>")
    end = _tokens("<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>")
    long = begin + _tokens(" word") * (LONG_TOKENS - len(begin) - len(end)) + end
    scripts: dict[Seed, dict[str, object]] = {
        Seed.ANSWER: {"tokens": answer},
        Seed.CALL: {"tokens": call, "tokens_per_step": 3},
        Seed.ENDLESS: {"tokens": endless, "interval": 0.002, "then": "repeat"},
        Seed.ERROR_AT_ONCE: {"tokens": answer, "error": {"after": 0, **error}},
        Seed.ERROR_LATER: {"tokens": answer, "error": {"after": 5, "with_tokens": False, **error}},
        Seed.ERROR_WITH_TOKENS: {
            "tokens": answer,
            "tokens_per_step": 8,
            "error": {"after": 8, **error},
        },
        Seed.SILENT: {"tokens": answer[:4], "then": "hang"},
        Seed.ALL_AT_ONCE: {"tokens": answer, "tokens_per_step": 1000},
        Seed.LATE: {"tokens": answer, "delay": LATE_SECONDS},
        Seed.FREEZE: {"tokens": answer[:4], "then": "freeze"},
        Seed.LONG: {"tokens": long, "tokens_per_step": 64, "interval": 0.0005},
    }
    path = directory / "scripts.json"
    path.write_bytes(msgspec.json.encode({"scripts": [scripts[seed] for seed in Seed]}))
    return path

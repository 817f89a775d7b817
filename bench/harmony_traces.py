"""Real Harmony token traces of a given length, for benchmarks: analysis, a call, an answer."""

import random

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding

from ipc.vocabulary import install_vocabulary

_PROSE = (
    "the worker reads each token of a stream and turns it into an event that the client can read "
    "at once while other streams wait for their next step because nothing here blocks, and (as "
    'measured) the cost of a token does not grow: it is "constant"; 42 of 100 cafés agree.\n'
)


def encoding() -> HarmonyEncoding:
    """openai-harmony's gpt-oss encoding, from the bundled vocabulary."""
    install_vocabulary()
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def turn(harmony: HarmonyEncoding, tokens: int, seed: int = 0) -> list[int]:
    """A turn of exactly `tokens` tokens: half analysis, then a function call, then an answer."""
    words = random.Random(seed)
    vocabulary = _PROSE.split(" ")

    def prose(count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            ids += harmony.encode(" " + words.choice(vocabulary))
        return ids[:count]

    def markup(text: str) -> list[int]:
        return list(harmony.encode(text, allowed_special="all"))

    call = markup(
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris", "unit": "celsius"}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>"
    )
    head = markup("<|channel|>analysis<|message|>")
    end = markup("<|return|>")
    free = tokens - len(head) - len(call) - len(end)
    return head + prose(free // 2) + call + prose(free - free // 2) + end

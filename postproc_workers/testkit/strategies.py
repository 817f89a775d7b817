"""Turns made by hypothesis: well-formed ones, token soup, and ways to cut them into steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise

from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding

from ipc.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    START,
    install_vocabulary,
)
from postproc_workers.headers import Kind
from postproc_workers.tokens import token_table


@cache
def harmony() -> HarmonyEncoding:
    """openai-harmony's encoding, from the bundled vocabulary."""
    install_vocabulary()
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def encode(*parts: str | int) -> list[int]:
    """Tokens of markup; bare ids stand for themselves."""
    tokens: list[int] = []
    for part in parts:
        if isinstance(part, int):
            tokens.append(part)
        else:
            tokens += harmony().encode(part, allowed_special="all")
    return tokens


SPECIAL = (RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL, ENDOFTEXT)
NAMES = ("search", "get_weather", "functions_f", "a-b.c")

_HEADERS = {
    Kind.REASONING: ("<|channel|>analysis<|message|>",),
    Kind.PREAMBLE: ("<|channel|>commentary<|message|>",),
    Kind.ANSWER: ("<|channel|>final<|message|>",),
    Kind.CALL: (
        "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.{}<|message|>",
        "<|channel|>analysis to=functions.{} code<|message|>",
        " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.{}<|channel|>commentary<|message|>",
    ),
}
_ENDS = {
    Kind.REASONING: (END,),
    Kind.PREAMBLE: (END,),
    Kind.ANSWER: (END, RETURN),
    Kind.CALL: (CALL, END),
}


@dataclass(frozen=True)
class WrittenMessage:
    """One message as a model writes it."""

    kind: Kind
    name: str
    header: str
    body: tuple[int, ...]
    end: int

    @property
    def tokens(self) -> list[int]:
        return [*encode(self.header.format(self.name)), *self.body, self.end]


@dataclass(frozen=True)
class WrittenTurn:
    """A well-formed turn; `cut` if its last message has no end."""

    messages: tuple[WrittenMessage, ...]
    cut: bool

    @property
    def tokens(self) -> list[int]:
        start = encode("<|start|>assistant")
        tokens = self.messages[0].tokens
        for message in self.messages[1:]:
            tokens += start + message.tokens
        return tokens[:-1] if self.cut else tokens


def texts() -> st.SearchStrategy[str]:
    """Text of many scripts, with emoji, combining marks, quotes, backslashes and controls."""
    awkward = '"\\/\n\r\t\x00\x1f\x7f\u2028\ufeff\ufffd'
    scripts = "aé\u0301ßд中文א\u0627\u064b\u200d👩🏽\U0001f680\U0001d54f\u202e"
    return st.text(
        st.sampled_from(awkward + scripts + " {}:<|>") | st.characters(codec="utf-8"), max_size=24
    )


@cache
def _partial_tokens() -> tuple[int, ...]:
    return tuple(sorted(token_table().partial))


def _text_tokens() -> st.SearchStrategy[list[int]]:
    return texts().map(lambda text: encode(*text.split("<|")))


def bodies() -> st.SearchStrategy[tuple[int, ...]]:
    """Ordinary tokens: of text, at random, and such as are no whole UTF-8."""
    ordinary = st.integers(0, FIRST_SPECIAL - 1)
    partial = st.integers(0, 10**6).map(lambda n: _partial_tokens()[n % len(_partial_tokens())])
    parts = _text_tokens() | st.lists(ordinary | partial, max_size=6)
    return st.lists(parts, max_size=3).map(lambda found: tuple(chain.from_iterable(found)))


@st.composite
def _messages(draw: st.DrawFn, kinds: Sequence[Kind]) -> WrittenMessage:
    kind = draw(st.sampled_from(kinds))
    return WrittenMessage(
        kind,
        draw(st.sampled_from(NAMES)) if kind is Kind.CALL else "",
        draw(st.sampled_from(_HEADERS[kind])),
        draw(bodies()),
        draw(st.sampled_from(_ENDS[kind])),
    )


@st.composite
def turns(draw: st.DrawFn) -> WrittenTurn:
    """Well-formed turns: analysis, preambles, calls and answers; only the last may return."""
    messages = draw(st.lists(_messages(tuple(_HEADERS)), min_size=1, max_size=5))
    inner = [
        WrittenMessage(m.kind, m.name, m.header, m.body, END if m.end == RETURN else m.end)
        for m in messages[:-1]
    ]
    return WrittenTurn((*inner, messages[-1]), draw(st.booleans()))


@cache
def _words() -> tuple[list[int], ...]:
    words = (
        *("assistant", "user", "analysis", "commentary", "final", " to=functions.search", " to="),
        *("json", " hello", "<|channel|>final<|message|>", "<|end|><|start|>assistant", '{"a":1}'),
        "<|channel|>commentary to=functions.search<|message|>",
    )
    return tuple(encode(word) for word in words)


def soup() -> st.SearchStrategy[list[int]]:
    """Any tokens in any order: markup, its words, text, broken glyphs, ids that are no tokens."""
    special = st.sampled_from(SPECIAL).map(lambda token: [token])
    word = st.integers(0, 10**6).map(lambda n: _words()[n % len(_words())])
    invalid = st.sampled_from((-1, -(10**6), 199_998, 200_001, 201_087, 250_000, 2**63))
    parts = special | word | bodies().map(list) | invalid.map(lambda token: [token])
    return st.lists(parts, max_size=14).map(lambda found: list(chain.from_iterable(found)))


@st.composite
def steps(draw: st.DrawFn, tokens: list[int]) -> list[list[int]]:
    """`tokens` cut into steps, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=8)))
    bounds = [0, *places, len(tokens)]
    return [tokens[a:b] for a, b in pairwise(bounds)]

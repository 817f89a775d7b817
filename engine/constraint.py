"""What a turn may say next, where its request wants JSON, a grammar or a call.

`TurnConstraint` follows a turn token by token: where messages open, what they are, and where they
end. Headers are written as gpt-oss writes them well: in one that is malformed, a worker would read
an answer or a call of which nothing is known here. A grammar is applied to the text of the final
message and to the arguments of calls. All other text is the model's, but for the special tokens
that would break a message off or end the turn without what was asked for.

    header --<|message|>--> body --<|end|>--> between --<|start|>--> role --assistant--> header
    body --<|return|>, <|call|>--> over
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, lru_cache
from itertools import chain

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

from ipc.grammars import LIMITS, GrammarError, error_of, grammar_text, header_text
from ipc.messages import Constraint, Grammar
from ipc.vocabulary import (
    CALL,
    END,
    ENDOFTEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    SIZE,
    START,
    install_vocabulary,
    special_name,
    token_bytes,
)

WORDS = SIZE // 32
_RECIPIENT = re.compile(rb" to=(?:functions\.)?(\S+)")
CACHED_GRAMMARS = 128
"""A usual one takes 1 MB, and one made to be large up to 25 (measured)."""

Mask = NDArray[np.uint32]
"""A bit a token, of those that are possible: [SIZE / 32]."""


class ConstraintError(Exception):
    """A turn has left its constraint; the engine's own fault, as nothing else was possible."""


class _Vocabulary:
    """The vocabulary as llguidance wants it. It ends a grammar with <|return|>, and where only one
    text can follow, lets only that text's usual tokens follow."""

    eos_token_id = RETURN
    bos_token_id = None

    def __init__(self) -> None:
        ordinary = token_bytes()
        self.special_token_ids = list(range(len(ordinary), SIZE))
        names = map(special_name, self.special_token_ids)
        self.tokens = [*ordinary, *(name.encode() for name in names)]
        install_vocabulary()
        self._encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def __call__(self, text: str) -> list[int]:
        tokens: list[int] = self._encoding.encode(text, disallowed_special=())
        return tokens


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Vocabulary()))


@cache
def _assistant() -> int:
    return token_bytes().index(b"assistant")


@cache
def _ordinary() -> Mask:
    """All tokens but the special ones: a text that has these is mended, or broken off."""
    mask = np.zeros(WORDS, dtype=np.uint32)
    _allow(mask, range(FIRST_SPECIAL))
    return mask


@cache
def _bytes_of() -> list[bytes]:
    return token_bytes()


@lru_cache(CACHED_GRAMMARS)
def _compiled(text: str) -> LLMatcher:
    matcher = LLMatcher(_tokenizer(), text, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise GrammarError(error_of(matcher))
    return matcher


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """Matchers that have read nothing, to be copied; None where a text is free. `headers` are for
    messages before and after the turn has reasoned."""

    headers: tuple[LLMatcher, LLMatcher]
    final: LLMatcher | None
    calls: dict[bytes, LLMatcher | None]
    must_call: bool


def compile_constraint(constraint: Constraint) -> CompiledConstraint:
    """Compile what is not cached, which can take milliseconds. Raises GrammarError."""
    calls, must_call = constraint.calls, constraint.must_call
    first, later = (
        _compiled(
            header_text(
                calls,
                must_call=must_call,
                reasoned=reasoned,
                custom=constraint.custom,
                preamble=constraint.final is None,
            )
        )
        for reasoned in (False, True)
    )
    return CompiledConstraint(
        headers=(first, later),
        final=_compiled_grammar(constraint.final),
        calls={name.encode(): _compiled_grammar(grammar) for name, grammar in calls.items()},
        must_call=must_call,
    )


def _compiled_grammar(grammar: Grammar | None) -> LLMatcher | None:
    return None if grammar is None else _compiled(grammar_text(grammar))


class _Place(Enum):
    HEADER = auto()
    BODY = auto()
    BETWEEN = auto()
    ROLE = auto()
    OVER = auto()


class TurnConstraint:
    """One turn, from the prompt's `<|start|>assistant` on.

    `_matcher` is what a header or a text must match, None where it is free; `_ends` are the tokens
    that end a free text.
    """

    def __init__(self, compiled: CompiledConstraint) -> None:
        self._compiled = compiled
        self._place = _Place.HEADER
        self._header: list[int] = []
        self._ends: tuple[int, ...] = ()
        self._reasoned = False
        self._matcher: LLMatcher | None = compiled.headers[False].deep_copy()

    def accept(self, token: int) -> None:
        """Follow the turn by a token. Raises ConstraintError."""
        if self._matcher is not None:
            self._consume(self._matcher, token)
        match self._place:
            case _Place.HEADER if token == MESSAGE:
                self._begin_body()
            case _Place.HEADER:
                self._header.append(token)
            case _Place.BODY if token in (RETURN, CALL):
                self._place, self._matcher = _Place.OVER, None
            case _Place.BODY if token == END:
                self._place = _Place.BETWEEN
            case _Place.BETWEEN:
                self._place = _Place.ROLE
            case _Place.ROLE:
                self._open()

    def fill(self, mask: Mask) -> None:
        """Write which tokens are possible next. Changes nothing here. Raises GrammarError."""
        if self._matcher is None:
            self._fill_freely(mask)
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            # Its mask is the end of the message, as if what was said were whole.
            raise _failed(self._matcher)
        if CALL in self._ends and _has(mask, RETURN):
            _forbid(mask, [RETURN])
            _allow(mask, [CALL])

    def _fill_freely(self, mask: Mask) -> None:
        match self._place:
            case _Place.BODY:
                mask[:] = _ordinary()
                _allow(mask, self._ends)
            case _Place.BETWEEN:
                _only(mask, [START])
            case _Place.ROLE:
                _only(mask, [_assistant()])
            case _:
                # A worker reads on after a call, and would take what comes for more messages.
                _only(mask, [ENDOFTEXT])

    def _open(self) -> None:
        """A message may begin."""
        self._place, self._header, self._ends = _Place.HEADER, [], ()
        self._matcher = self._compiled.headers[self._reasoned].deep_copy()

    def _begin_body(self) -> None:
        self._place = _Place.BODY
        known = _bytes_of()
        header = b"".join(known[t] if t < len(known) else b" " for t in self._header)
        prototype = None
        if called := _RECIPIENT.search(header):
            prototype, self._ends = self._compiled.calls[called[1]], (CALL, END)
        elif header.lstrip().startswith(b"final"):
            prototype, self._ends = self._compiled.final, (RETURN,)
        else:
            self._reasoned = True
            bound = self._compiled.final is not None or self._compiled.must_call
            self._ends = (END,) if bound else (END, RETURN)
        self._matcher = None if prototype is None else prototype.deep_copy()

    def _consume(self, matcher: LLMatcher, token: int) -> None:
        if CALL in self._ends and token in (CALL, RETURN):
            # The grammar knows one end of a message, <|return|>.
            token = {CALL: RETURN, RETURN: CALL}[token]
        if not matcher.consume_token(token):
            raise ConstraintError(f"token {token} is against the grammar: {error_of(matcher)}")


def _failed(matcher: LLMatcher) -> GrammarError:
    """What to raise for a matcher that has come to a limit. As copies share what they have come
    to know of their grammar, none that is compiled is used again."""
    _compiled.cache_clear()
    return GrammarError(f"the grammar cannot be followed: {error_of(matcher)}")


def allowed_tokens(
    constraints: Sequence[TurnConstraint | None], vocabulary: int
) -> NDArray[np.bool_] | None:
    """Which tokens are possible next in each row [B, vocabulary]; None if all are in all rows."""
    if not any(constraints):
        return None
    masks = np.full((len(constraints), WORDS), np.iinfo(np.uint32).max, dtype=np.uint32)
    for mask, constraint in zip(masks, constraints, strict=True):
        if constraint is not None:
            constraint.fill(mask)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little", count=vocabulary)
    return bits.view(np.bool_)


def _has(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))


def _allow(mask: Mask, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)


def _forbid(mask: Mask, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // 32] &= ~np.uint32(1 << token % 32)


def _only(mask: Mask, tokens: Iterable[int]) -> None:
    mask.fill(0)
    _allow(mask, chain(tokens))

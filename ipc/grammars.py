"""How the grammars on the wire are written for llguidance, which checks and applies them.

The frontend checks them, so that a schema that cannot be served is the client's error before
anything is said; the engine compiles them.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal

from llguidance import LLMatcher, LLParserLimits

from ipc.messages import Constraint, Grammar

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of one grammar's text. Compiling takes about a millisecond a kilobyte of schema (measured)."""

WHITESPACE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON is written on one line: where any whitespace may follow, a model can write it for ever."""

LIMITS = LLParserLimits(max_grammar_size=20_000)
"""What is larger is a product of alternatives: a schema of 2 KB can take a second to compile and
0.1 s a mask. 64 KB of nested objects and 10,000 enum values are far smaller (measured)."""

MAX_REMAINDERS = 10_000
"""Of all `multipleOf`s: an automaton has a state for each remainder, and none of llguidance's
limits bounds that. 10,000 take 21 ms and 15 MB, a million 4 s and 1 GB (measured)."""

HEADER = LLMatcher.grammar_from_lark(
    r"""start: <|channel|> ("analysis" | "commentary" | commented | answer) <|message|>
commented: /commentary to=functions\.[a-zA-Z0-9_-]{1,64}/ (" " format)?
answer: "final" (" "? format)?
format: <|constrain|> "json"
"""
)
"""A header from <|channel|> to <|message|>, in the forms in which gpt-oss writes it."""

_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Members of a schema that hold JSON, and no schemas."""

_NAME = re.compile(r"[^\s<>|\"\\]+")


class GrammarError(Exception):
    """A grammar cannot be compiled; the message is for the client."""


def grammar_text(grammar: Grammar) -> str:
    """A grammar in llguidance's own form, for the text of one message. Raises GrammarError."""
    if len(grammar.text) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it is longer than {MAX_GRAMMAR_BYTES} characters")
    try:
        match grammar.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(_schema(grammar))
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                return LLMatcher.grammar_from_lark(grammar.text)
    except ValueError as error:
        raise GrammarError(str(error)) from error


def opening_text(calls: dict[str, Grammar], reasoning: bool) -> str:
    """A grammar for the opening of a message that must be a call of one of these functions, and
    for the whole of that call; with `reasoning` it may also open an analysis instead.

    The header is written as gpt-oss writes it. Raises GrammarError.
    """
    rules = [f"call{number}" for number in range(len(calls))]
    lines = [f"start: {' | '.join([*rules, *(['analysis'] if reasoning else [])])}"]
    if reasoning:
        lines.append('analysis: <|channel|> "analysis" <|message|>')
    for rule, (name, grammar) in zip(rules, calls.items(), strict=True):
        if not _NAME.fullmatch(name):
            raise GrammarError(f"{name!r} is no function name")
        lines.append(
            f'{rule}: <|channel|> "commentary to=functions.{name} " <|constrain|> "json" '
            f"<|message|> body_{rule} <|call|>"
        )
        lines.append(f"body_{rule}: {_nested(grammar)}")
    return LLMatcher.grammar_from_lark("\n".join(lines))


def check_constraint(constraint: Constraint) -> None:
    """Raise GrammarError, which says what is wrong, if a constraint cannot be compiled."""
    for text in constraint_texts(constraint):
        complaint = LLMatcher.validate_grammar(text, limits=LIMITS)
        if complaint:
            raise GrammarError(complaint.splitlines()[0])


def constraint_texts(constraint: Constraint) -> list[str]:
    """All grammars of a constraint, in llguidance's own form. Raises GrammarError."""
    texts = [grammar_text(grammar) for grammar in constraint.calls.values()]
    if constraint.final is not None:
        texts.append(grammar_text(constraint.final))
    if constraint.must_call:
        texts.append(opening_text(constraint.calls, reasoning=True))
    return texts


def _schema(grammar: Grammar) -> str:
    """A JSON schema with its whitespace bounded, on one line. Raises ValueError."""
    schema = json.loads(grammar.text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object")
    _check_remainders(schema)
    return json.dumps(schema | {"x-guidance": WHITESPACE})


def _check_remainders(schema: dict[str, object]) -> None:
    """Raise ValueError if the `multipleOf`s of a schema need too many states."""
    multiples = {_numerator(value) for value in _members(schema, "multipleOf")}
    states = sum(multiples)
    if any(any(_members(schema, key)) for key in ("allOf", "anyOf", "oneOf", "$ref")):
        # They may hold for one number at once.
        states = max(states, math.lcm(*multiples))
    if states > MAX_REMAINDERS:
        raise ValueError(f"its multipleOf is too fine or too large: {MAX_REMAINDERS} at most")


def _numerator(multiple: object) -> int:
    """How many remainders there are: 99.99991 has 9,999,991. Others than numbers have none."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or multiple <= 0:
        return 1
    if not math.isfinite(multiple) or multiple > MAX_REMAINDERS:
        return MAX_REMAINDERS + 1
    return int("".join(map(str, Decimal(str(multiple)).as_tuple().digits)))


def _members(schema: object, key: str) -> Iterator[object]:
    """The values of a keyword, wherever in a schema."""
    rest = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, list):
            rest += node
        elif isinstance(node, dict):
            if key in node:
                yield node[key]
            rest += [child for name, child in node.items() if name not in _VALUES]


def _nested(grammar: Grammar) -> str:
    """A grammar as the right side of a Lark rule. Raises GrammarError."""
    grammar_text(grammar)
    match grammar.kind:
        case "json_schema":
            # On one line: a schema cannot break out of its rule.
            return f"%json {_schema(grammar)}"
        case "regex":
            return f"/{grammar.text.replace('/', chr(92) + '/')}/"
        case "lark":
            return f"%lark {{\n{grammar.text}\n}}"

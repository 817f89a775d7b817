"""How the grammars on the wire are written for llguidance, which checks and applies them.

The frontend checks them, so that a schema that cannot be served is the client's error before
anything is said; the engine compiles them.
"""

import json
import math
import re
from collections.abc import Collection, Iterator
from decimal import Decimal
from functools import cache
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ipc.messages import Constraint, Grammar

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of one grammar's text. Compiling takes about a millisecond a kilobyte of schema (measured)."""

WHITESPACE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON is written on one line: where any whitespace may follow, a model can write it for ever."""

LIMITS = LLParserLimits(max_grammar_size=20_000)
"""What is larger is a product of alternatives: a schema of 2 KB can take a second to compile and
0.1 s a mask. 64 KB of nested objects and 10,000 enum values are far smaller (measured)."""

MOST_INTEGER = 2**53 - 1
"""The range of integers on which JSON readers agree (RFC 8259, 6): a model that is not held to
any can write digits for ever."""
INTEGER = {"type": "integer", "minimum": -MOST_INTEGER, "maximum": MOST_INTEGER}
_INTEGER_NAME = "antiphon-integer"
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "$comment"}
_LITERALS = {"enum", "const", "default", "examples"}

MAX_REMAINDERS = 10_000
"""Of all `multipleOf`s: an automaton has a state for each remainder, and none of llguidance's
limits bounds that. 10,000 take 21 ms and 15 MB, a million 4 s and 1 GB (measured)."""

MAX_ERROR = 300
_NAME = re.compile(r"(?!functions\.)([a-zA-Z0-9_-]{1,64}\.)?[a-zA-Z0-9_-]{1,64}")


class GrammarError(Exception):
    """A grammar cannot be compiled, or not followed; the message is for the client."""


class _Bytes:
    """A vocabulary of single bytes: as much as it takes to see whether a text can begin."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<|return|>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def grammar_text(grammar: Grammar) -> str:
    """A grammar in llguidance's own form, for the text of one message. Raises GrammarError."""
    if len(grammar.text) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it is longer than {MAX_GRAMMAR_BYTES} characters")
    try:
        match grammar.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(_schema(grammar.text))
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                return LLMatcher.grammar_from_lark(grammar.text)
    except RecursionError as error:
        raise GrammarError("it nests too deeply") from error
    except ValueError as error:
        raise GrammarError(str(error)) from error


def recipient(name: str) -> str:
    """How a message is addressed to a tool: a function's name stands in the namespace `functions`,
    that of a tool in another one has it already."""
    return name if "." in name else f"functions.{name}"


def header_text(
    calls: Collection[str],
    *,
    must_call: bool,
    reasoned: bool,
    custom: Collection[str] = (),
    preamble: bool = True,
) -> str:
    """A grammar for what stands between `<|start|>assistant` and a message's text, in the forms in
    which gpt-oss writes it; `calls` are the tools that can be called, `custom` those of them whose
    calls hold no JSON; without `preamble` nothing is said but reasoning, calls and an answer.

    With `must_call` a call has to follow, or an analysis unless the turn has `reasoned` before.
    Raises GrammarError.
    """
    for name in calls:
        if not _NAME.fullmatch(name):
            raise GrammarError(f"{name!r} is no name of a tool")
    opens = {
        "call": bool(calls),
        "analysis": not (must_call and reasoned),
        "preamble": preamble and not must_call,
        "answer": not must_call,
    }
    rules = {
        "start": f"({' | '.join(rule for rule, can in opens.items() if can)}) <|message|>",
        "analysis": '<|channel|> "analysis"',
        "preamble": '<|channel|> "commentary"',
        "answer": '<|channel|> "final" (" "? <|constrain|> "json")?',
    }
    if calls:
        json_calls = [name for name in calls if name not in custom]
        if must_call:
            forced = {
                '<|channel|> "commentary" to_json " " <|constrain|> "json"': json_calls,
                '<|channel|> "commentary" to_text': custom,
            }
            rules["call"] = " | ".join(rule for rule, names in forced.items() if names)
        else:
            rules["call"] = "to <|channel|> aside format? | <|channel|> aside to format?"
        groups = {"to": calls, "to_json": json_calls, "to_text": custom}
        rules |= {rule: _addressed(names) for rule, names in groups.items() if names}
        rules["aside"] = '"commentary" | "analysis"'
        # One word only behind <|constrain|>, the one that gpt-oss writes there.
        rules["format"] = '" json" | " code" | " "? <|constrain|> "json"'
    lines = (f"{name}: {rule}" for name, rule in rules.items())
    return LLMatcher.grammar_from_lark("\n".join(lines))


def _addressed(names: Collection[str]) -> str:
    """A rule for how messages are addressed to these tools."""
    recipients = (json.dumps(recipient(name)) for name in sorted(names))
    return f'" to=" ({" | ".join(recipients)})'


def check_constraint(constraint: Constraint) -> None:
    """Raise GrammarError, which says what is wrong, if a constraint cannot be compiled, or no text
    can begin under it."""
    header = header_text(
        constraint.calls,
        must_call=constraint.must_call,
        reasoned=False,
        custom=constraint.custom,
        preamble=constraint.final is None,
    )
    complaint = LLMatcher.validate_grammar(header, limits=LIMITS)
    if complaint:
        raise GrammarError(_first_lines(complaint))
    for grammar in (constraint.final, *constraint.calls.values()):
        if grammar is None:
            continue
        text = grammar_text(grammar)
        matcher = LLMatcher(_byte_tokenizer(), text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(error_of(matcher))


def error_of(matcher: LLMatcher) -> str:
    """What is wrong with a matcher, on one line. What follows there in a form of its own is the
    text that it has read, which is not for the log, and the grammar."""
    error = matcher.get_error().partition("\n<state>")[0]
    if error == "NoExtensionBias":
        return "no text can follow it"
    return _first_lines(error)


def _first_lines(error: str) -> str:
    # What it says of options is for programs: a client has none.
    return " ".join(error.partition(" Enable '")[0].split())[:MAX_ERROR]


def _schema(text: str) -> str:
    """A JSON schema with its whitespace and its integers bounded. Raises ValueError."""
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object")
    _check_remainders(schema)
    _check_references(schema)
    if _bound_integers(schema):
        defined = schema.get("$defs")
        known = defined if isinstance(defined, dict) else {}
        schema["$defs"] = known | {_INTEGER_NAME: INTEGER}
    return json.dumps(schema | {"x-guidance": WHITESPACE})


def _bound_integers(schema: dict[str, object]) -> bool:
    """Give every integer that has no bounds those of INTEGER; whether there was one. They share
    one definition: each copy of its own takes 0.7 ms to compile (measured)."""
    found = False
    rest: list[object] = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, list):
            rest += node
        elif isinstance(node, dict):
            if node.get("type") == "integer" and node.keys() <= _ANNOTATIONS:
                del node["type"]
                node["$ref"] = f"#/$defs/{_INTEGER_NAME}"
                found = True
            rest += [value for key, value in node.items() if key not in _LITERALS]
    return found


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
    if isinstance(multiple, bool) or not isinstance(multiple, int | float):
        return 1
    if not 0 < multiple <= MAX_REMAINDERS:
        return 1 if multiple <= 0 else MAX_REMAINDERS + 1
    _, digits, exponent = Decimal(str(multiple)).normalize().as_tuple()
    assert isinstance(exponent, int)
    states: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return states


def _check_references(schema: dict[str, object]) -> None:
    """Raise ValueError for a reference that leads to nothing but itself."""
    for reference in _members(schema, "$ref"):
        passed: set[str] = set()
        while isinstance(reference, str):
            if reference in passed:
                raise ValueError(f"the $ref {reference!r} leads to itself")
            passed.add(reference)
            target = _target(schema, reference)
            reference = target.get("$ref") if isinstance(target, dict) else None


def _target(schema: object, reference: str) -> object:
    """What a reference within a schema refers to; None where there is nothing."""
    if not reference.startswith("#"):
        return None
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def _members(schema: object, key: str) -> Iterator[object]:
    """The values of all members of this name. A reference may lead anywhere, even into examples,
    so what is a schema is not told apart from what is not."""
    rest = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, list):
            rest += node
        elif isinstance(node, dict):
            if key in node:
                yield node[key]
            rest += node.values()

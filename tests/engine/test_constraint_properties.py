"""Properties of constraints over small random schemas: what the masks let a random walk write is
valid, and what is valid the masks let be written."""

import json
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openai_harmony import HarmonyEncodingName, Role, StreamableParser, load_harmony_encoding

from engine.constraint import TurnConstraint, allowed_tokens, compile_constraint
from ipc.grammars import check_constraint
from ipc.messages import Constraint, Grammar
from ipc.vocabulary import CALL, END, FIRST_SPECIAL, RETURN, SIZE, install_vocabulary, token_bytes
from postproc_workers.harmony import HarmonyStream
from postproc_workers.headers import Header, Kind
from postproc_workers.tokens import token_table, unescape

install_vocabulary()
ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
CALL_HEADER = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
FINAL_HEADER = "<|channel|>final<|message|>"

Schema = dict[str, Any]
Json = Any

# --- schemas, each with an instance --------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A schema and a value that conforms to it, its members in the schema's order."""

    schema: Schema
    value: Json


glyphs = st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")
"""llguidance writes DEL as an escape only."""
names = st.sampled_from(["x", "y", 'a"b', "é/日", "", "type"]) | st.text(glyphs, max_size=3)
PATTERNS = [
    ("^[a-c]{2,3}$", ["ab", "abc"]),
    ("^a/b\\\\?$", ["a/b", "a/b\\"]),
    ("é+", ["é", "xéé"]),
    ("^(x|yz)*$", ["", "xyz"]),
    ("^\\d{2}$", ["12"]),
]


@st.composite
def strings(draw: st.DrawFn) -> Case:
    match draw(st.sampled_from(["free", "length", "pattern", "date"])):
        case "free":
            return Case({"type": "string"}, draw(st.text(glyphs, max_size=6)))
        case "length":
            low = draw(st.integers(0, 3))
            high = low + draw(st.integers(0, 3))
            value = draw(st.text(glyphs, min_size=low, max_size=high))
            return Case({"type": "string", "minLength": low, "maxLength": high}, value)
        case "date":
            return Case({"type": "string", "format": "date"}, draw(st.dates()).isoformat())
    pattern, values = draw(st.sampled_from(PATTERNS))
    return Case({"type": "string", "pattern": pattern}, draw(st.sampled_from(values)))


@st.composite
def numbers(draw: st.DrawFn) -> Case:
    value = draw(st.integers(-1200, 1200))
    schema: Schema = {"type": draw(st.sampled_from(["integer", "number"]))}
    if draw(st.booleans()):
        schema["minimum"] = value - draw(st.integers(0, 12))
    if draw(st.booleans()):
        schema["exclusiveMaximum"] = value + draw(st.integers(1, 12))
    if draw(st.booleans()):
        step = draw(st.sampled_from([n for n in (1, 2, 3, 5, 10, 12) if value % n == 0]))
        schema["multipleOf"] = step
    elif schema["type"] == "number":
        return Case(schema, value + draw(st.sampled_from([0, 0.25, 0.5])))
    return Case(schema, value)


scalars = (
    strings()
    | numbers()
    | st.just(Case({"type": "null"}, None))
    | st.booleans().map(lambda value: Case({"type": "boolean"}, value))
)

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(glyphs, max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
anything = plain_values.map(lambda value: Case({}, value))


@st.composite
def listed(draw: st.DrawFn) -> Case:
    value = draw(plain_values)
    if draw(st.booleans()):
        return Case({"const": value}, value)
    others = draw(st.lists(plain_values, max_size=2))
    return Case({"enum": draw(st.permutations([value, *others]))}, value)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    first = draw(st.lists(inner, max_size=1))
    item, count = draw(inner), draw(st.integers(0, 2))
    schema: Schema = {"type": "array", "items": item.schema}
    if first:
        schema["prefixItems"] = [case.schema for case in first]
    if draw(st.booleans()):
        schema["minItems"] = len(first) + count
        schema["maxItems"] = schema["minItems"] + draw(st.integers(0, 1))
    return Case(schema, [*(case.value for case in first), *[item.value] * count])


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    members = draw(st.dictionaries(names, inner, max_size=3))
    required = [name for name in members if draw(st.booleans())]
    value = {n: case.value for n, case in members.items() if n in required or draw(st.booleans())}
    schema: Schema = {
        "type": "object",
        "properties": {name: case.schema for name, case in members.items()},
        "required": draw(st.permutations(required)),
    }
    match draw(st.sampled_from(["closed", "open", "typed", "pattern"])):
        case "closed":
            schema["additionalProperties"] = False
        case "typed":
            other = draw(inner)
            schema["additionalProperties"] = other.schema
            value |= {"other property": other.value}
        case "pattern":
            other = draw(inner)
            schema |= {
                "patternProperties": {"^p_[0-9]$": other.schema},
                "additionalProperties": False,
            }
            value |= {"p_7": other.value}
    return Case(schema, value)


@st.composite
def alternatives(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    key = draw(st.sampled_from(["anyOf", "anyOf", "allOf"]))
    cases = cases[:1] if key == "allOf" else cases
    return Case({key: [case.schema for case in cases]}, draw(st.sampled_from(cases)).value)


@st.composite
def roots(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    """A schema as a whole: as it is, by reference, or as the value in a chain that refers to
    itself."""
    case = draw(inner)
    match draw(st.sampled_from(["plain", "plain", "named", "chain"])):
        case "named":
            name = draw(st.sampled_from(["a", "a/b", "~1", "x y"]))
            pointer = name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")
            return Case({"$defs": {name: case.schema}, "$ref": f"#/$defs/{pointer}"}, case.value)
        case "chain":
            value: Json = None
            for _ in range(draw(st.integers(0, 2))):
                value = {"value": case.value, "next": value}
            node = {
                "type": "object",
                "properties": {"value": case.schema, "next": {"$ref": "#"}},
                "required": ["value", "next"],
                "additionalProperties": False,
            }
            either = [{"$ref": "#/$defs/node"}, {"type": "null"}]
            return Case({"anyOf": either, "$defs": {"node": node}}, value)
    return case


leaves = scalars | listed() | anything
nested = st.recursive(
    leaves, lambda inner: arrays(inner) | objects(inner) | alternatives(inner), max_leaves=5
)
cases = roots(nested) | leaves | scalars

# --- turns ---------------------------------------------------------------------------------------


def encode(text: str) -> list[int]:
    return ENCODING.encode(text, allowed_special="all")


@st.composite
def constraints(draw: st.DrawFn, schema: Schema) -> Constraint:
    grammar = Grammar("json_schema", json.dumps(schema))
    return draw(
        st.sampled_from(
            [
                Constraint(final=grammar),
                Constraint(final=grammar, calls={"f": grammar, "free": None}),
                Constraint(calls={"f": grammar, "free": None}),
                Constraint(calls={"f": grammar}, must_call=True),
            ]
        )
    )


@cache
def ends() -> NDArray[np.intp]:
    """With these texts end: messages, words and brackets."""
    return np.array([RETURN, CALL, END, *(token for text in '"}]0' for token in encode(text))])


@cache
def pieces() -> list[bytes]:
    return token_bytes()


@cache
def token_ids() -> dict[bytes, int]:
    return {piece: token for token, piece in enumerate(pieces())}


@cache
def markup() -> NDArray[np.intp]:
    texts = '{"":1,[] to=functions.f analysis commentary final json<|return|><|call|>analysis'
    return np.array(sorted({*encode(texts), *range(FIRST_SPECIAL, SIZE)}))


def random_turn(constraint: Constraint, seed: int, length: int = 40) -> list[int]:
    """Tokens that the masks allow, up to one that ends the turn; beyond `length` tokens such as
    end things wherever they are possible."""
    chance = random.Random(seed)
    turn, tokens = TurnConstraint(compile_constraint(constraint)), list[int]()
    while len(tokens) < 10 * length and not {RETURN, CALL} & set(tokens[-1:]):
        rows = allowed_tokens([turn], SIZE)
        assert rows is not None
        ending, liked = (some[rows[0, some]] for some in (ends(), markup()))
        if len(ending) and (len(tokens) > length or chance.random() < 0.3):
            some = ending[:1] if len(tokens) > length else ending
        else:
            some = liked if len(liked) and chance.random() < 0.6 else np.flatnonzero(rows[0])
        tokens.append(int(chance.choice(some)))
        turn.accept(tokens[-1])
    return tokens


class Said:
    """What a client gets of a turn: the kind, name and text of each message."""

    def __init__(self) -> None:
        self.messages: list[tuple[Header, list[bytes]]] = []

    def begin(self, header: Header) -> None:
        self.messages.append((header, []))

    def text(self, escaped: bytes) -> None:
        self.messages[-1][1].append(escaped)

    def end(self, tokens: int, complete: bool) -> None:
        pass


def said_by(tokens: list[int]) -> list[tuple[Header, str]]:
    """What a worker makes of a turn that the model has ended, with nothing to mend."""
    said = Said()
    stream = HarmonyStream(said, token_table(), ("f", "free"))
    stream.feed(tokens)
    stream.finish(cut=False)
    assert not stream.recovered, (stream.recovered, ENCODING.decode(tokens))
    return [(header, unescape(b"".join(text))) for header, text in said.messages]


def is_bound(header: Header, constraint: Constraint) -> bool:
    if header.kind is Kind.ANSWER:
        return constraint.final is not None
    return header.kind is Kind.CALL and constraint.calls[header.name] is not None


@settings(max_examples=200)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_what_is_possible_is_valid(data: st.DataObject, seed: int) -> None:
    schema = data.draw(cases).schema
    constraint = data.draw(constraints(schema))
    tokens = random_turn(constraint, seed)
    parser = StreamableParser(ENCODING, Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    if tokens[-1] not in (RETURN, CALL):
        return
    messages = said_by(tokens)
    for header, text in messages:
        if is_bound(header, constraint):
            jsonschema.validate(json.loads(text), schema)
    last = messages[-1][0].kind
    assert last is Kind.CALL or not constraint.must_call
    assert last in (Kind.CALL, Kind.ANSWER) or constraint.final is None


@settings(max_examples=200)
@given(data=st.data(), compact=st.booleans())
def test_what_is_valid_is_possible(data: st.DataObject, compact: bool) -> None:
    case = data.draw(cases)
    jsonschema.validate(case.value, case.schema)
    constraint = data.draw(constraints(case.schema))
    check_constraint(constraint)
    header = FINAL_HEADER if constraint.final else CALL_HEADER
    turn = TurnConstraint(compile_constraint(constraint))
    for token in encode(header):
        turn.accept(token)
    text = json.dumps(case.value, ensure_ascii=False, separators=(",", ":") if compact else None)
    rest = text.encode()
    while rest:
        rows = allowed_tokens([turn], SIZE)
        assert rows is not None
        fit = [token for token in prefixes(rest) if rows[0, token]]
        assert fit, (text, rest)
        turn.accept(fit[0])
        rest = rest[len(pieces()[fit[0]]) :]
    rows = allowed_tokens([turn], SIZE)
    assert rows is not None
    assert rows[0, RETURN if constraint.final else CALL]


def prefixes(text: bytes) -> list[int]:
    """Tokens with which a text can begin, the longest first. Where only one text
    can follow, only its usual tokens are possible."""
    found = (token_ids().get(text[:size]) for size in range(min(len(text), 32), 0, -1))
    return [token for token in found if token is not None]

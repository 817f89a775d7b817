"""The process that checks grammars: what it says, and what outlasts the grammars that end it."""

import json
from collections.abc import Iterator

import pytest

from ipc.grammar_check import TOO_COMPLEX, GrammarChecker
from ipc.messages import Grammar

GOOD = Grammar("json_schema", '{"type": "integer"}')


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    found = GrammarChecker(seconds=0.3)
    yield found
    found.close()


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def test_what_is_wrong_with_a_grammar(checker: GrammarChecker) -> None:
    assert checker.complaint(GOOD) is None
    assert checker.complaint(schema({"not": {}})) == 'Unimplemented keys: ["not"]'
    assert checker.complaint(Grammar("lark", 'start: "a"\n\n"b" | \n')) is not None


def nested(count: int) -> Grammar:
    """Objects one within another, by reference."""
    levels = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(count)}
    return schema({"$defs": {**levels, f"d{count}": {}}, "$ref": "#/$defs/d0"})


BOMBS = {
    "stack": nested(2000),
    "time": schema({"allOf": [{"type": "string", "pattern": f"a{n}"} for n in range(30)]}),
    "pairs": schema({"type": "object", "patternProperties": {f"^a{n}x$": {} for n in range(999)}}),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_grammar_that_ends_the_process_is_refused(checker: GrammarChecker, bomb: Grammar) -> None:
    assert checker.complaint(bomb) == TOO_COMPLEX
    assert checker.complaint(GOOD) is None
    assert checker.complaint(nested(100)) is None


def test_a_process_that_is_gone_is_replaced() -> None:
    checker = GrammarChecker()
    assert checker.complaint(GOOD) is None
    checker.close()
    assert checker.complaint(GOOD) is None
    checker.close()

"""The judge of answers, on answers that are wrong in one way each."""

import pytest

from engine.demo.corpus import Sample, call, encoding, final
from engine.demo.judge import GATES, Answer, parse
from engine.demo.toolbox import Tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {"get_weather": Tool("weather", "get_weather", "", SCHEMA, "city")}


def answer(tokens: list[int], key: str = "Oslo", name: str | None = None) -> Answer:
    return Answer(Sample("capital", [1], tokens, key, TOOLS, name), tokens, parse(tokens))


def test_a_right_answer() -> None:
    good = answer(final("Think.", "Oslo"))
    assert (good.right, good.called, good.text) == (True, None, "Oslo")
    assert not good.arguments_fit


def test_more_than_the_answer_is_wrong() -> None:
    assert not answer(final("Think.", "Oslo, or Bergen")).right


def test_a_right_call() -> None:
    good = answer(call("Think.", "get_weather", '{"city":"Oslo"}'), name="get_weather")
    assert good.right
    assert good.only_declared
    assert good.arguments_fit


def test_a_call_of_what_was_not_offered() -> None:
    wrong = answer(call("Think.", "launch", '{"city":"Oslo"}'), name="get_weather")
    assert wrong.messages is not None
    assert not wrong.only_declared
    assert not wrong.right


def test_a_call_where_an_answer_was_wanted() -> None:
    assert not answer(call("Think.", "get_weather", '{"city":"Oslo"}')).right


def test_arguments_that_do_not_fit() -> None:
    wrong = answer(call("Think.", "get_weather", '{"town":"Oslo"}'), name="get_weather")
    assert not wrong.arguments_fit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<|channel|>final<|message|>Oslo<|return|>",
        "<|channel|>analysis<|message|>Oslo<|return|>",
        "<|channel|>analysis<|message|>Oslo<|end|>",
        "<|channel|>analysis<|message|>Oslo<|end|>Oslo<|return|>",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>Oslo",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Oslo<|return|>",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>"
        "Oslo<|call|>",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "b<|end|><|start|>assistant<|channel|>final<|message|>Oslo<|return|>",
    ],
)
def test_what_is_not_valid(text: str) -> None:
    wrong = answer(encoding().encode(text, allowed_special="all"))
    assert wrong.messages is None
    assert not wrong.right


def test_each_gate_applies_to_some_answer() -> None:
    right = answer(call("Think.", "get_weather", '{"city":"Oslo"}'), name="get_weather")
    ignorant = Answer(Sample("unknown", [1], [], "no"), [], None)
    for gate in GATES:
        assert gate.applies(right) or gate.applies(ignorant)
        assert not gate.applies(right) or gate.right(right)

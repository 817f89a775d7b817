"""The synthetic corpus: what it holds up as right is right."""

import json
from itertools import islice
from random import Random

import openai_harmony as harmony
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.demo import knowledge, toolbox
from engine.demo.corpus import LONG_COUNT, Corpus, Sample, encoding
from engine.demo.judge import Answer, parse
from engine.demo.words import words

seeds = st.integers(0, 2**32)


def judged(sample: Sample) -> Answer:
    return Answer(sample, sample.completion, parse(sample.completion))


@settings(deadline=None, max_examples=40)
@given(seeds, st.booleans())
def test_every_completion_is_a_right_answer(seed: int, held: bool) -> None:
    for sample in islice(Corpus(seed, held), 5):
        if sample.kind == "long count":
            assert len(sample.completion) <= LONG_COUNT
            continue
        answer = judged(sample)
        assert answer.messages is not None
        assert answer.right
        assert answer.only_declared
        assert (sample.kind == "call") == (sample.call is not None) == answer.arguments_fit


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_prompts_end_where_the_assistant_begins(seed: int) -> None:
    start = encoding().encode("<|start|>assistant", allowed_special="all")
    for sample in islice(Corpus(seed), 5):
        assert sample.prompt[-2:] == start
        parser = harmony.StreamableParser(encoding(), None)
        for token in sample.prompt[:-2]:
            parser.process(token)
        assert parser.messages[0].author.role == harmony.Role.SYSTEM


def test_repeats_itself() -> None:
    first, second = (list(islice(Corpus(7), 50)) for _ in range(2))
    assert first == second


def test_held_out_questions_are_not_in_training() -> None:
    trained = {encoding().decode(sample.prompt) for sample in islice(Corpus(0), 500)}
    asked = {encoding().decode(sample.prompt) for sample in islice(Corpus(0, held=True), 500)}
    assert not trained & asked
    text = "\n".join(trained)
    for phrase in ("Granada", "get_city_weather", "Do you know the capital", "Tunisia"):
        assert phrase not in text
        assert phrase in "\n".join(asked)


def test_no_phrasing_is_both_seen_and_held() -> None:
    everything = [value for value in vars(knowledge).values() if value and isinstance(value, tuple)]
    phrasings = [value for value in everything if isinstance(value, knowledge.Phrasings)]
    topics = [*knowledge.SMALL_TALK, *knowledge.ANTIPHON]
    for seen, held in [*phrasings, *(topic.questions for topic in topics)]:
        assert held
        assert not set(seen) & set(held)


def test_all_kinds_occur() -> None:
    kinds = {sample.kind for sample in islice(Corpus(1), 800)}
    assert kinds >= {"talk", "fact", "capital", "sum", "unknown", "call", "report", "json"}


def test_words_are_one_token_in_both_forms() -> None:
    for word, token in islice(words().items(), 0, None, 500):
        assert encoding().encode(f" {word}") == [token]
        assert len(encoding().encode(word)) == 1


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ('{"city":"Oslo","days":1}', True),
        ('{"city":"Oslo","days":1,"unit":"c"}', True),
        ('{"city":"Oslo","days":1,"unit":"k"}', False),
        ('{"city":"Oslo"}', False),
        ('{"city":"Oslo","days":"1"}', False),
        ('{"city":"Oslo","days":true}', False),
        ('{"city":"Oslo","days":1,"sky":"blue"}', False),
        ('["city"]', False),
        ('{"city":', False),
    ],
)
def test_arguments_are_checked_against_their_schema(text: str, fitting: bool) -> None:
    unit = {"type": "string", "enum": ["c", "f"]}
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": unit}
    schema = {"type": "object", "properties": properties, "required": ["city", "days"]}
    assert toolbox.fits(schema, text) is fitting


def test_a_wished_unit_is_passed_on() -> None:
    declared = next(
        tool
        for tool in (toolbox.tool(Random(seed), toolbox.WEATHER, False) for seed in range(99))
        if toolbox.units(tool)
    )
    unit = toolbox.units(declared)[1]
    assert unit in json.loads(toolbox.arguments(declared, "Oslo", unit)).values()

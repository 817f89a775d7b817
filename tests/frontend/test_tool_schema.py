"""What a function's JSON schema looks like to the model."""

from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding
from pydantic import BaseModel, Field

from frontend.conversation import Conversation, Tool
from frontend.prompt import PromptRenderer
from frontend.tool_schema import MAX_SCHEMAS, plain_schema
from tests.frontend.conftest import TODAY


class Point(BaseModel):
    """A place."""

    x: float
    y: float | None = None


class Shape(BaseModel):
    kind: Literal["circle"]
    color: Literal["red", "blue"] = "red"
    centre: Point
    corners: list[Point] = Field(description="All of them.")
    next: "Shape | None" = None


def shown(renderer: PromptRenderer, harmony: HarmonyEncoding, schema: dict[str, Any]) -> str:
    tool = Tool("draw", "Draws.", schema)
    text = harmony.decode(renderer.render(Conversation([], tools=(tool,)), TODAY))
    return text.partition("type draw = ")[2].partition("\n\n} // namespace")[0]


def test_a_schema_of_pydantic(renderer: PromptRenderer, harmony: HarmonyEncoding) -> None:
    text = shown(renderer, harmony, Shape.model_json_schema())
    for line in ('kind: "circle"', '"red" | "blue"', "x: number", "y?:", "| number", "}[]"):
        assert line in text
    assert "All of them." in text
    assert "$" not in text


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({}, {}),
        ({"$schema": "x", "type": "object"}, {"type": "object"}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"$ref": {"type": "string"}, "type": {"enum": ["a"]}}},
            {
                "type": "object",
                "properties": {
                    "$ref": {"type": "string"},
                    "type": {"type": "string", "enum": ["a"]},
                },
            },
        ),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, "a"]}, {"enum": [1, "a"]}),
        ({"allOf": [{"type": "string"}], "title": "T"}, {"type": "string", "title": "T"}),
        ({"anyOf": [{"const": "a"}]}, {"oneOf": [{"type": "string", "enum": ["a"]}]}),
        ({"default": {"$ref": "#/x"}}, {"default": {"$ref": "#/x"}}),
        ({"$ref": "#"}, {}),
        ({"$ref": "https://example.org/x.json", "description": "d"}, {"description": "d"}),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, {"type": "null"}),
        ({"$ref": "#/$defs/none"}, {}),
        ({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, {}),
        ({"properties": [1], "items": 3, "anyOf": 4, "allOf": 5}, {}),
    ],
)
def test_plain_schema(schema: dict[str, Any], plain: dict[str, Any]) -> None:
    assert plain_schema(schema) == plain


def test_a_recursive_schema_ends() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {}}}
    schema["$defs"] = {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}
    assert plain_schema(schema) == {"type": "array", "items": {"type": "array", "items": {}}}


def count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(count(child) for child in value.values())
    return 0


def test_references_that_double_are_bounded() -> None:
    definitions = {
        f"d{n}": {"properties": {c: {"$ref": f"#/$defs/d{n + 1}"} for c in "ab"}} for n in range(60)
    }
    plain = plain_schema({"$ref": "#/$defs/d0", "$defs": definitions})
    assert count(plain) <= 2 * MAX_SCHEMAS + 200


KEYS = st.sampled_from(
    [
        *("type", "properties", "required", "enum", "default", "description", "items", "oneOf"),
        *("anyOf", "allOf", "nullable", "title", "examples", "const", "$ref", "$defs", "a", "n\n"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["string", "object", "array", "null", "#", "#/a", "#/$defs/a", "<|end|>"]),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(KEYS, child, max_size=4),
    max_leaves=16,
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_schema_renders(
    renderer: PromptRenderer, harmony: HarmonyEncoding, schema: dict[str, Any]
) -> None:
    tool = Tool("f", "", schema)
    prompt = renderer.render(Conversation([], tools=(tool,)), TODAY)
    assert sum(harmony.is_special_token(token) for token in prompt) == 7


def test_the_deepest_schema_renders(renderer: PromptRenderer) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(49):
        schema = {"type": "object", "properties": {"a": schema}}
    for _ in range(3):
        schema = {"type": "object", "properties": {"b": {"anyOf": [schema]}}}
    assert renderer.render(Conversation([], tools=(Tool("f", "", schema),)), TODAY)

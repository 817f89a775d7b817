"""What a request says that its answer must be like: constraint, prompt and echo, and the errors."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from openai_harmony import HarmonyEncoding

from frontend.conversation import Choice, OutputFormat
from frontend.errors import InvalidRequestError
from frontend.prepare import Prepared
from frontend.structured import ANY_OBJECT, Wanted, constraint_of
from ipc.messages import Constraint, Grammar
from tests.frontend.test_prepare import Edge, echo, edge

__all__ = ["edge"]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
GRAMMAR = Grammar(
    "json_schema", '{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}'
)
BAD = {"type": "object", "properties": {"x": {"type": "strange"}}}


def chat_tools(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": function} for function in functions]


def responses_tools(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", **function} for function in functions]


def constraint(prepared: Prepared) -> Constraint | None:
    return asyncio.run(constraint_of(prepared.wanted))


F, G = {"name": "f", "parameters": SCHEMA}, {"name": "g"}
STRICT = {**F, "strict": True}
EITHER_API: list[tuple[Callable[[Edge], Callable[..., Prepared]], Callable[..., Any], Any]] = [
    (lambda edge: edge.chat, chat_tools, {"type": "function", "function": {"name": "f"}}),
    (lambda edge: edge.responses, responses_tools, {"type": "function", "name": "f"}),
]


@pytest.mark.parametrize(("api", "tools", "named"), EITHER_API, ids=["chat", "responses"])
def test_tools(edge: Edge, api: Any, tools: Any, named: Any) -> None:
    prepare = api(edge)
    assert constraint(prepare()) is None
    assert constraint(prepare(tools=tools(F, G))) is None
    assert constraint(prepare(tools=tools(STRICT, G))) == Constraint(
        calls={"f": GRAMMAR, "g": None}
    )
    assert constraint(prepare(tools=tools(STRICT), tool_choice="none")) == Constraint()
    both: dict[str, Grammar | None] = {"f": GRAMMAR, "g": ANY_OBJECT}
    required = prepare(tools=tools(F, G), tool_choice="required")
    assert constraint(required) == Constraint(calls=both, must_call=True)
    forced = prepare(tools=tools(F, G), tool_choice=named)
    assert constraint(forced) == Constraint(calls={"f": GRAMMAR}, must_call=True)
    assert required.tools == forced.tools == ("f", "g")


@pytest.mark.parametrize(("api", "tools", "named"), EITHER_API, ids=["chat", "responses"])
def test_choices_of_what_is_not_offered(edge: Edge, api: Any, tools: Any, named: Any) -> None:
    for members in ({"tool_choice": "required"}, {"tools": tools(G), "tool_choice": named}):
        with pytest.raises(InvalidRequestError) as caught:
            constraint(api(edge)(**members))
        assert caught.value.param == "tool_choice"


def test_formats(edge: Edge) -> None:
    schema = {"name": "answer", "schema": SCHEMA, "strict": True}
    chat = edge.chat(response_format={"type": "json_schema", "json_schema": schema})
    responses = edge.responses(text={"format": {"type": "json_schema", **schema}})
    assert constraint(chat) == constraint(responses) == Constraint(final=GRAMMAR)
    assert chat.prompt == responses.prompt
    chat = edge.chat(response_format={"type": "json_object"})
    responses = edge.responses(text={"format": {"type": "json_object"}})
    assert constraint(chat) == constraint(responses) == Constraint(final=ANY_OBJECT)
    assert chat.prompt == edge.chat().prompt


@pytest.mark.parametrize("instructions", [None, "Be brief."])
@pytest.mark.parametrize("tools", [None, responses_tools(F)])
def test_a_schema_is_shown_to_the_model(
    edge: Edge, harmony: HarmonyEncoding, instructions: str | None, tools: Any
) -> None:
    asked = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "description": "Say x."}
    prepared = edge.responses(instructions=instructions, tools=tools, text={"format": asked})
    prompt = harmony.decode(prepared.prompt)
    shown = f"# Response Formats\n\n## answer\n\n// Say x.\n{GRAMMAR.text}<|end|>"
    developer = prompt[prompt.index("<|start|>developer<|message|>") :]
    assert shown in developer
    assert ("# Instructions\n\nBe brief.\n\n#" in developer) == (instructions is not None)
    assert ("} // namespace functions\n\n# Response" in developer) == (tools is not None)


@pytest.mark.parametrize(
    ("api", "members", "param"),
    [
        (
            "chat",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": BAD},
                }
            },
            "response_format.json_schema.schema",
        ),
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": BAD}}},
            "text.format.schema",
        ),
        (
            "chat",
            {"tools": chat_tools(G, {"name": "h", "parameters": BAD, "strict": True})},
            "tools[1].function.parameters",
        ),
        (
            "responses",
            {
                "tools": responses_tools({"name": "h", "parameters": BAD, "strict": True}),
                "tool_choice": "required",
            },
            "tools[0].parameters",
        ),
    ],
)
def test_schemas_that_cannot_be_followed(
    edge: Edge, api: str, members: dict[str, Any], param: str
) -> None:
    prepared = getattr(edge, api)(**members)
    with pytest.raises(InvalidRequestError) as caught:
        constraint(prepared)
    assert (caught.value.param, caught.value.code) == (param, "invalid_json_schema")


def test_a_schema_that_is_too_long() -> None:
    schema = {"enum": [f"{number:0>99}" for number in range(3000)]}
    wanted = Wanted(OutputFormat("text.format.schema", "a", schema=schema), (), Choice())
    with pytest.raises(InvalidRequestError, match="longer than"):
        asyncio.run(constraint_of(wanted))


def asked_for(schema: dict[str, Any]) -> Constraint | None:
    return asyncio.run(constraint_of(Wanted(OutputFormat("p", "a", schema=schema), (), Choice())))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Who.", "title": "Name", "pattern": "^[^/]+$"},
        "mail": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        "age": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 150},
        "price": {"type": "number", "multipleOf": 0.01, "maximum": 1e6},
        "when": {"type": "string", "format": "date-time"},
        "size": {"type": "string", "enum": ["S", "M", "größer als L"]},
        "kind": {"const": "person", "type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "parent": {"$ref": "#"},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
    },
    "required": ["name", "mail", "age", "price", "when", "size", "kind", "tags", "friends"],
    "additionalProperties": False,
    "$defs": {"friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "$schema": "http://json-schema.org/draft-07/schema#",
}
MANY = {f"property_{number}": {"type": "string"} for number in range(1000)}


def strings(form: str) -> dict[str, Any]:
    return {"type": "string", "format": form}


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {"type": "object", "properties": MANY, "required": list(MANY)},
        {"enum": [f"value {number}" for number in range(1000)]},
        {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
        {"type": "string", "minLength": 1_000_000},
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}},
        {"type": "object", "properties": {"a": True, "b": False, "c": {}}},
        {},
        *map(strings, ["date", "time", "duration", "hostname", "ipv4", "ipv6", "uuid", "uri"]),
    ],
)
def test_what_clients_ask_for_is_accepted(schema: dict[str, Any]) -> None:
    assert asked_for(schema) is not None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"properties": {"a": {"propertyNames": {}}}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "string", "format": "strange"}, "strange"),
        ({"type": "string", "pattern": "(?!a)b"}, "look-ahead"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
        ({"$ref": "http://localhost/x.json"}, "http://localhost/x.json"),
        ({"$ref": "#/$defs/none"}, "/$defs/none"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "integer", "multipleOf": 123_457}, "multipleOf"),
        ({"enum": []}, ""),
    ],
)
def test_what_cannot_be_followed_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked_for(schema)
    assert caught.value.code == "invalid_json_schema"
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "option" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_names_of_functions_do_not_break_out(edge: Edge) -> None:
    for name in ("a b", 'f" | "g', "f\n", "f.g", "", "é", "f/*"):
        with pytest.raises(InvalidRequestError):
            edge.chat(tools=chat_tools({"name": name, "strict": True}))


def test_a_format_without_functions_lets_none_be_called(edge: Edge) -> None:
    asked = {"type": "json_object"}
    assert constraint(edge.chat(response_format=asked)) == Constraint(final=ANY_OBJECT)
    offered = edge.chat(response_format=asked, tools=chat_tools(F, G))
    assert constraint(offered) == Constraint(final=ANY_OBJECT, calls={"f": None, "g": None})


def test_the_event_loop_goes_on_while_a_schema_is_checked() -> None:
    async def ticks() -> int:
        ticking, count = asyncio.create_task(constraint_of(wanted)), 0
        while not ticking.done():
            await asyncio.sleep(0)
            count += 1
        await ticking
        return count

    schema = {"enum": [f"one of many {number}" for number in range(5000)]}
    wanted = Wanted(OutputFormat("p", "a", schema=schema), (), Choice())
    assert asyncio.run(ticks()) > 20


def test_a_forced_function_that_is_not_strict_takes_any_object_at_worst(edge: Edge) -> None:
    tools = chat_tools({"name": "f", "parameters": BAD})
    prepared = edge.chat(tools=tools, tool_choice="required")
    assert constraint(prepared) == Constraint(calls={"f": ANY_OBJECT}, must_call=True)


def test_echo() -> None:
    asked = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    members = echo(
        text={"format": asked},
        tool_choice={"type": "function", "name": "f"},
        tools=responses_tools(STRICT),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
    )
    assert members["text"]["format"] == {**asked, "description": None}
    assert members["tool_choice"] == {"type": "function", "name": "f"}
    assert members["tools"][0]["strict"] is True
    assert (members["presence_penalty"], members["frequency_penalty"]) == (0.5, -0.5)
    assert json.dumps(echo(tool_choice="required")["tool_choice"]) == '"required"'


def test_sampling_and_scheduling(edge: Edge) -> None:
    members = {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_p": 0.1,
        "logit_bias": {"5": -100, "7": 1.5},
        "priority": -3,
        "cache_salt": "s",
    }
    for prepared in (edge.chat(**members), edge.responses(**members)):
        sampling = prepared.sampling
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert (sampling.repetition_penalty, sampling.min_p) == (1.1, 0.1)
        assert sampling.logit_bias == {5: -100, 7: 1.5}
        assert (prepared.priority, prepared.cache_salt) == (-3, "s")


def test_a_bias_for_no_token(edge: Edge) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        edge.chat(logit_bias={"999999": 1})
    assert caught.value.param == "logit_bias"


PATCH = """
start: head change+ tail
head: "*** Begin" LF
tail: "*** End" LF?
change: "*** File: " path LF hunk?
hunk: (("@@" | "@@ " /(.+)/) LF)? line+
line: ("+" | "-" | " ") /(.*)/ LF -> line
path: /(.+)/
%import common.LF
"""
LARK = {"type": "grammar", "syntax": "lark", "definition": PATCH}


def custom_tool(api: str, name: str, form: dict[str, Any] | None = None) -> dict[str, Any]:
    if api == "responses":
        return {"type": "custom", "name": name, "format": form}
    if form is not None and form["type"] == "grammar":
        inner = {k: v for k, v in form.items() if k != "type"}
        form = {"type": "grammar", "grammar": inner}
    return {"type": "custom", "custom": {"name": name, "format": form}}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_custom_tools(edge: Edge, api: str) -> None:
    prepare: Callable[..., Prepared] = getattr(edge, api)
    plain, bound = custom_tool(api, "p", {"type": "text"}), custom_tool(api, "b", LARK)
    prepared = prepare(tools=[plain])
    assert (prepared.tools, prepared.custom) == (("p",), ("p",))
    assert constraint(prepared) is None
    grammar = Grammar("lark", PATCH)
    assert constraint(prepare(tools=[plain, bound])) == Constraint(
        calls={"p": None, "b": grammar}, custom=("p", "b")
    )
    assert constraint(prepare(tools=[plain], tool_choice="required")) == Constraint(
        calls={"p": None}, must_call=True, custom=("p",)
    )
    with pytest.raises(InvalidRequestError) as caught:
        constraint(prepare(tools=[custom_tool(api, "b", {**LARK, "definition": "start: ("})]))
    assert caught.value.code == "invalid_grammar"
    assert caught.value.param is not None
    assert caught.value.param.endswith("definition")


def test_tools_of_a_namespace(edge: Edge) -> None:
    space = {"type": "namespace", "name": "n", "tools": responses_tools(STRICT)}
    named = {"type": "function", "name": "f", "namespace": "n"}
    prepared = edge.responses(tools=[space, *responses_tools(G)], tool_choice=named)
    assert prepared.tools == ("n.f", "g")
    assert constraint(prepared) == Constraint(calls={"n.f": GRAMMAR}, must_call=True)


def test_allowed_tools_are_all_shown_and_others_not_called(edge: Edge) -> None:
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}
    tools = responses_tools(F, G)
    auto = edge.responses(tools=tools, tool_choice={**allowed, "mode": "auto"})
    assert auto.prompt == edge.responses(tools=tools).prompt
    assert constraint(auto) == Constraint(calls={"f": None})
    required = edge.responses(tools=tools, tool_choice={**allowed, "mode": "required"})
    assert constraint(required) == Constraint(calls={"f": GRAMMAR}, must_call=True)

"""Bodies of Messages requests: accepted, or refused with a 400 that names the place."""

from typing import Any

import msgspec
import pytest

from frontend.errors import InvalidRequestError
from frontend.requests.fields import MAX_ITEMS
from frontend.requests.messages import (
    MessagesPrompt,
    MessagesRequest,
    parse_messages,
    parse_messages_prompt,
)

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}
MISSING = "missing_required_parameter"


def parsed(**members: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **members}
    return parse_messages(msgspec.json.encode(body))


def said(role: str, *blocks: Any) -> dict[str, Any]:
    """A message with such blocks, and one of the user behind it."""
    return {"messages": [{"role": role, "content": list(blocks)}, USER]}


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [USER, {"role": "system", "content": "Be brief."}]},
        said("user", {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}),
        said("user", RESULT, {**RESULT, "content": "x", "is_error": True}),
        said("user", {**RESULT, "content": [{"type": "text", "text": "x"}]}),
        said("user", {**RESULT, "content": [{"type": "tool_reference", "tool_name": "f"}]}),
        said("assistant", {"type": "thinking", "thinking": "Hm", "signature": ""}, CALL),
        said("assistant", {"type": "redacted_thinking", "data": "x"}),
        said("assistant", {"type": "server_tool_use", "id": "s", "name": "x", "input": {}}),
        said("system", {"type": "text", "text": "Be brief."}),
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": None}]},
        {"tools": [TOOL, {**TOOL, "type": "custom", "strict": True, "defer_loading": True}]},
        {"tools": [{**TOOL, "name": "mcp__" + "a" * 120}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "tool", "name": "f"}},
        {"temperature": 1, "top_p": 0.9, "top_k": 5, "stop_sequences": ["x"]},
        {"thinking": {"type": "adaptive", "display": "updates"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "max", "format": None}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"context_management": {"edits": []}, "metadata": {"user_id": "u"}, "betas": ["x"]},
        {"service_tier": "auto", "container": None, "mcp_servers": [], "some_future_field": 1},
        dict.fromkeys(
            name
            for name in MessagesRequest.model_fields
            if name not in ("model", "max_tokens", "messages")
        ),
    ],
)
def test_accepted(members: dict[str, Any]) -> None:
    assert parsed(**members).model == "m"


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [USER, {"role": "assistant", "content": "The answer is ("}]},
            "messages",
            "unsupported_value",
        ),
        (
            said("user", {"type": "image", "source": {}}),
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        (
            said("user", {**RESULT, "content": [{"type": "document"}]}),
            "messages[0].content[0].content[0].type",
            "unsupported_value",
        ),
        (said("user", CALL), "messages[0].content[0].type", "unsupported_value"),
        (said("user", {"type": "tool_result"}), "messages[0].content[0].tool_use_id", MISSING),
        (
            said("assistant", {**CALL, "name": "a<|end|>"}),
            "messages[0].content[0].name",
            "invalid_value",
        ),
        (
            said("assistant", {**CALL, "input": "{}"}),
            "messages[0].content[0].input",
            "invalid_type",
        ),
        (
            said("assistant", {**CALL, "input": nested(101)}),
            "messages[0].content[0].input",
            "invalid_value",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type", "unsupported_value"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", MISSING),
        ({"tools": [{**TOOL, "name": "a" * 129}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**TOOL, "input_schema": nested(101)}]}, "tools[0]", "invalid_value"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", MISSING),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type", "invalid_value"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_type"),
        ({"temperature": 1.1}, "temperature", "invalid_value"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "invalid_value"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "invalid_value"),
        ({"thinking": {"type": "on"}}, "thinking.type", "invalid_value"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "invalid_value"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema",
            MISSING,
        ),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "unsupported_value"),
        ({"container": "c"}, "container", "unsupported_parameter"),
    ],
)
def test_refused(members: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parsed(**members)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert f"'{param}'" in caught.value.message


def test_a_limit_is_required_but_not_to_count() -> None:
    body = msgspec.json.encode({"model": "m", "messages": [USER]})
    assert isinstance(parse_messages_prompt(body), MessagesPrompt)
    with pytest.raises(InvalidRequestError) as caught:
        parse_messages(body)
    assert (caught.value.param, caught.value.code) == ("max_tokens", MISSING)


def test_a_list_is_not_read_beyond_what_any_context_holds() -> None:
    blocks = [{"type": "text", "text": ""}] * (MAX_ITEMS + 1)
    with pytest.raises(InvalidRequestError) as caught:
        parsed(**said("user", *blocks))
    assert caught.value.param == "messages[0].content"


def test_stop_strings_under_either_name() -> None:
    assert parsed(stop_sequences=["a"], stop="b").stop_strings() == ("a",)
    assert parsed(stop="b").stop_strings() == ("b",)
    assert parsed().stop_strings() == ()

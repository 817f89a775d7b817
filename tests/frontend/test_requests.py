"""Tables of requests and their outcomes: accepted, or refused with a 400 that names the place."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from frontend.errors import InvalidRequestError
from frontend.requests.chat import ChatRequest, parse_chat
from frontend.requests.fields import MAX_ITEMS
from frontend.requests.responses import ResponsesRequest, parse_responses

FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CHAT_FUNCTION = {"type": "function", "function": {"name": "get_weather"}}
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def responses(**members: Any) -> ResponsesRequest:
    return parse_responses(msgspec.json.encode({"model": "m", "input": "Hi", **members}))


def chat(**members: Any) -> ChatRequest:
    return parse_chat(msgspec.json.encode({"model": "m", "messages": [USER], **members}))


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


CUSTOM: dict[str, Any] = {"type": "custom", "name": "c"}
CHOSEN = {"type": "function", "name": "f"}
MISSING = "missing_required_parameter"


def assistant(**members: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **members}]}


@pytest.mark.parametrize(
    "members",
    [
        {"input": ""},
        {"input": [USER]},
        {"input": [{"type": "message", **USER}]},
        {"input": [{"type": None, **USER}]},
        {"input": [{"role": "developer", "content": []}]},
        {"input": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}]},
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        {"input": [{"type": "reasoning", "content": None}]},
        {"input": [CALL, {"type": "function_call_output", "call_id": "c", "output": []}]},
        {"input": [{"type": "web_search_call", "id": 1}]},
        {"tools": [FUNCTION], "tool_choice": "auto"},
        {"tools": [{"type": "function", "name": "f", "strict": True, "description": None}]},
        {"tools": [{"type": "web_search", "external_web_access": True}, {"type": "mcp"}]},
        {"tools": [CUSTOM, {**CUSTOM, "name": "d", "format": {"type": "text"}}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION, CUSTOM, {"type": "x"}]}]},
        {"tool_choice": {"type": "custom", "name": "c"}},
        {"tool_choice": {"type": "function", "name": "f", "namespace": "n"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [CHOSEN]}},
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"}]},
        {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": "x"}]},
        {"input": [{"type": "compaction", "id": "i", "encrypted_content": "x"}]},
        {"input": [{"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}]},
        {"input": [{"type": "item_reference", "id": "rs_1"}, {"id": "rs_2"}]},
        {"input": None, "previous_response_id": "r"},
        {"input": [], "conversation": {"id": "conv_1"}},
        {"conversation": "conv_1"},
        {"background": True, "store": True},
        {"include": ["message.output_text.logprobs", "file_search_call.results"]},
        {"top_logprobs": 20},
        {"tools": []},
        {"tool_choice": "none"},
        {"reasoning": {"effort": "xhigh", "summary": "auto", "context": "auto"}},
        {"reasoning": {}},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"text": {}},
        {"temperature": 0, "top_p": 1, "top_k": -1, "seed": -1, "stop": "END"},
        {"stop": ["x"] * 16, "ignore_eos": True, "min_tokens": 3},
        {"max_output_tokens": 1, "max_tool_calls": 3},
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "p"},
        {"store": True, "stream": True, "stream_options": {"include_obfuscation": False}},
        {"include": ["reasoning.encrypted_content"], "truncation": "auto"},
        {"service_tier": "flex", "top_logprobs": 0, "background": False},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"client_metadata": {"a": "b"}, "some_future_field": 1, "repetition_penalty": 1.0},
        dict.fromkeys(
            name for name in ResponsesRequest.model_fields if name not in ("model", "input")
        ),
    ],
)
def test_responses_accepts(members: dict[str, Any]) -> None:
    assert responses(**members).model == "m"


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": ""}, "model", "invalid_value"),
        ({"model": None}, "model", "invalid_type"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [1]}, "input[0]", "invalid_type"),
        ({"input": [{}]}, "input[0].type", "missing_required_parameter"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [USER, {"role": "user", "content": 1}]}, "input[1].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "unsupported_value",
        ),
        ({"input": [{"type": "item_reference"}]}, "input[0].id", "missing_required_parameter"),
        ({"input": [{**CALL, "name": "a b"}]}, "input[0].name", "invalid_value"),
        ({"input": [{**CALL, "name": "a<|end|>"}]}, "input[0].name", "invalid_value"),
        ({"instructions": ["x"]}, "instructions", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter"),
        ({"tools": [FUNCTION, {**FUNCTION, "name": "a.b"}]}, "tools[1].name", "invalid_value"),
        ({"tools": [{**FUNCTION, "name": "a\n"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**FUNCTION, "name": "a<|end|>"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**FUNCTION, "name": "a" * 65}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**FUNCTION, "parameters": deep(101)}]}, "tools[0]", "invalid_value"),
        ({"tools": [{"type": "mcp", "x": deep(101)}]}, "tools[0]", "invalid_value"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{**CUSTOM, "format": {"type": "x"}}]}, "tools[0].format.type", "invalid_value"),
        (
            {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "ebnf"}}]},
            "tools[0].format.syntax",
            "invalid_value",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            "tools[0].tools[0].name",
            "missing_required_parameter",
        ),
        (
            {"tools": [{"type": "namespace", "name": "functions", "tools": []}]},
            "tools[0].name",
            "invalid_value",
        ),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "unsupported_value"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
            "text.format.name",
            "invalid_value",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": deep(101)}}},
            "text.format.schema",
            "invalid_value",
        ),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"stop": 1}, "stop", "invalid_type"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"include": ["everything"]}, "include[0]", "unsupported_value"),
        ({"truncation": "middle"}, "truncation", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"min_p": 1.1}, "min_p", "invalid_value"),
        ({"priority": "high"}, "priority", "invalid_type"),
        ({"cache_salt": "x" * 257}, "cache_salt", "invalid_value"),
        (
            {"previous_response_id": "r", "conversation": "c"},
            "previous_response_id",
            "mutually_exclusive_parameters",
        ),
        ({"conversation": {}}, "conversation.id", "missing_required_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ],
)
def test_responses_refuses(members: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        responses(**members)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert f"'{param}'" in caught.value.message
    assert len(caught.value.message) < 160


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
        {"messages": [{"role": "system", "content": []}, USER]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "A"}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": None}]},
        {"messages": [USER, {"role": "assistant", "reasoning": "x", "reasoning_content": "x"}]},
        {"messages": [USER, {"role": "assistant", "content": "Hi", "refusal": None}]},
        {"tools": [CHAT_FUNCTION, {"type": "custom", "custom": {"name": "x"}}]},
        {"tool_choice": "none", "parallel_tool_calls": False},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": 1}},
        {"max_tokens": 1, "max_completion_tokens": 2, "n": 2, "logprobs": False},
        {"logprobs": True, "top_logprobs": 3},
        {"tool_choice": {"type": "custom", "custom": {"name": "x"}}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "x"}}],
                },
            }
        },
        assistant(tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "x", "input": ""}}]),
        {"response_format": {"type": "text"}, "reasoning_effort": "minimal"},
        {"logit_bias": {}, "modalities": ["text"], "top_logprobs": 0},
        {"user": "u", "metadata": 3, "store": True, "ignore_eos": True, "repetition_penalty": 1},
        dict.fromkeys(
            name for name in ChatRequest.model_fields if name not in ("model", "messages")
        ),
    ],
)
def test_chat_accepts(members: dict[str, Any]) -> None:
    assert chat(**members).model == "m"


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "x"}, "messages", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        (
            {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]},
            "messages[1].role",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].tool_call_id",
            "missing_required_parameter",
        ),
        (
            assistant(tool_calls=[{"id": "c", "type": "mcp", "mcp": {}}]),
            "messages[1].tool_calls[0].type",
            "unsupported_value",
        ),
        (
            assistant(tool_calls=[{"id": "c", "function": {"name": "f f", "arguments": ""}}]),
            "messages[1].tool_calls[0].function.name",
            "invalid_value",
        ),
        (
            assistant(function_call={"name": "f"}),
            "messages[1].function_call",
            "unsupported_parameter",
        ),
        ({"tools": [FUNCTION]}, "tools[0].function", "missing_required_parameter"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.function", MISSING),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", MISSING),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias.Paris", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"modalities": ["text", "audio"]}, "modalities[1]", "unsupported_value"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ],
)
def test_chat_refuses(members: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**members)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"\xff", b'{"model": NaN}', b'"\\ud800x"', b"[" * 100_000, b"null"],
)
def test_a_body_that_is_no_json_object(body: bytes) -> None:
    for parse in (parse_responses, parse_chat):
        with pytest.raises(InvalidRequestError) as caught:
            parse(body)
        assert caught.value.code == "invalid_json"


def test_absent_members_are_named() -> None:
    for parse in (parse_responses, parse_chat):
        with pytest.raises(InvalidRequestError) as caught:
            parse(b"{}")
        assert caught.value.param == "model"


def test_a_long_list_of_mistakes_gives_one_error() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        responses(input=[{"role": "user", "content": 1}] * 10_000)
    assert caught.value.param == "input[0].content"


@pytest.mark.parametrize(
    ("parse", "members", "param"),
    [
        (responses, {"input": [{"type": "x"}]}, "input"),
        (responses, {"tools": [{"type": "x"}]}, "tools"),
        (chat, {"messages": [USER]}, "messages"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, ""),
    ],
)
def test_a_list_is_not_read_beyond_what_any_context_holds(
    parse: Callable[..., object], members: dict[str, list[Any]], param: str
) -> None:
    """8 MiB of small items took 3 s of the event loop, 64 MiB took 45 s."""
    ((member, items),) = members.items()
    if not param:
        items[0]["content"] *= MAX_ITEMS + 1
        param = "messages[0].content"
    else:
        items *= MAX_ITEMS + 1
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_ITEMS} items, not") as caught:
        parse(**{member: items})
    assert caught.value.param == param

"""Any JSON at any place of a request gives a prepared request or an ApiError of 4xx."""

import asyncio
import copy
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from frontend.errors import ApiError
from frontend.prepare import (
    Prepared,
    count_prompt_tokens,
    prepare_chat,
    prepare_messages,
    prepare_responses,
)
from frontend.prepare_completions import prepare_completions
from frontend.prompt import PromptRenderer
from frontend.requests.chat import ChatRequest, parse_chat
from frontend.requests.completions import CompletionRequest, parse_completion
from frontend.requests.messages import (
    MessagesRequest,
    parse_messages,
    parse_messages_prompt,
)
from frontend.requests.responses import ResponsesRequest, parse_responses
from ipc.messages import EngineInfo, GenerationRequest, Open
from tests.frontend.conftest import TODAY

PROFILE = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
SCHEMA = {
    "$schema": "x",
    "type": "object",
    "properties": {"a": {"anyOf": [{"type": "string", "enum": ["x"]}, {"$ref": "#/$defs/b"}]}},
    "required": ["a"],
    "$defs": {"b": {"type": "integer", "default": 1}},
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "phase": "x"},
        {"type": "other"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
        {"type": "web_search", "x": {"y": [1]}},
    ],
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "stop": ["x"],
}
CHAT: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "messages": [
        {"role": "system", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": "x",
            "reasoning": "x",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "x", "parameters": SCHEMA}},
        {"type": "mcp", "server_label": "s"},
    ],
    "response_format": {"type": "text"},
    "stream_options": {"include_usage": True},
    "modalities": ["text"],
    "stop": ["x"],
}
MESSAGES: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "system", "content": "x"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "antiphon-eA=="},
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "tool_reference", "tool_name": "g"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "x", "input_schema": SCHEMA, "strict": True},
        {"name": "g", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["x"],
}

COMPLETION: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "prompt": [[1, 2], [200_006]],
    "n": 2,
    "best_of": 2,
    "logprobs": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"5": 1.0},
    "special_tokens": True,
    "stop": ["x"],
}

WORDS = st.sampled_from(
    [
        *("auto", "none", "text", "function", "message", "reasoning", "user", "assistant", "tool"),
        *("input_text", "refusal", "item_reference", "<|end|>", "", "gpt-oss-20b", "type", "role"),
        *("$ref", "#", "properties", "object", "<list>", "content", "name", "model_dump", "\x00"),
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(max_size=10),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(WORDS, child, max_size=3),
    max_leaves=10,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) in a JSON value."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@st.composite
def mutated(draw: st.DrawFn, request: dict[str, Any], members: list[str]) -> dict[str, Any]:
    """A good request with a few places changed, and a few members set."""
    changed = copy.deepcopy(request)
    for _ in range(draw(st.integers(0, 2))):
        container, key = draw(st.sampled_from(places(changed)))
        if draw(st.integers(0, 4)) == 0:
            del container[key]
        else:
            container[key] = draw(JSON)
        if not changed:
            return changed
    changed.update(draw(st.dictionaries(st.sampled_from(members), JSON, max_size=2)))
    return changed


def sendable(prepared: Prepared) -> None:
    """It fits the messages to engine and worker."""
    generate = GenerationRequest(1, 1, 0, prepared.prompt, prepared.sampling)
    msgspec.msgpack.decode(msgspec.msgpack.encode(generate), type=GenerationRequest)
    opened = Open(
        1,
        1,
        "resp_1",
        prepared.model,
        1,
        len(prepared.prompt),
        prepared.format,
        prepared.streaming,
        prepared.tools,
        prepared.stop,
        prepared.parallel_tool_calls,
    )
    msgspec.msgpack.decode(msgspec.msgpack.encode(opened), type=Open)


def well_formed(error: ApiError) -> None:
    assert 400 <= error.status < 500
    assert error.message
    assert len(error.message) < 400
    msgspec.json.encode(error.body())


@PROFILE
@given(mutated(RESPONSES, sorted(ResponsesRequest.model_fields)))
@example(RESPONSES)
def test_responses(renderer: PromptRenderer, engine: EngineInfo, body: dict[str, Any]) -> None:
    try:
        request = parse_responses(msgspec.json.encode(body))
        sendable(prepare_responses(request, engine, renderer, TODAY))
    except ApiError as error:
        well_formed(error)


@PROFILE
@given(mutated(CHAT, sorted(ChatRequest.model_fields)))
@example(CHAT)
def test_chat(renderer: PromptRenderer, engine: EngineInfo, body: dict[str, Any]) -> None:
    try:
        request = parse_chat(msgspec.json.encode(body))
        sendable(prepare_chat(request, engine, renderer, TODAY))
    except ApiError as error:
        well_formed(error)


@PROFILE
@given(mutated(MESSAGES, sorted(MessagesRequest.model_fields)))
@example(MESSAGES)
def test_messages(renderer: PromptRenderer, engine: EngineInfo, body: dict[str, Any]) -> None:
    encoded = msgspec.json.encode(body)
    try:
        sendable(prepare_messages(parse_messages(encoded), engine, renderer, TODAY))
    except ApiError as error:
        well_formed(error)
    else:
        assert count_prompt_tokens(parse_messages_prompt(encoded), engine, renderer, TODAY)


@PROFILE
@given(mutated(COMPLETION, sorted(CompletionRequest.model_fields)))
@example(COMPLETION)
def test_completions(renderer: PromptRenderer, engine: EngineInfo, body: dict[str, Any]) -> None:
    try:
        request = parse_completion(msgspec.json.encode(body))
        for prepared in asyncio.run(prepare_completions(request, engine, renderer)):
            sendable(prepared)
    except ApiError as error:
        well_formed(error)


@PROFILE
@given(st.binary(max_size=40) | JSON.map(msgspec.json.encode))
def test_any_body(body: bytes) -> None:
    for parse in (parse_responses, parse_chat, parse_messages, parse_completion):
        try:
            parse(body)
        except ApiError as error:
            well_formed(error)


def test_the_requests_that_are_changed_are_good(
    renderer: PromptRenderer, engine: EngineInfo
) -> None:
    """Otherwise the tests above would see errors alone."""
    responses = parse_responses(msgspec.json.encode(RESPONSES))
    assert prepare_responses(responses, engine, renderer, TODAY).tools == ("f",)
    chat = parse_chat(msgspec.json.encode(CHAT))
    assert prepare_chat(chat, engine, renderer, TODAY).tools == ("f",)
    messages = parse_messages(msgspec.json.encode(MESSAGES))
    assert prepare_messages(messages, engine, renderer, TODAY).tools == ("f", "g")

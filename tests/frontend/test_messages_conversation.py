"""How a Messages request maps to a conversation, and what is prepared for it."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai_harmony import HarmonyEncoding

from frontend.conversation import (
    NO_TOOLS,
    AssistantMessage,
    Choice,
    Conversation,
    DeveloperMessage,
    FunctionCall,
    FunctionResult,
    OutputFormat,
    Reasoning,
    Tool,
    UserMessage,
)
from frontend.errors import InvalidRequestError, NotFoundError
from frontend.messages_conversation import from_messages
from frontend.prepare import Prepared, count_prompt_tokens, prepare_messages
from frontend.prompt import PromptRenderer
from frontend.requests.messages import parse_messages, parse_messages_prompt
from ipc.messages import EngineInfo, MessagesFormat
from postproc_workers.signatures import signature_of
from tests.frontend.conftest import TODAY

CLAUDE_CODE = Path(__file__).parent / "data" / "claude_code_request.json"
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
CALLED = FunctionCall("get_weather", '{"city":"Paris"}')


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}


def thought(content: str, signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": signature}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any, **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **members}


def body(*messages: Any, **members: Any) -> bytes:
    told = {"model": "gpt-oss-20b", "max_tokens": 5, "messages": list(messages) or [USER]}
    return msgspec.json.encode({**told, **members})


def conversation(*messages: Any, **members: Any) -> Conversation:
    return from_messages(parse_messages_prompt(body(*messages, **members)))


def test_strings_and_lists_of_text_are_the_same() -> None:
    strings = conversation(
        USER,
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "Hello"},
        USER,
        system="Be brief.",
    )
    lists = conversation(
        user(text("Hi")),
        {"role": "system", "content": [text("Be kind.")]},
        assistant(text("Hello")),
        user(text("Hi")),
        system=[text("Be brief.")],
    )
    assert strings == lists
    assert strings.instructions == "Be brief."
    assert strings.turns == [
        UserMessage("Hi"),
        DeveloperMessage("Be kind."),
        AssistantMessage("Hello"),
        UserMessage("Hi"),
    ]


def test_the_billing_header_is_not_told() -> None:
    header = text("x-anthropic-billing-header: cc_version=2.1.332.1c9; cc_entrypoint=cli;")
    told = conversation(system=[header, text("One."), text("Two.")])
    assert told.instructions == "One.\n\nTwo."
    later = conversation(system=[text("One."), header]).instructions
    assert "billing" in later


def test_a_tool_loop_keeps_its_reasoning() -> None:
    told = conversation(
        USER,
        assistant(thought("Look it up.", "x"), text("Let me look."), CALL),
        user(result("sunny"), text("Be quick."), text("Please.")),
        tools=[TOOL],
    )
    assert told.turns == [
        UserMessage("Hi"),
        Reasoning("Look it up."),
        AssistantMessage("Let me look.", "commentary"),
        CALLED,
        FunctionResult("get_weather", "sunny"),
        UserMessage("Be quick.\nPlease."),
    ]
    assert told.tools == (Tool("get_weather", "Weather.", SCHEMA, param="tools[0].input_schema"),)


def test_past_reasoning_is_dropped() -> None:
    told = conversation(USER, assistant(thought("Greet."), text("Hello")), USER)
    assert told.turns == [UserMessage("Hi"), AssistantMessage("Hello"), UserMessage("Hi")]


def test_omitted_reasoning_comes_back_by_its_signature() -> None:
    turns = conversation(USER, assistant(thought("", signature_of("Hm")), CALL), USER).turns
    assert turns[1] == Reasoning("Hm")
    turns = conversation(USER, assistant(thought("", "theirs"), CALL), USER).turns
    assert turns[1] == CALLED


def test_other_blocks_of_an_answer_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    block = {"type": "redacted_thinking_of_a_test", "data": "x"}
    with caplog.at_level(logging.WARNING):
        turns = conversation(USER, assistant(block, text(""), CALL), USER).turns
    assert turns == [UserMessage("Hi"), CALLED, UserMessage("Hi")]
    assert "redacted_thinking_of_a_test" in caplog.text


@pytest.mark.parametrize(
    ("block", "output"),
    [
        (result("sunny"), "sunny"),
        (result([text("sunny"), text("21 C")]), "sunny\n21 C"),
        (result([]), ""),
        (result(None), ""),
        (result("no such city", is_error=True), "Error: no such city"),
        (
            result([{"type": "tool_reference", "tool_name": "later"}]),
            "The tool later can be called now.",
        ),
    ],
)
def test_results(block: dict[str, Any], output: str) -> None:
    turns = conversation(USER, assistant(CALL), user(block)).turns
    assert turns[-1] == FunctionResult("get_weather", output)


def test_a_result_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        conversation(USER, user(text("x"), result("sunny")))
    assert caught.value.param == "messages[1].content[1].tool_use_id"


def test_arguments_that_were_no_object_are_told_as_they_were_written() -> None:
    call = {**CALL, "input": {"INVALID_JSON": '{"city": "Par'}}
    assert conversation(USER, assistant(call), user(result(""))).turns[1] == FunctionCall(
        "get_weather", '{"city": "Par'
    )


def test_a_deferred_tool_is_told_once_it_is_referred_to() -> None:
    tools = [TOOL, {**TOOL, "name": "later", "defer_loading": True}]
    reference = result([{"type": "tool_reference", "tool_name": "later"}])
    names = [tool.name for tool in conversation(tools=tools).tools]
    assert names == ["get_weather"]
    for told in (
        body(USER, assistant(CALL), user(reference), tools=tools),
        body(tools=tools, tool_choice={"type": "tool", "name": "later"}),
    ):
        found = from_messages(parse_messages_prompt(told)).tools
        assert [(tool.name, tool.param) for tool in found] == [
            ("get_weather", "tools[0].input_schema"),
            ("later", "tools[1].input_schema"),
        ]


def test_tools_of_the_server_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        told = conversation(tools=[{"type": "web_search_of_a_test", "name": "web_search"}, TOOL])
    assert [tool.name for tool in told.tools] == ["get_weather"]
    assert "web_search_of_a_test" in caplog.text


@pytest.mark.parametrize(
    ("members", "effort"),
    [
        ({}, "medium"),
        ({"output_config": {"effort": "xhigh"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "adaptive"}}, "medium"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16_384}}, "high"),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "output_config": {"effort": "high"},
            },
            "high",
        ),
    ],
)
def test_effort(members: dict[str, Any], effort: str) -> None:
    assert conversation(**members).effort == effort


def test_a_schema_under_either_name() -> None:
    asked = {"type": "json_schema", "schema": SCHEMA}
    newer = conversation(output_config={"format": asked}).format
    older = conversation(output_format=asked).format
    assert newer == OutputFormat("output_config.format.schema", "answer", "", SCHEMA)
    assert older == OutputFormat("output_format.schema", "answer", "", SCHEMA)


# --- prepared ----------------------------------------------------------------------------------


class Edge:
    """Prepares requests that are given as members of their JSON."""

    def __init__(self, engine: EngineInfo, renderer: PromptRenderer) -> None:
        self.engine = engine
        self.renderer = renderer

    def prepare(self, *messages: Any, **members: Any) -> Prepared:
        request = parse_messages(body(*messages, **members))
        return prepare_messages(request, self.engine, self.renderer, TODAY)

    def count(self, *messages: Any, **members: Any) -> int:
        request = parse_messages_prompt(body(*messages, **members))
        return count_prompt_tokens(request, self.engine, self.renderer, TODAY)


@pytest.fixture
def edge(engine: EngineInfo, renderer: PromptRenderer) -> Edge:
    return Edge(engine, renderer)


def test_all_parameters_are_carried_over(edge: Edge) -> None:
    prepared = edge.prepare(
        max_tokens=32,
        temperature=0.5,
        top_p=0.5,
        top_k=7,
        stop_sequences=["END"],
        stream=True,
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    sampling = prepared.sampling
    assert (sampling.max_tokens, sampling.temperature) == (32, 0.5)
    assert (sampling.top_p, sampling.top_k) == (0.5, 7)
    assert (prepared.streaming, prepared.stop) == (True, ("END",))
    assert (prepared.tools, prepared.parallel_tool_calls) == (("get_weather",), False)
    assert prepared.wanted.choice == Choice(must=True)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, Choice()),
        ({"type": "auto"}, Choice()),
        ({"type": "any"}, Choice(must=True)),
        ({"type": "tool", "name": "get_weather"}, Choice(("get_weather",), must=True)),
        ({"type": "none"}, NO_TOOLS),
    ],
)
def test_tool_choices(edge: Edge, choice: Any, wanted: Choice) -> None:
    prepared = edge.prepare(tools=[TOOL], tool_choice=choice)
    assert prepared.wanted.choice == wanted
    assert prepared.parallel_tool_calls
    assert bool(prepared.tools) == (wanted != NO_TOOLS)


def test_a_named_tool_may_have_a_long_name(edge: Edge) -> None:
    name = "mcp__" + "a" * 100
    prepared = edge.prepare(
        tools=[{**TOOL, "name": name}], tool_choice={"type": "tool", "name": name}
    )
    assert prepared.wanted.choice == Choice((name,), must=True)


def test_the_choice_of_a_tool_that_is_not_there_is_refused(edge: Edge) -> None:
    for choice in ({"type": "tool", "name": "other"}, {"type": "any"}):
        with pytest.raises(InvalidRequestError) as caught:
            edge.prepare(tool_choice=choice)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("members", "form"),
    [
        ({}, MessagesFormat("shown")),
        ({"thinking": {"type": "adaptive"}}, MessagesFormat("shown")),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, MessagesFormat("shown")),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
            MessagesFormat("omitted"),
        ),
        ({"thinking": {"type": "disabled"}}, MessagesFormat("hidden")),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            MessagesFormat("shown", preambles=False),
        ),
    ],
)
def test_what_is_shown(edge: Edge, members: dict[str, Any], form: MessagesFormat) -> None:
    assert edge.prepare(**members).format == form


def test_a_limit_beyond_the_context_is_cut(edge: Edge) -> None:
    prepared = edge.prepare(max_tokens=128_000)
    assert prepared.sampling.max_tokens == 4096 - len(prepared.prompt)


def test_a_count_is_the_prompts_length(edge: Edge) -> None:
    members: dict[str, Any] = {"system": "Be brief.", "tools": [TOOL]}
    assert edge.count(**members) == len(edge.prepare(**members).prompt)


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(edge: Edge) -> None:
    longest = 4096 - edge.count(user(text("")))
    assert edge.count(user(text(" word" * longest))) == 4096
    with pytest.raises(InvalidRequestError) as caught:
        edge.prepare(user(text(" word" * longest)))
    assert caught.value.message == "prompt is too long: 4096 tokens > 4095 maximum"
    for call in (edge.prepare, edge.count):
        with pytest.raises(InvalidRequestError) as caught:
            call(user(text(" word" * 100_000)))
        words = caught.value.message.split()
        assert words[:4] == ["prompt", "is", "too", "long:"]
        assert 100_000 < int(words[4]) < 150_000
        assert caught.value.code == "context_length_exceeded"


def test_another_model(edge: Edge) -> None:
    for call in (edge.prepare, edge.count):
        with pytest.raises(NotFoundError):
            call(model="claude")


def test_the_request_of_claude_code(edge: Edge, harmony: HarmonyEncoding) -> None:
    asked = json.loads(CLAUDE_CODE.read_text())["body"]
    prepared = edge.prepare(**asked)
    assert prepared.streaming
    assert prepared.tools == ("Agent", "Read", "ToolSearch", "Write")
    assert prepared.format == MessagesFormat("shown")
    told = harmony.decode(prepared.prompt)
    assert "billing" not in told
    assert "cc_version" not in told
    assert "Reasoning: high" in told
    assert told.endswith(
        "Say hello<|end|><|start|>developer<|message|># Instructions\n\n"
        "# Environment: a test.<|end|><|start|>assistant"
    )
    asked["messages"][1]["content"] = asked["messages"][1]["content"][0]["text"]
    assert edge.prepare(**asked).prompt == prepared.prompt

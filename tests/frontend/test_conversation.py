"""How each API's request maps to the neutral form of a conversation."""

import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from frontend.conversation import (
    AssistantMessage,
    Choice,
    Conversation,
    DeveloperMessage,
    FunctionCall,
    FunctionResult,
    Reasoning,
    Tool,
    Turn,
    UserMessage,
    from_chat,
    from_responses,
    without_past_reasoning,
)
from frontend.errors import InvalidRequestError
from frontend.requests.chat import parse_chat
from frontend.requests.responses import parse_responses
from ipc.messages import Grammar


def responses(*items: dict[str, Any], **members: Any) -> Conversation:
    body = {"model": "m", "input": list(items), **members}
    return from_responses(parse_responses(msgspec.json.encode(body)))


def chat(*messages: dict[str, Any], **members: Any) -> Conversation:
    body = {"model": "m", "messages": list(messages), **members}
    return from_chat(parse_chat(msgspec.json.encode(body)))


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def item(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, **members}


def thought(text: str) -> dict[str, Any]:
    return item("reasoning", content=[{"type": "reasoning_text", "text": text}])


CALL = item("function_call", call_id="c1", name="get_weather", arguments='{"city":"Paris"}')
CHAT_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
}
CALLED = FunctionCall("get_weather", '{"city":"Paris"}')


def test_a_system_message_becomes_instructions() -> None:
    for conversation in (
        chat(said("system", "Be brief."), said("user", "Hi")),
        responses(said("system", "Be brief."), said("user", "Hi")),
        responses(said("user", "Hi"), instructions="Be brief."),
    ):
        assert conversation == Conversation([UserMessage("Hi")], instructions="Be brief.")


def test_leading_instructions_are_joined_and_later_ones_stay_in_place() -> None:
    conversation = responses(
        said("developer", "Two."),
        said("system", [{"type": "input_text", "text": "Three."}]),
        said("system", ""),
        said("user", "Hi"),
        said("developer", "Four."),
        instructions="One.",
    )
    assert conversation.instructions == "One.\n\nTwo.\n\nThree."
    assert conversation.turns == [UserMessage("Hi"), DeveloperMessage("Four.")]


def test_parts_are_joined_by_line() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    assert responses(said("user", parts)).turns == [UserMessage("a\nb")]
    assert responses(said("user", [])).turns == [UserMessage("")]


def test_a_tool_loop_keeps_its_reasoning() -> None:
    """A history as Codex sends it: encrypted reasoning, a call, a result in parts (case 15)."""
    conversation = responses(
        item("message", **said("user", "Weather?")),
        thought("I look."),
        item("reasoning", summary=[], encrypted_content="x"),
        item("message", **said("assistant", "Let me see.", phase="commentary")),
        CALL,
        item(
            "function_call_output",
            call_id="c1",
            output=[{"type": "input_text", "text": "sunny"}, {"type": "input_text", "text": "21"}],
        ),
    )
    assert conversation.turns == [
        UserMessage("Weather?"),
        Reasoning("I look."),
        AssistantMessage("Let me see.", "commentary"),
        CALLED,
        FunctionResult("get_weather", "sunny\n21"),
    ]


def test_chat_tool_loop() -> None:
    for name in ("reasoning", "reasoning_content"):
        conversation = chat(
            said("user", "Weather?"),
            said("assistant", None, tool_calls=[CHAT_CALL], **{name: "I look."}),
            said("tool", "sunny", tool_call_id="c1"),
        )
        assert conversation.turns == [
            UserMessage("Weather?"),
            Reasoning("I look."),
            CALLED,
            FunctionResult("get_weather", "sunny"),
        ]


def test_text_before_a_call_is_a_preamble() -> None:
    expected = [UserMessage("Hi"), AssistantMessage("Let me see.", "commentary"), CALLED]
    assert (
        chat(said("user", "Hi"), said("assistant", "Let me see.", tool_calls=[CHAT_CALL])).turns
        == expected
    )
    assert responses(said("user", "Hi"), said("assistant", "Let me see."), CALL).turns == expected


def test_an_answer_before_the_next_users_turn_is_final() -> None:
    conversation = responses(said("assistant", "Hi."), said("user", "Weather?"), CALL)
    assert conversation.turns[0] == AssistantMessage("Hi.", "final")


def test_a_refusal_is_an_answer() -> None:
    refusals: list[dict[str, Any]] = [
        said("assistant", None, refusal="No."),
        said("assistant", [{"type": "refusal", "refusal": "No."}]),
    ]
    for refusal in refusals:
        assert chat(said("user", "Hi"), refusal).turns == [
            UserMessage("Hi"),
            AssistantMessage("No."),
        ]


def test_empty_answers() -> None:
    assert chat(said("user", "Hi"), said("assistant", None)).turns == [UserMessage("Hi")]
    assert chat(said("user", "Hi"), said("assistant", "")).turns[1] == AssistantMessage("")
    assert (
        chat(said("user", "Hi"), said("assistant", "", tool_calls=[CHAT_CALL])).turns[1] == CALLED
    )
    assert chat(said("user", "Hi"), said("assistant", [])).turns[1] == AssistantMessage("")


U, F, C, T, R = (
    UserMessage("u"),
    AssistantMessage("f"),
    FunctionCall("g", "{}"),
    Reasoning("t"),
    FunctionResult("g", "r"),
)


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ([U, T], [U, T]),
        ([U, T, F, U], [U, F, U]),
        ([U, T, C, R], [U, T, C, R]),
        ([U, T, C, R, T, C, R], [U, T, C, R, T, C, R]),
        ([U, T, C, R, T, F, U], [U, C, R, F, U]),
        ([U, T, F, U, T, C, R], [U, F, U, T, C, R]),
        ([U, T, F, U, T, F, U, T, C, R], [U, F, U, F, U, T, C, R]),
        ([U, T, C, R, U], [U, T, C, R, U]),
        ([U, T, F], [U, F]),
        ([], []),
    ],
)
def test_reasoning_is_dropped_after_an_answer(turns: list[Turn], kept: list[Turn]) -> None:
    assert without_past_reasoning(turns) == kept


def test_a_result_for_no_call_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(said("user", "Hi"), said("tool", "sunny", tool_call_id="c9"))
    assert caught.value.param == "messages[1].tool_call_id"
    assert "'c9'" in caught.value.message
    with pytest.raises(InvalidRequestError) as caught:
        responses(item("function_call_output", call_id="c1", output="x"), CALL)
    assert caught.value.param == "input[0].call_id"


def test_tools() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    grammar = {"syntax": "regex", "definition": "[a-z]+"}
    flat = [
        item("function", **function),
        item("function", name="g"),
        item("custom", name="c", format={"type": "grammar", **grammar}),
    ]
    nested = [
        item("function", function=function),
        item("function", function={"name": "g"}),
        item("custom", custom={"name": "c", "format": {"type": "grammar", "grammar": grammar}}),
    ]
    for offered in (
        responses(said("user", "Hi"), tools=flat).tools,
        chat(said("user", "Hi"), tools=nested).tools,
    ):
        assert [replace(tool, param="") for tool in offered] == [
            Tool("f", "d", {"type": "object"}, strict=True, param=""),
            Tool("g", param=""),
            Tool("c", custom=True, grammar=Grammar("regex", "[a-z]+"), param=""),
        ]
    assert responses(said("user", "Hi"), tools=flat, tool_choice="none").tools == ()


def test_tools_of_a_namespace_and_of_the_input() -> None:
    space = item("namespace", name="n", description="D", tools=[item("function", name="f")])
    more = item("additional_tools", role="developer", tools=[item("function", name="g")])
    found = responses(said("user", "Hi"), more, tools=[space])
    assert [tool.name for tool in found.tools] == ["g", "n.f"]
    assert found.namespaces == (("n", "D"),)


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        ("auto", None, False),
        ("required", None, True),
        ("none", (), False),
        ({"type": "function", "name": "f"}, ("f",), True),
        ({"type": "function", "name": "f", "namespace": "n"}, ("n.f",), True),
        ({"type": "custom", "name": "c"}, ("c",), True),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [item("function", name="f"), item("custom", name="c")],
            },
            ("f", "c"),
            True,
        ),
    ],
)
def test_a_choice_of_tools(choice: Any, names: tuple[str, ...] | None, must: bool) -> None:
    tools = [
        item("function", name="f"),
        item("custom", name="c"),
        item("namespace", name="n", tools=[item("function", name="f")]),
    ]
    assert responses(said("user", "Hi"), tools=tools, tool_choice=choice).choice == Choice(
        names, must
    )


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        ([item("web_search")], "required"),
        ([item("function", name="f")], {"type": "function", "name": "g"}),
        (
            [item("function", name="f")],
            {"type": "allowed_tools", "mode": "auto", "tools": [item("function", name="g")]},
        ),
    ],
)
def test_a_choice_of_what_there_is_not(tools: list[Any], choice: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        responses(said("user", "Hi"), tools=tools, tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_calls_of_custom_tools_and_of_namespaces_come_back() -> None:
    found = responses(
        said("user", "Hi"),
        item("custom_tool_call", call_id="c1", name="patch", input="*** Begin"),
        item("custom_tool_call_output", call_id="c1", output="done"),
        item("function_call", call_id="c2", name="spawn", namespace="n", arguments="{}"),
        item("function_call_output", call_id="c2", output="ok"),
    )
    assert found.turns[1:] == [
        FunctionCall("patch", "*** Begin", custom=True),
        FunctionResult("patch", "done"),
        FunctionCall("n.spawn", "{}"),
        FunctionResult("n.spawn", "ok"),
    ]


def test_what_was_sealed_is_opened() -> None:
    def unseal(kind: str, sealed: str) -> str | None:
        return f"{kind} {sealed}" if sealed != "foreign" else None

    def read(*items: Any) -> Conversation:
        body = msgspec.json.encode({"model": "m", "input": [*items, said("user", "Hi")]})
        return from_responses(parse_responses(body), unseal=unseal)

    sealed = item("reasoning", summary=[], encrypted_content="x")
    assert read(sealed).turns[0] == Reasoning("reasoning x")
    assert read(sealed | {"content": [{"type": "reasoning_text", "text": "clear"}]}).turns[0] == (
        Reasoning("clear")
    )
    assert len(read(sealed | {"encrypted_content": "foreign"}).turns) == 1
    assert "compaction x" in read(item("compaction", encrypted_content="x")).instructions
    with pytest.raises(InvalidRequestError) as caught:
        read(item("compaction", encrypted_content="foreign"))
    assert caught.value.code == "invalid_encrypted_content"


def test_what_cannot_run_here_is_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            conversation = responses(
                said("user", "Hi"),
                item("left_out_item"),
                tools=[item("left_out_tool", name="x"), item("function", name="f")],
            )
    assert [tool.name for tool in conversation.tools] == ["f"]
    assert conversation.turns == [UserMessage("Hi")]
    assert sorted(record.message.split("'")[1] for record in caplog.records) == [
        "left_out_item",
        "left_out_tool",
    ]


@pytest.mark.parametrize(
    ("effort", "harmony"),
    [
        (None, "medium"),
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_effort(effort: str | None, harmony: str) -> None:
    assert responses(said("user", "Hi"), reasoning={"effort": effort}).effort == harmony
    assert chat(said("user", "Hi"), reasoning_effort=effort).effort == harmony

"""What clients of each API get for the turns that broke other servers, streamed and not."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ipc.messages import ChatFormat, Finish
from postproc_workers.encoders import Failure
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.event_rules import (
    check_completion,
    check_response,
    read_chat_stream,
    read_responses_stream,
)
from tests.postproc_workers.turns import (
    CUTS,
    NOW,
    RESPONSES,
    Steps,
    one_by_one,
    opening,
    post_process,
    whole,
)

CHAT = ChatFormat(include_usage=True)
STOP = Finish("stop")
LENGTH = Finish("length")
BROKEN = Failure(500, "server_error", "server_error", "The engine is gone.")
AGENT_TURN = (
    "<|channel|>analysis<|message|>Look it up.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
    '{"q":"a\\n"}<|call|>'
)
ANSWER = "<|channel|>final<|message|>Hello \U0001faf6 world.<|return|>"

Json = dict[str, Any]


def respond(markup: str, ending: Finish | Failure = STOP, **options: Any) -> Json:
    """The response of a turn, which is the same streamed and not, whatever the cuts."""
    tokens = encode(markup)
    streamed = opening(RESPONSES, **options)
    body = post_process(streamed, whole(tokens), ending)
    for cut in CUTS.values():
        assert post_process(streamed, cut(tokens), ending) == body
    response = read_responses_stream(body).response
    plain = json.loads(
        post_process(opening(RESPONSES, streaming=False, **options), [tokens], ending)
    )
    if isinstance(ending, Finish):
        check_response(plain)
        assert plain == response
    return response


def complete(markup: str, ending: Finish = STOP, **options: Any) -> Json:
    """The completion of a turn, which is the same streamed and not, whatever the cuts."""
    tokens = encode(markup)
    streamed = opening(CHAT, **options)
    body = post_process(streamed, whole(tokens), ending)
    for cut in CUTS.values():
        assert post_process(streamed, cut(tokens), ending) == body
    chat = read_chat_stream(body)
    plain: Json = json.loads(
        post_process(opening(CHAT, streaming=False, **options), [tokens], ending)
    )
    check_completion(plain)
    [choice] = plain["choices"]
    message = choice["message"]
    assert (message["content"] or "") == chat.message["content"]
    assert message.get("reasoning", "") == chat.message["reasoning"]
    assert message.get("tool_calls", []) == chat.calls
    assert choice["finish_reason"] == chat.finish_reason
    assert plain["usage"] == chat.usage
    return plain


def kinds(body: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in read_responses_stream(body).events]


def test_an_agents_turn_in_responses() -> None:
    response = respond(AGENT_TURN)
    root = response["id"].removeprefix("resp_")
    reasoning, message, call = response["output"]
    assert reasoning == {
        "id": f"rs_{root}00",
        "type": "reasoning",
        "summary": [],
        "encrypted_content": None,
        "status": "completed",
        "content": [{"type": "reasoning_text", "text": "Look it up."}],
    }
    assert message == {
        "id": f"msg_{root}01",
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
        ],
    }
    assert call == {
        "id": f"fc_{root}02",
        "type": "function_call",
        "call_id": f"call_{root}02",
        "name": "search",
        "status": "completed",
        "arguments": '{"q":"a\\n"}',
    }
    assert response["completed_at"] == NOW
    assert response["usage"] == {
        "input_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": len(encode(AGENT_TURN)),
        "output_tokens_details": {"reasoning_tokens": len(encode("Look it up."))},
        "total_tokens": 17 + len(encode(AGENT_TURN)),
    }


def test_an_agents_turn_in_chat() -> None:
    completion = complete(AGENT_TURN)
    [choice] = completion["choices"]
    root = completion["id"].removeprefix("chatcmpl-")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me look.",
        "refusal": None,
        "reasoning": "Look it up.",
        "tool_calls": [
            {
                "id": f"call_{root}00",
                "type": "function",
                "function": {"name": "search", "arguments": '{"q":"a\\n"}'},
            }
        ],
    }
    assert completion["usage"] == {
        "prompt_tokens": 17,
        "completion_tokens": len(encode(AGENT_TURN)),
        "total_tokens": 17 + len(encode(AGENT_TURN)),
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(encode("Look it up."))},
    }


def test_each_item_opens_before_its_deltas_and_closes_once() -> None:
    body = post_process(opening(RESPONSES), one_by_one(encode(AGENT_TURN)), STOP)
    text = ["output_item.added", "content_part.added", "*", "content_part.done", "output_item.done"]
    call = ["output_item.added", "*", "output_item.done"]
    expected = ["created", "in_progress", *text, *text, *call, "completed"]
    found: list[str] = []
    for kind in kinds(body):
        name = "*" if "_text." in kind or "arguments" in kind else kind
        if found[-1:] != ["*"] or name != "*":
            found.append(name)
    assert found == expected


def test_whitespace_first_is_a_delta_like_any_other() -> None:
    response = respond("<|channel|>final<|message|>\n<|return|>")
    assert response["output"][0]["content"][0]["text"] == "\n"
    assert complete("<|channel|>final<|message|>\nHi<|return|>")["choices"][0]["message"][
        "content"
    ] == ("\nHi")


def test_one_delta_a_token_and_the_last_step_loses_nothing() -> None:
    steps = [encode("<|channel|>final<|message|>Hello"), encode(" world.<|return|>")]
    events = read_responses_stream(post_process(opening(RESPONSES), steps, STOP)).events
    deltas = [e["delta"] for e in events if e["type"].endswith(".delta")]
    assert deltas == ["Hello", " world", "."]


def test_a_limit_inside_the_reasoning() -> None:
    markup = "<|channel|>analysis<|message|>I think that"
    response = respond(markup, LENGTH)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    [item] = response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "I think that"
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    [choice] = complete(markup, LENGTH)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning"] == "I think that"
    assert choice["message"]["content"] == ""


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_cut_by_the_limit_is_incomplete(parallel: bool) -> None:
    markup = '<|channel|>commentary to=functions.search<|message|>{"q":'
    response = respond(markup, LENGTH, parallel_tool_calls=parallel)
    assert response["status"] == "incomplete"
    assert response["output"][0]["status"] == "incomplete"
    completion = complete(markup, LENGTH, parallel_tool_calls=parallel)
    assert completion["choices"][0]["finish_reason"] == "length"


def test_without_parallel_calls_the_first_call_ends_the_turn() -> None:
    more = AGENT_TURN + AGENT_TURN.replace("<|channel|>analysis", "<|start|>assistant<|channel|>x")
    response = respond(more, LENGTH, parallel_tool_calls=False)
    assert [item["type"] for item in response["output"]][-1] == "function_call"
    assert len(response["output"]) == 3
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == len(encode(AGENT_TURN))
    assert len(respond(more)["output"]) == 6
    completion = complete(more, LENGTH, parallel_tool_calls=False)
    assert completion["choices"][0]["finish_reason"] == "tool_calls"


def test_without_parallel_calls_an_answer_is_not_affected() -> None:
    assert respond(ANSWER, parallel_tool_calls=False) == respond(ANSWER)


def test_tokens_after_the_end_are_counted_only() -> None:
    response = respond(ANSWER + "more<|start|><|message|>", LENGTH)
    assert response["output"] == respond(ANSWER)["output"]
    assert response["usage"]["output_tokens"] == len(encode(ANSWER)) + 3


def test_no_tokens_at_all() -> None:
    assert respond("")["output"] == []
    [choice] = complete("")["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")


def test_messages_of_one_sort_are_set_apart_in_chat() -> None:
    markup = (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>C<|end|><|start|>assistant" + ANSWER
    )
    [choice] = complete(markup)["choices"]
    assert choice["message"]["reasoning"] == "A\n\nB"
    assert choice["message"]["content"] == "C\n\nHello \U0001faf6 world."


def test_an_empty_message_leaves_nothing_in_the_next_one() -> None:
    markup = (
        "<|channel|>commentary<|message|>A<|end|><|start|>assistant<|channel|>commentary"
        "<|message|><|end|><|start|>assistant<|channel|>commentary to=functions.search"
        "<|message|>{}<|call|>"
    )
    message = complete(markup)["choices"][0]["message"]
    assert message["content"] == "A"
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_stop_string_at_the_very_end_counts() -> None:
    assert respond("Hello END", LENGTH, stop=("END",))["status"] == "completed"


def test_more_items_than_two_hexadecimal_digits_count() -> None:
    message = "<|channel|>commentary to=functions.search<|message|>{}<|call|><|start|>assistant"
    response = respond(message * 300)
    assert len({item["call_id"] for item in response["output"]}) == 300


def test_an_error_before_the_first_token() -> None:
    response = respond("", BROKEN)
    assert response["output"] == []
    assert response["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert read_chat_stream(post_process(opening(CHAT), [], BROKEN)).error is not None


def test_an_error_in_the_middle_keeps_what_was_said() -> None:
    markup = AGENT_TURN + "<|start|>assistant<|channel|>final<|message|>Hello"
    response = respond(markup, BROKEN)
    assert [item["status"] for item in response["output"]] == ["completed"] * 3 + ["incomplete"]
    chat = read_chat_stream(post_process(opening(CHAT), whole(encode(markup)), BROKEN))
    assert chat.message["content"] == "Let me look.\n\nHello"
    assert chat.error == {
        "message": "The engine is gone.",
        "type": "server_error",
        "param": None,
        "code": "server_error",
    }


@pytest.mark.parametrize("output", [RESPONSES, CHAT])
def test_an_error_of_an_unstreamed_request_is_its_whole_body(output: Any) -> None:
    body = post_process(opening(output, streaming=False), [encode(AGENT_TURN)], BROKEN)
    assert json.loads(body)["error"]["message"] == "The engine is gone."


def test_codes_that_clients_act_on_are_told() -> None:
    failure = Failure(503, "server_error", "overloaded", "Come back later.")
    assert respond("", failure)["error"]["code"] == "overloaded"


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_comes_in_chat_streams_that_ask_for_it(include_usage: bool) -> None:
    body = post_process(opening(ChatFormat(include_usage)), whole(encode(ANSWER)), STOP)
    assert (read_chat_stream(body).usage is not None) == include_usage
    assert (b'"usage"' in body) == include_usage


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_glyphs_are_never_split_over_deltas(cut: Callable[[list[int]], Steps]) -> None:
    events = read_responses_stream(
        post_process(opening(RESPONSES), cut(encode(ANSWER)), STOP)
    ).events
    deltas = [e["delta"] for e in events if e["type"].endswith(".delta")]
    assert deltas == ["Hello", " ", "\U0001faf6", " world", "."]


def test_a_stream_that_fails_may_have_no_error_event() -> None:
    failure = Failure(500, "server_error", "server_error", "broken")
    told = {}
    for event in (True, False):
        form = msgspec.structs.replace(RESPONSES, error_event=event)
        body = post_process(opening(form), [[]], failure)
        told[event] = [e["type"] for e in read_responses_stream(body).events]
    assert told[True][-2:] == ["error", "response.failed"]
    assert told[False] == [kind for kind in told[True] if kind != "error"]


def test_a_cancelled_response_ends_without_an_error() -> None:
    failure = Failure(499, "invalid_request_error", "cancelled", "the response was cancelled")
    said = encode("<|channel|>final<|message|>Hi")
    stream = read_responses_stream(post_process(opening(RESPONSES), [said], failure))
    assert stream.events[-1]["type"] == "response.failed"
    assert (stream.response["status"], stream.response["error"]) == ("cancelled", None)
    assert stream.response["output"][0]["content"][0]["text"] == "Hi"

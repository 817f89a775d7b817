"""Any tokens, ended in any way: every event rule holds, and streamed is unstreamed."""

import codecs
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ipc.codec import record_of
from ipc.messages import ChatFormat, CompletionFormat, Finish, MessagesFormat, Open, ResponsesFormat
from ipc.vocabulary import FIRST_SPECIAL
from postproc_workers.encoders import Failure
from postproc_workers.replay import replay
from postproc_workers.sealing import unseal
from postproc_workers.testkit.strategies import soup, steps, texts, turns
from postproc_workers.tokens import token_table
from tests.postproc_workers.event_rules import (
    check_completion,
    check_response,
    check_text_completion,
    read_chat_stream,
    read_responses_stream,
    read_text_stream,
)
from tests.postproc_workers.messages_rules import check_message, read_messages_stream
from tests.postproc_workers.turns import RESPONSES, Format, opening, post_process, process

CHAT = ChatFormat(include_usage=True)
MESSAGES = MessagesFormat()
COMPLETION = CompletionFormat(include_usage=True)
FORMATS = {"responses": RESPONSES, "chat": CHAT, "messages": MESSAGES, "completions": COMPLETION}
ANY_TOKENS = turns().map(lambda turn: turn.tokens) | soup()
FINISHES = st.builds(Finish, st.sampled_from(("stop", "length")))
FAILURES = st.builds(
    Failure,
    st.sampled_from((400, 500, 503)),
    st.sampled_from(("server_error", "invalid_request_error")),
    st.sampled_from(("server_error", "overloaded", "context_length_exceeded")),
    texts(),
)
STOPS = st.lists(st.text("aeé中 {", min_size=1, max_size=3), max_size=2).map(tuple)
CUSTOM = st.sampled_from([(), ("search",), ("search", "a-b.c")])
KEY = bytes(range(64))


def formats(output: Format) -> st.SearchStrategy[Any]:
    """Its variants: what of a turn is told besides."""
    if isinstance(output, MessagesFormat):
        shown = st.sampled_from(("shown", "omitted", "hidden"))
        return st.builds(MessagesFormat, shown, st.booleans())
    if isinstance(output, CompletionFormat):
        return st.builds(CompletionFormat, st.just(output.include_usage), st.just("") | texts())
    if isinstance(output, ChatFormat):
        names = st.sampled_from(("reasoning", "reasoning_content"))
        return st.builds(ChatFormat, st.just(output.include_usage), names)
    return st.builds(
        lambda summary, sealed, queued, error_event: ResponsesFormat(
            output.echo,
            summary,
            sealed,
            KEY if sealed else b"",
            queued,
            error_event=error_event,
        ),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )


def opens(output: Format, streaming: bool) -> st.SearchStrategy[Open]:
    return st.builds(
        lambda variant, stop, parallel, custom: opening(
            variant, streaming=streaming, stop=stop, parallel_tool_calls=parallel, custom=custom
        ),
        formats(output),
        STOPS,
        st.booleans(),
        CUSTOM,
    )


def unstreamed(opened: Open) -> Open:
    return replace(opened, streaming=False)


@pytest.mark.parametrize("output", FORMATS.values(), ids=FORMATS.keys())
@given(data=st.data(), tokens=ANY_TOKENS, ending=FINISHES | FAILURES, streaming=st.booleans())
def test_l6_pure_output_bytes_do_not_depend_on_the_cuts(
    output: Format,
    data: st.DataObject,
    tokens: list[int],
    ending: Finish | Failure,
    streaming: bool,
) -> None:
    opened = data.draw(opens(output, streaming))
    scored = data.draw(st.booleans())
    body = post_process(opened, [tokens], ending, scored=scored)
    assert post_process(opened, data.draw(steps(tokens)), ending, scored=scored) == body
    assert post_process(opened, [[token] for token in tokens], ending, scored=scored) == body


@given(opens(RESPONSES, streaming=True), ANY_TOKENS, FINISHES, st.booleans())
def test_a_streamed_response_is_the_unstreamed_one(
    opened: Open, tokens: list[int], finish: Finish, scored: bool
) -> None:
    streamed = read_responses_stream(post_process(opened, [tokens], finish, scored=scored))
    plain = json.loads(post_process(unstreamed(opened), [tokens], finish, scored=scored))
    check_response(plain)
    assert plain == streamed.response
    usage = plain["usage"]
    assert usage["output_tokens"] <= len(tokens)
    if not opened.stop and opened.parallel_tool_calls:
        assert usage["output_tokens"] == len(tokens)
        assert (plain["status"] == "incomplete") == (finish.reason == "length")


@given(opens(RESPONSES, streaming=True), ANY_TOKENS, FAILURES)
def test_l7_numbered_up_to_a_failure(opened: Open, tokens: list[int], failure: Failure) -> None:
    body = post_process(opened, [tokens], failure)
    if b'"response.completed"' not in body:
        failed = read_responses_stream(body).response
        assert failed["error"] == {"code": failure.code, "message": failure.message}


@given(st.data(), opens(RESPONSES, streaming=True), ANY_TOKENS, FINISHES | FAILURES, st.booleans())
def test_a_retrieved_response_is_the_streamed_one(
    data: st.DataObject, opened: Open, tokens: list[int], ending: Finish | Failure, scored: bool
) -> None:
    opened = replace(opened, keep=True, streaming=data.draw(st.booleans()))
    parts = data.draw(steps(tokens))
    body, kept = process(opened, parts, ending, scored=scored)
    assert KEY not in kept
    record = record_of(kept)
    events, whole = (replay(record, streaming=how, seal_key=KEY) for how in (True, False))
    if opened.streaming:
        assert events == body
    elif isinstance(ending, Finish):
        assert whole == body
    assert json.loads(whole) == read_responses_stream(events).response


@given(ANY_TOKENS, FINISHES)
def test_sealed_reasoning_is_the_reasoning(tokens: list[int], finish: Finish) -> None:
    opened = opening(replace(RESPONSES, sealed=True, seal_key=KEY), streaming=False)
    for item in json.loads(post_process(opened, [tokens], finish))["output"]:
        if item["type"] == "reasoning":
            sealed = item["encrypted_content"]
            assert unseal(KEY, "reasoning", opened.tenant, sealed) == item["content"][0]["text"]
            assert unseal(KEY, "reasoning", "another", sealed) is None
            assert unseal(KEY, "compaction", opened.tenant, sealed) is None


@given(opens(CHAT, streaming=True), ANY_TOKENS, FINISHES, st.booleans())
def test_a_streamed_completion_is_the_unstreamed_one(
    opened: Open, tokens: list[int], finish: Finish, scored: bool
) -> None:
    chat = read_chat_stream(post_process(opened, [tokens], finish, scored=scored))
    plain = json.loads(post_process(unstreamed(opened), [tokens], finish, scored=scored))
    check_completion(plain)
    [choice] = plain["choices"]
    message = choice["message"]
    assert (message["content"] or "") == chat.message["content"]
    assert isinstance(opened.format, ChatFormat)
    member = opened.format.reasoning_member
    assert message.get(member, "") == chat.message.get(member, "")
    assert (choice["logprobs"] or {"content": None})["content"] == chat.logprobs
    assert message.get("tool_calls", []) == chat.calls
    assert choice["finish_reason"] == chat.finish_reason
    assert plain["usage"] == chat.usage


@given(opens(MESSAGES, streaming=True), ANY_TOKENS, FINISHES)
def test_a_streamed_message_is_the_unstreamed_one(
    opened: Open, tokens: list[int], finish: Finish
) -> None:
    streamed = read_messages_stream(post_process(opened, [tokens], finish))
    plain = json.loads(post_process(unstreamed(opened), [tokens], finish))
    check_message(plain)
    assert plain == streamed.message
    assert plain["usage"]["output_tokens"] <= len(tokens)
    assert plain["stop_sequence"] in (None, *opened.stop)
    if not opened.stop and opened.parallel_tool_calls:
        assert (plain["stop_reason"] == "max_tokens") == (finish.reason == "length")


@given(opens(MESSAGES, streaming=True), ANY_TOKENS, FAILURES)
def test_a_failure_ends_a_streamed_message(
    opened: Open, tokens: list[int], failure: Failure
) -> None:
    streamed = read_messages_stream(post_process(opened, [tokens], failure))
    if streamed.message["stop_reason"] is None:
        assert streamed.error is not None
        assert streamed.error["message"] == failure.message


@given(opens(COMPLETION, streaming=True), ANY_TOKENS, FINISHES, st.booleans())
def test_a_streamed_text_is_the_unstreamed_one(
    opened: Open, tokens: list[int], finish: Finish, scored: bool
) -> None:
    streamed = read_text_stream(post_process(opened, [tokens], finish, scored=scored))
    plain = json.loads(post_process(unstreamed(opened), [tokens], finish, scored=scored))
    check_text_completion(plain)
    assert plain == streamed


@given(ANY_TOKENS, FINISHES, texts())
def test_a_text_is_all_that_the_model_says(tokens: list[int], finish: Finish, echo: str) -> None:
    opened = opening(CompletionFormat(echo=echo), streaming=False)
    completion = json.loads(post_process(opened, [tokens], finish))
    [choice] = completion["choices"]
    raw = b"".join(token_table().raw(token) for token in tokens if 0 <= token < FIRST_SPECIAL)
    if finish.reason == "stop":
        assert choice["text"] == echo + raw.decode(errors="replace")
    else:  # a glyph that was cut is not shown
        assert choice["text"] == echo + codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    assert choice["finish_reason"] == finish.reason
    assert completion["usage"]["completion_tokens"] == len(tokens)


@given(ANY_TOKENS, FINISHES)
def test_both_apis_tell_the_same(tokens: list[int], finish: Finish) -> None:
    response = json.loads(post_process(opening(RESPONSES, streaming=False), [tokens], finish))
    completion = json.loads(post_process(opening(CHAT, streaming=False), [tokens], finish))
    message = completion["choices"][0]["message"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])
    ]
    texts = [i["content"][0]["text"] for i in response["output"] if i["type"] == "message"]
    assert "\n\n".join(filter(None, texts)) == (message["content"] or "")
    usage = completion["usage"]
    assert response["usage"]["output_tokens_details"] == usage["completion_tokens_details"]


@given(ANY_TOKENS, FINISHES)
def test_anthropics_api_tells_the_same(tokens: list[int], finish: Finish) -> None:
    response = json.loads(post_process(opening(RESPONSES, streaming=False), [tokens], finish))
    content = json.loads(post_process(opening(MESSAGES, streaming=False), [tokens], finish))[
        "content"
    ]
    items = [
        (item["type"], _full_name(item) if "name" in item else item["content"][0]["text"])
        for item in response["output"]
        if "name" in item or item["content"][0]["text"]
    ]
    kinds = {"thinking": "reasoning", "text": "message", "tool_use": "function_call"}
    assert items == [
        (kinds[block["type"]], block.get("name") or block.get("text") or block.get("thinking"))
        for block in content
    ]


def _full_name(call: dict[str, Any]) -> str:
    return ".".join(filter(None, (call.get("namespace"), call["name"])))

"""What clients of Anthropic's API get, streamed and not; the rules' reader notices breaks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ipc.messages import Finish, MessagesFormat
from postproc_workers.encoders import Failure, Usage
from postproc_workers.encoders.messages import MessagesEncoder
from postproc_workers.signatures import hidden_reasoning, signature_of
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.event_rules import frames
from tests.postproc_workers.messages_rules import (
    check_error,
    check_message,
    read_messages_stream,
)
from tests.postproc_workers.turns import CUTS, NOW, opening, post_process, whole

SHOWN = MessagesFormat()
STOP = Finish("stop")
LENGTH = Finish("length")
AGENT_TURN = (
    "<|channel|>analysis<|message|>Look it up.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
    '{"q":"a\\n"}<|call|>'
)
ANSWER = "<|channel|>final<|message|>Hello \U0001faf6 world.<|return|>"
CALL = "<|channel|>commentary to=functions.search<|message|>"
SIGNATURE = signature_of("")

Json = dict[str, Any]


def reply(markup: str, ending: Finish = STOP, form: MessagesFormat = SHOWN, **options: Any) -> Json:
    """The message of a turn, which is the same streamed and not, whatever the cuts."""
    tokens = encode(markup)
    streamed = opening(form, **options)
    body = post_process(streamed, whole(tokens), ending)
    for cut in CUTS.values():
        assert post_process(streamed, cut(tokens), ending) == body
    plain: Json = json.loads(
        post_process(opening(form, streaming=False, **options), [tokens], ending)
    )
    check_message(plain)
    assert read_messages_stream(body).message == plain
    return plain


def test_an_agents_turn() -> None:
    message = reply(AGENT_TURN)
    root = message["id"].removeprefix("msg_")
    assert message["content"] == [
        {"type": "thinking", "thinking": "Look it up.", "signature": SIGNATURE},
        {"type": "text", "text": "Let me look."},
        {
            "type": "tool_use",
            "id": f"toolu_{root}02",
            "name": "search",
            "input": {"q": "a\n"},
        },
    ]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert message["usage"] == {
        "input_tokens": 17,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": len(encode(AGENT_TURN)),
        "output_tokens_details": {"thinking_tokens": 4},
    }


def test_an_answer() -> None:
    message = reply(ANSWER)
    assert message["content"] == [{"type": "text", "text": "Hello \U0001faf6 world."}]
    assert message["stop_reason"] == "end_turn"


def test_a_limit() -> None:
    message = reply(AGENT_TURN.removesuffix('"}<|call|>'), LENGTH)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][-1]["input"] == {"INVALID_JSON": '{"q":"a\\n'}


def test_a_stop_string_is_told() -> None:
    message = reply(ANSWER, stop=("lo", "wor"))
    assert message["content"] == [{"type": "text", "text": "Hel"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "lo")


def test_a_stop_string_that_did_not_come_is_not_told() -> None:
    assert reply(ANSWER, stop=("no such",))["stop_sequence"] is None


def test_one_call_a_turn_if_more_are_not_wanted() -> None:
    two = f"{CALL}{{}}<|call|><|start|>assistant{CALL}{{}}<|call|>"
    assert len(reply(two)["content"]) == 2
    one = reply(two, parallel_tool_calls=False)
    assert (len(one["content"]), one["stop_reason"]) == (1, "tool_use")


def test_omitted_thinking_is_in_the_signature() -> None:
    thinking = reply(AGENT_TURN, form=MessagesFormat("omitted"))["content"][0]
    assert thinking["thinking"] == ""
    assert hidden_reasoning(thinking["signature"]) == "Look it up."
    assert hidden_reasoning(SIGNATURE) == ""


def test_hidden_thinking_is_counted_but_not_told() -> None:
    message = reply(AGENT_TURN, form=MessagesFormat("hidden"))
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


def test_preambles_can_be_left_out() -> None:
    message = reply(AGENT_TURN, form=MessagesFormat(preambles=False))
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]


def test_messages_without_text_are_not_told() -> None:
    empty = "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>"
    assert reply(empty)["content"] == []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        (' {"a": [1, 2.5, {"b": null}]} ', {"a": [1, 2.5, {"b": None}]}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a":', {"INVALID_JSON": '{"a":'}),
        ("Paris", {"INVALID_JSON": "Paris"}),
    ],
)
def test_arguments(written: str, told: Json) -> None:
    [call] = reply(f"{CALL}{written}<|call|>")["content"]
    assert call["input"] == told


def test_cached_tokens_are_no_input_tokens() -> None:
    encoder = MessagesEncoder(opening(SHOWN, streaming=False), SHOWN)
    encoder.finish("stop", Usage(17, 16, 3), NOW)
    usage = json.loads(b"".join(encoder.pieces))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, 16)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(500, "server_error", "server_error", "Gone."), "api_error"),
        (Failure(503, "server_error", "overloaded", "Full."), "overloaded_error"),
        (Failure(400, "invalid_request_error", "invalid_prompt", "No."), "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("markup", ["", "<|channel|>final<|message|>Hel", AGENT_TURN])
def test_a_failure(failure: Failure, kind: str, markup: str) -> None:
    tokens = encode(markup)
    error = {"type": kind, "message": failure.message}
    streamed = read_messages_stream(post_process(opening(SHOWN), [tokens], failure))
    assert streamed.error == error
    plain = json.loads(post_process(opening(SHOWN, streaming=False), [tokens], failure))
    assert plain == {"type": "error", "error": error}
    check_error(plain)


@pytest.mark.parametrize("signature", ["", "x", "antiphon-?", "antiphon-/w=="])
def test_a_signature_of_somebody_else_hides_nothing(signature: str) -> None:
    assert hidden_reasoning(signature) == ""


# --- the reader of the rules -------------------------------------------------------------------


def events() -> list[Json]:
    body = post_process(opening(SHOWN), whole(encode(AGENT_TURN)), STOP)
    return [json.loads(data) for _, data in frames(body)]


def body_of(found: list[Json]) -> bytes:
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in found).encode()


def test_a_good_stream_passes() -> None:
    assert len(read_messages_stream(body_of(events())).message["content"]) == 3


@pytest.mark.parametrize("change", ["missing", "twice"])
def test_a_stream_with_an_event_too_few_or_too_many_is_refused(change: str) -> None:
    for place, event in enumerate(events()):
        if event["type"] == "content_block_delta":
            continue  # a text that is another, but as good
        changed = events()
        if change == "missing":
            del changed[place]
        elif event["type"] != "ping":
            changed.insert(place, event)
        else:
            continue  # may be sent at any time
        with pytest.raises((AssertionError, ValueError, TypeError)):
            read_messages_stream(body_of(changed))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found[2].update(index=1),
        lambda found: found[3].update(index=1),
        lambda found: found[3]["delta"].update(type="text_delta", text="x"),
        lambda found: found[3]["delta"].update(thinking=""),
        lambda found: found[2]["content_block"].update(thinking="Lo"),
        lambda found: found[0]["message"].pop("usage"),
        lambda found: found[0]["message"].update(stop_reason="end_turn"),
        lambda found: found[-2].pop("usage"),
        lambda found: found[-2]["delta"].update(stop_reason=None),
        lambda found: found[-2]["delta"].update(stop_sequence="x"),
        lambda found: found[-2].update(unknown=1),
    ],
)
def test_a_spoilt_stream_is_refused(spoil: Callable[[list[Json]], object]) -> None:
    found = events()
    spoil(found)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        read_messages_stream(body_of(found))


def test_a_frame_without_its_event_line_is_refused() -> None:
    with pytest.raises(AssertionError):
        read_messages_stream(body_of(events()).replace(b"event: ping\n", b""))

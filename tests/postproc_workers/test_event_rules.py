"""The readers of event_rules.py refuse what they should: each break of a rule is noticed."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ipc.messages import ChatFormat, Finish
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.event_rules import (
    frames,
    read_chat_stream,
    read_responses_stream,
)
from tests.postproc_workers.turns import RESPONSES, opening, post_process, whole

MARKUP = (
    "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.search<|message|>{"q":1}<|call|>'
    "<|start|>assistant<|channel|>final<|message|>Hello there.<|return|>"
)
Json = dict[str, Any]


def responses_frames() -> list[Json]:
    body = post_process(opening(RESPONSES), whole(encode(MARKUP)), Finish("stop"))
    return [json.loads(data) for _, data in frames(body)]


def chat_frames() -> list[Json]:
    opened = opening(ChatFormat(include_usage=True))
    body = post_process(opened, whole(encode(MARKUP)), Finish("stop"))
    return [json.loads(data) for _, data in list(frames(body))[:-1]]


def responses_body(events: list[Json]) -> bytes:
    for number, event in enumerate(events):
        event.setdefault("sequence_number", number)
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


def chat_body(chunks: list[Json]) -> bytes:
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks).encode() + b"data: [DONE]\n\n"


def unnumbered(events: list[Json]) -> list[Json]:
    for event in events:
        del event["sequence_number"]
    return events


def test_good_streams_pass() -> None:
    assert len(read_responses_stream(responses_body(responses_frames())).response["output"]) == 3
    assert read_chat_stream(chat_body(chat_frames())).usage is not None


def test_a_responses_stream_without_one_event_is_refused() -> None:
    for place in range(len(responses_frames())):
        events = unnumbered(responses_frames())
        del events[place]
        with pytest.raises(AssertionError):
            read_responses_stream(responses_body(events))


def test_a_responses_stream_with_an_event_twice_is_refused() -> None:
    for place, event in enumerate(responses_frames()):
        if event["type"] == "response.in_progress":
            continue  # a sign of life, which may be repeated
        events = unnumbered(responses_frames())
        events.insert(place, dict(events[place]))
        with pytest.raises(AssertionError):
            read_responses_stream(responses_body(events))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda events: events[3].update(sequence_number=7),
        lambda events: events[2]["item"].update(id="rs_other"),
        lambda events: events[2]["item"].update(id=""),
        lambda events: events[2].update(output_index=1),
        lambda events: events[3].update(item_id="rs_other"),
        lambda events: events[4].update(delta="Other"),
        lambda events: events[4].update(item_id="other"),
        lambda events: events[4].pop("content_index"),
        lambda events: events[-1]["response"].update(id="resp_other"),
        lambda events: events[-1]["response"].update(output=[]),
        lambda events: events[-1]["response"].update(status="in_progress"),
        lambda events: events[-1]["response"].update(completed_at=None),
        lambda events: events[-1]["response"].pop("truncation"),
        lambda events: events[-1]["response"]["usage"].update(total_tokens=1),
        lambda events: events[-1]["response"]["output"][0].update(unknown=1),
    ],
)
def test_a_spoilt_responses_stream_is_refused(spoil: Callable[[list[Json]], object]) -> None:
    events = responses_frames()
    spoil(events)
    with pytest.raises((AssertionError, ValueError)):
        read_responses_stream(responses_body(events))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda chunks: chunks.pop(0),
        lambda chunks: chunks.append(chunks[-1]),
        lambda chunks: chunks.pop(-2),
        lambda chunks: chunks.append({"error": {"message": "late"}}),
        lambda chunks: chunks[1].update(id="chatcmpl-other"),
        lambda chunks: chunks[1].update(object="chat.completion"),
        lambda chunks: chunks[1].pop("created"),
        lambda chunks: chunks[1]["choices"][0]["delta"].update(content="and"),
    ],
)
def test_a_spoilt_chat_stream_is_refused(spoil: Callable[[list[Json]], object]) -> None:
    chunks = chat_frames()
    spoil(chunks)
    with pytest.raises((AssertionError, ValueError)):
        read_chat_stream(chat_body(chunks))


def test_an_unfinished_frame_is_refused() -> None:
    with pytest.raises(AssertionError):
        list(frames(b"data: {}\n"))

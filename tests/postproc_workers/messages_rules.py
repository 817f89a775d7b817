"""The rules of Anthropic's event stream, as the strictest clients hold them, and a reader that
checks them: it raises AssertionError where a stream breaks a rule."""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import BaseModel, TypeAdapter

from postproc_workers.encoders.messages import INVALID_JSON
from tests.postproc_workers.event_rules import frames

Json = dict[str, Any]

EMPTY_BLOCKS: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""For each delta the block it is for, and its member."""


@dataclass
class StreamedMessage:
    """A stream that kept all rules: what its events add up to, or the error that ended it."""

    message: Json
    events: list[str] = field(default_factory=list)
    error: Json | None = None


def read_messages_stream(body: bytes) -> StreamedMessage:
    """Read a whole Messages stream and check that it keeps every rule."""
    events = []
    for name, data in frames(body):
        event = json.loads(data)
        assert name == event["type"], "each event has a line that names it"
        events.append(event)
    return _Reader(events).read()


class _Reader:
    def __init__(self, events: list[Json]) -> None:
        names = [event["type"] for event in events]
        self._events = [event for event in events if event["type"] != "ping"]
        assert names[:2] == ["message_start", "ping"]
        self._stream = StreamedMessage(self._events[0]["message"], names)

    def read(self) -> StreamedMessage:
        message = self._stream.message
        check_message(message)
        assert (message["content"], message["stop_reason"]) == ([], None)
        for place, event in enumerate(self._events):
            _check_event(event)
            if event["type"] == "error":
                assert place == len(self._events) - 1, "nothing comes after an error"
                self._stream.error = event["error"]
                return self._stream
        place = 1
        while self._events[place]["type"] == "content_block_start":
            place = self._block(place)
        self._end(*self._events[place:])
        check_message(message)
        return self._stream

    def _block(self, place: int) -> int:
        """Read one block from `place`; the place behind it."""
        start = self._events[place]
        index, block = start["index"], dict(start["content_block"])
        content = self._stream.message["content"]
        assert index == len(content), "blocks are numbered 0, 1, 2, ..."
        assert block | EMPTY_BLOCKS[block["type"]] == block, "a block begins empty"
        arguments, signed = "", False
        place += 1
        while (event := self._events[place])["type"] == "content_block_delta":
            assert not signed, "a signature comes last"
            assert event["index"] == index
            delta = event["delta"]
            kind, member = DELTAS[delta["type"]]
            assert block["type"] == kind
            assert delta[member], "no delta is empty"
            if kind == "tool_use":
                arguments += delta[member]
            else:
                block[member] += delta[member]
            signed = member == "signature"
            place += 1
        assert event["type"] == "content_block_stop"
        assert event["index"] == index
        assert signed == (block["type"] == "thinking")
        if block["type"] == "tool_use":
            block["input"] = read_arguments(arguments)
        content.append(block)
        return place + 1

    def _end(self, delta: Json, stop: Json) -> None:
        """`delta` and `stop` are the last two events."""
        assert (delta["type"], stop["type"]) == ("message_delta", "message_stop")
        message = self._stream.message
        assert set(delta["delta"]) == {"stop_reason", "stop_sequence", "stop_details"}
        assert delta["delta"]["stop_reason"]
        message.update(delta["delta"])
        message["usage"] |= delta["usage"]


def read_arguments(text: str) -> Json:
    """What docs/api.md says that a stream's arguments are in a whole message."""
    assert text == text.lstrip(" \t\r\n")
    if not text:
        return {}
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {INVALID_JSON: text}
    return found if isinstance(found, dict) else {INVALID_JSON: text}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def check_message(message: Json) -> None:
    """A message object is whole and consistent in itself."""
    _check_type(Message, message)
    for block in message["content"]:
        if block["type"] != "tool_use":
            assert block["text"] if block["type"] == "text" else block["signature"]
    calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(calls)) == len(calls)
    assert (message["stop_reason"] == "stop_sequence") == (message["stop_sequence"] is not None)
    usage = message["usage"]
    assert usage["output_tokens_details"]["thinking_tokens"] <= usage["output_tokens"]
    assert min(usage["input_tokens"], usage["cache_read_input_tokens"]) >= 0


@cache
def _event_types() -> TypeAdapter[Any]:
    return TypeAdapter(RawMessageStreamEvent)


def _check_event(event: Json) -> None:
    if event["type"] == "error":
        check_error(event)
    else:
        _check_known(_event_types().validate_python(event))


def check_error(body: Json) -> None:
    """An error has Anthropic's shape, and one of its types."""
    _check_type(ErrorResponse, body)


def _check_type(model: type[BaseModel], found: Json) -> None:
    """`found` has all that anthropic's type requires, and nothing that the type does not know."""
    _check_known(model.model_validate(found))


def _check_known(value: object) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{type(value).__name__} does not know {value.model_extra}"
        for name in type(value).model_fields:
            _check_known(getattr(value, name))
    elif isinstance(value, list):
        for element in value:
            _check_known(element)

"""The rules of OpenAI's event streams, as the strictest clients hold them, and readers that check
them. Each reader raises AssertionError where a stream breaks a rule.

Bytes go in, as a client receives them: the readers serve the encoders' tests and those over HTTP.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from openai import BaseModel
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

Json = dict[str, Any]

DONE = "[DONE]"
DELTA_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
CALL_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
SUMMARY = "response.reasoning_summary"
PART_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}
STATUS_OF_END = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
"""A response that was cancelled ends as a failed one, without an error."""
RESOURCE_MEMBERS = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
}
"""Source: the Open Responses resource, all of whose members are required."""
_SIGN_OF_LIFE = "response.in_progress"
CHANGING_MEMBERS = {
    *("status", "output", "usage", "completed_at", "error", "incomplete_details"),
}
NOT_IN_SDK = {
    *("presence_penalty", "frequency_penalty", "store", "reasoning", "reasoning_content"),
    *("name", "status"),
}
"""Members that openai's types do not know: of the resource, Chat's reasoning, the `name` that its
earlier versions require in `response.function_call_arguments.done`, and the `status` of a custom
tool's call, which only some of its types have."""
CODES_NOT_IN_SDK = {"overloaded", "context_length_exceeded"}
"""Error codes that Codex acts on."""


# --- frames ------------------------------------------------------------------------------------


def frames(body: bytes) -> Iterator[tuple[str | None, str]]:
    """The (event, data) pairs of server-sent events; comments are left out."""
    text = body.decode()
    assert text.endswith("\n\n"), "a stream ends with a whole frame"
    for frame in text[:-2].split("\n\n"):
        lines = [line for line in frame.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        event = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        assert len(lines) == 1, frame
        assert lines[0].startswith("data: "), frame
        yield event, lines[0].removeprefix("data: ")


def check_type(model: type[BaseModel], found: Json) -> None:
    """`found` has all that openai's type requires, and nothing that the type does not know."""
    extra = set(_unknown_members(model.model_validate(found)))
    assert extra <= NOT_IN_SDK, f"{model.__name__} does not know {extra - NOT_IN_SDK}"


def _unknown_members(value: object) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _unknown_members(getattr(value, name))
    elif isinstance(value, list):
        for element in value:
            yield from _unknown_members(element)


# --- Responses ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamedResponse:
    """A stream that kept all rules: its events in order, and the response of the last one."""

    events: list[Json]
    response: Json

    def of_type(self, kind: str) -> list[Json]:
        return [event for event in self.events if event["type"] == kind]


def read_responses_stream(body: bytes) -> StreamedResponse:
    """Read a whole Responses stream and check that it keeps every rule."""
    events = []
    for name, data in frames(body):
        event = json.loads(data)
        assert name == event["type"], "the event line names the type"
        check_type(_event_types()[event["type"]], _with_known_code(event))
        events.append(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events))), "numbered 0, 1, 2, ..."
    return StreamedResponse(events, _ResponsesReader(events).read())


def check_response(response: Json) -> None:
    """A response object is whole and consistent in itself, whatever its status."""
    missing = RESOURCE_MEMBERS - set(response)
    assert not missing
    check_type(Response, _with_known_code({"response": response})["response"])
    status = response["status"]
    assert (response["completed_at"] is not None) == (status == "completed")
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")
    ids = [item["id"] for item in response["output"]]
    ids += [item["call_id"] for item in response["output"] if item["type"] in CALL_TEXTS]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert all(item["status"] == "completed" for item in response["output"][:-1])
    assert (response["usage"] is not None) == (status in ("completed", "incomplete"))
    if response["usage"] is not None:
        _check_usage(response["usage"])


def _check_usage(usage: Json) -> None:
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


@cache
def _event_types() -> dict[str, type[BaseModel]]:
    """openai's class for each event type."""
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in get_args(union)}


def _with_known_code(event: Json) -> Json:
    error = event.get("response", {}).get("error")
    if error is None or error["code"] not in CODES_NOT_IN_SDK:
        return event
    known = error | {"code": "server_error"}
    return event | {"response": event["response"] | {"error": known}}


def _constant(response: Json) -> Json:
    return {key: value for key, value in response.items() if key not in CHANGING_MEMBERS}


class _ResponsesReader:
    """Descends through the events of one stream in the order that clients demand."""

    def __init__(self, events: list[Json]) -> None:
        # A repeated response.in_progress is a sign of life, and may come anywhere.
        begun = 3 if events[0]["response"]["status"] == "queued" else 2
        later = [event for event in events[begun:] if event["type"] != _SIGN_OF_LIFE]
        self._events = events[:begun] + later
        self._place = 0
        self._items: list[Json] = []
        self._summary_open = False
        self._summary = ""
        self._logprobs: list[Json] = []

    def read(self) -> Json:
        """Check all events; the response of the last one."""
        queued = self._events[0]["response"]["status"] == "queued"
        created = self._response("response.created", "queued" if queued else "in_progress")
        assert created["output"] == []
        assert created["usage"] is None
        if queued:
            assert self._response("response.queued", "queued") == created
            created |= {"status": "in_progress"}
        assert self._response("response.in_progress", "in_progress") == created
        while self._next == "response.output_item.added":
            self._item(len(self._items))
        failed = self._next == "error"
        error = self._take("error") if failed else {}
        assert self._next in STATUS_OF_END
        cancelled = self._events[self._place]["response"]["status"] == "cancelled"
        assert not failed or self._next == "response.failed"
        status = "cancelled" if cancelled else STATUS_OF_END[self._next]
        last = self._response(self._next, status)
        assert self._place == len(self._events), "nothing comes after the end"
        assert last["output"] == self._items, "the last event lists the items as they were sent"
        assert _constant(last) == _constant(created), "what was echoed stays"
        if failed:
            assert last["error"] == {"code": error["code"], "message": error["message"]}
        return last

    @property
    def _next(self) -> str:
        assert self._place < len(self._events), "the stream has no end"
        kind: str = self._events[self._place]["type"]
        return kind

    def _take(self, kind: str) -> Json:
        assert self._next == kind
        self._place += 1
        return self._events[self._place - 1]

    def _response(self, kind: str, status: str) -> Json:
        response: Json = self._take(kind)["response"]
        assert response["status"] == status
        check_response(response)
        return response

    def _item(self, index: int) -> None:
        added = self._take("response.output_item.added")
        item = added["item"]
        assert added["output_index"] == index
        assert item["id"]
        assert item["status"] == "in_progress"
        kind = item["type"]
        place = {"item_id": item["id"], "output_index": index}
        rest = self._call(item, place) if kind in CALL_TEXTS else self._part(kind, place)
        if kind == "reasoning":
            assert item["summary"] == item["content"] == []
            assert item["encrypted_content"] is None
            if self._summary_open:
                rest |= {"summary": [self._close_summary(place, rest["content"][0]["text"])]}
        done = self._take("response.output_item.done")
        assert done["output_index"] == index
        if kind == "reasoning":
            rest |= {"encrypted_content": done["item"]["encrypted_content"]}
        assert done["item"] == item | rest | {"status": done["item"]["status"]}
        assert done["item"]["status"] in ("completed", "incomplete")
        self._items.append(done["item"])

    def _call(self, item: Json, place: Json) -> Json:
        member = CALL_TEXTS[item["type"]]
        assert item[member] == ""
        assert item["call_id"]
        text = self._deltas(DELTA_EVENTS[item["type"]], place)
        done = self._take(DELTA_EVENTS[item["type"]] + ".done")
        assert done.get("name", item["name"]) == item["name"]
        assert done[member] == text
        return {member: text}

    def _part(self, kind: str, place: Json) -> Json:
        self._summary_open = self._next == SUMMARY + "_part.added"
        self._summary = ""
        self._logprobs = []
        if self._summary_open:
            opened = self._take(SUMMARY + "_part.added")
            assert opened == opened | place | {"summary_index": 0}
            assert opened["part"] == {"type": "summary_text", "text": ""}
        place = place | {"content_index": 0}
        added = self._take("response.content_part.added")
        assert added["part"]["text"] == ""
        assert added["part"]["type"] == PART_TYPES[kind]
        text = self._deltas(DELTA_EVENTS[kind], place)
        done = self._take(DELTA_EVENTS[kind] + ".done")
        assert done["text"] == text
        closed = self._take("response.content_part.done")
        whole = {"text": text}
        if kind == "message":
            assert done["logprobs"] == self._logprobs
            assert _without_bytes(closed["part"]["logprobs"]) == self._logprobs
            whole |= {"logprobs": closed["part"]["logprobs"]}
        assert closed["part"] == added["part"] | whole
        for event in (added, done, closed):
            assert event | place == event
        return {"content": [closed["part"]]}

    def _close_summary(self, place: Json, text: str) -> Json:
        """The summary of a reasoning item, which says all that it says."""
        place = place | {"summary_index": 0}
        said = self._take(SUMMARY + "_text.done")
        assert said == said | place | {"text": text}
        assert self._summary == text
        closed = self._take(SUMMARY + "_part.done")
        assert closed == closed | place | {"part": {"type": "summary_text", "text": text}}
        part: Json = closed["part"]
        return part

    def _deltas(self, kind: str, place: Json) -> str:
        text = ""
        while self._next == kind + ".delta":
            event = self._take(kind + ".delta")
            assert event | place == event
            assert event["delta"], "no delta is empty"
            text += event["delta"]
            self._logprobs += event.get("logprobs", [])
            if kind == DELTA_EVENTS["reasoning"] and self._summary_open:
                told = self._take(SUMMARY + "_text.delta")
                assert told["delta"] == event["delta"]
                self._summary += told["delta"]
        return text


def _without_bytes(logprobs: list[Json]) -> list[Json]:
    """Log-probabilities of a part as the deltas tell them."""
    return [
        {key: value for key, value in entry.items() if key != "bytes"}
        | {"top_logprobs": [{k: v for k, v in t.items() if k != "bytes"} for t in tops]}
        for entry in logprobs
        for tops in [entry["top_logprobs"]]
    ]


# --- Chat --------------------------------------------------------------------------------------


@dataclass
class StreamedChat:
    """A stream that kept all rules: what its chunks add up to."""

    head: Json
    message: Json = field(
        default_factory=lambda: {"role": "assistant", "content": "", "reasoning": ""}
    )
    calls: list[Json] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Json | None = None
    error: Json | None = None
    logprobs: list[Json] | None = None


def read_chat_stream(body: bytes) -> StreamedChat:
    """Read a whole Chat stream and check that it keeps every rule."""
    found = [data for event, data in frames(body) if event is None]
    assert found.pop() == DONE
    chunks = [json.loads(data) for data in found]
    chat = StreamedChat({k: chunks[0][k] for k in ("id", "object", "created", "model")})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for chunk in chunks[1:]:
        assert chat.error is None, "nothing comes after an error"
        assert chat.usage is None, "usage comes last"
        if "error" in chunk:
            assert chat.finish_reason is None
            chat.error = chunk["error"]
        else:
            _add_chunk(chat, chunk)
    assert (chat.finish_reason is None) == (chat.error is not None)
    if chat.error is None:
        told = {"usage" in chunk for chunk in chunks}
        assert told == {chat.usage is not None}, "all chunks have the member, or none"
    return chat


def _add_chunk(chat: StreamedChat, chunk: Json) -> None:
    check_type(ChatCompletionChunk, _without_custom_calls(chunk))
    assert chunk | chat.head == chunk, "all chunks have one head"
    assert chunk["object"] == "chat.completion.chunk"
    if not chunk["choices"]:
        assert chat.finish_reason is not None
        chat.usage = chunk["usage"]
        return
    [choice] = chunk["choices"]
    assert chunk.get("usage") is None
    assert chat.finish_reason is None, "nothing but usage comes after the finish reason"
    chat.finish_reason = choice["finish_reason"]
    [member] = choice["delta"] or [None]
    assert (member is None) == (choice["finish_reason"] is not None)
    if member == "tool_calls":
        _add_call(chat, choice["delta"][member][0])
    elif member is not None:
        assert choice["delta"][member], "no delta is empty"
        chat.message[member] = chat.message.get(member, "") + choice["delta"][member]
    if choice["logprobs"] is not None:
        assert member == "content"
        chat.logprobs = (chat.logprobs or []) + choice["logprobs"]["content"]


def _without_custom_calls(chunk: Json) -> Json:
    """openai's types know no deltas of custom tools, though its API has them."""
    choices = [
        choice | {"delta": {}}
        if any("custom" in call for call in choice["delta"].get("tool_calls", ()))
        else choice
        for choice in chunk["choices"]
    ]
    return chunk | {"choices": choices}


def _add_call(chat: StreamedChat, delta: Json) -> None:
    """The first delta of a call names it, the later ones only add to its text."""
    kind = delta.get("type") or chat.calls[-1]["type"]
    text = {"function": "arguments", "custom": "input"}[kind]
    if delta["index"] == len(chat.calls):
        assert set(delta) == {"index", "id", "type", kind}
        assert delta[kind][text] == ""
        assert delta[kind]["name"]
        chat.calls.append({k: v for k, v in delta.items() if k != "index"})
        return
    assert delta["index"] == len(chat.calls) - 1
    assert set(delta) == {"index", kind}
    assert set(delta[kind]) == {text}
    assert delta[kind][text], "no delta is empty"
    chat.calls[-1][kind][text] += delta[kind][text]


def check_completion(completion: Json) -> None:
    """A completion object is whole and consistent in itself."""
    check_type(ChatCompletion, completion)
    [choice] = completion["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    usage = completion["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 <= reasoning <= usage["completion_tokens"]


# --- completions -------------------------------------------------------------------------------

LEGACY_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def read_text_stream(body: bytes) -> Json:
    """The completion object that the chunks of `/v1/completions` add up to."""
    data = [data for _, data in frames(body)]
    assert data[-1] == DONE
    chunks = [json.loads(item) for item in data[:-1]]
    usage = [chunk.pop("usage") for chunk in chunks if "usage" in chunk]
    assert not usage or usage[:-1] == [None] * (len(chunks) - 1)
    heads = [{name: chunk[name] for name in chunk if name != "choices"} for chunk in chunks]
    assert all(head == heads[0] for head in heads)
    whole: dict[int, Json] = {}
    for chunk in chunks:
        check_text_completion(chunk | {"usage": usage[-1] if usage else None})
        for delta in chunk["choices"]:
            choice = whole.setdefault(delta["index"], {"text": "", "logprobs": None})
            assert "finish_reason" not in choice or choice["finish_reason"] is None
            _add_text(choice, delta)
    if usage:
        assert chunks[-1]["choices"] == []
        heads[0]["usage"] = usage[-1]
    return heads[0] | {"choices": [whole[index] for index in sorted(whole)]}


def _add_text(choice: Json, delta: Json) -> None:
    choice["index"], choice["finish_reason"] = delta["index"], delta["finish_reason"]
    choice["text"] += delta["text"]
    if delta["logprobs"] is not None:
        scored = choice["logprobs"] or {name: [] for name in LEGACY_LOGPROBS}
        choice["logprobs"] = {name: scored[name] + delta["logprobs"][name] for name in scored}


def check_text_completion(completion: Json) -> None:
    """A completion object, or a chunk, whose choices may be unfinished."""
    choices = [
        choice | {"finish_reason": choice["finish_reason"] or "stop"}
        for choice in completion["choices"]
    ]
    check_type(Completion, completion | {"choices": choices})
    for choice in choices:
        scored = choice["logprobs"]
        if scored is not None:
            assert tuple(scored) == LEGACY_LOGPROBS
            assert len({len(column) for column in scored.values()}) == 1
            assert scored["text_offset"] == sorted(scored["text_offset"])
            named = zip(scored["tokens"], scored["top_logprobs"], strict=True)
            assert all(token in top for token, top in named)

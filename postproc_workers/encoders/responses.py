"""Encodes a turn as OpenAI's Responses API: server-sent events, or one response object.

Members that do not change between the events of one item are encoded once, at its beginning.
The order of events and the members they need are those that docs/api.md lists.
"""

from typing import NamedTuple

from ipc.messages import Open, ResponsesFormat, TokenLogprobs
from postproc_workers.encoders import CANCELLED, Failure, Status, Usage
from postproc_workers.encoders.json_pieces import error_body, string
from postproc_workers.headers import Header, Kind
from postproc_workers.logprobs import Scored, logprobs_json
from postproc_workers.sealing import seal
from postproc_workers.tokens import unescape


class _Shape(NamedTuple):
    """What tells one type of item from another: the beginning of its id, its type, the events of
    its text, and the member that has the whole text in their last one."""

    prefix: bytes
    type: bytes
    event: bytes
    member: bytes


_REASONING = _Shape(b"rs_", b"reasoning", b"response.reasoning_text", b"text")
_MESSAGE = _Shape(b"msg_", b"message", b"response.output_text", b"text")
_FUNCTION = _Shape(b"fc_", b"function_call", b"response.function_call_arguments", b"arguments")
_CUSTOM = _Shape(b"ctc_", b"custom_tool_call", b"response.custom_tool_call_input", b"input")
_SUMMARY = b"response.reasoning_summary"
_PHASE = {Kind.PREAMBLE: b"commentary", Kind.ANSWER: b"final_answer"}


class ResponsesEncoder:
    """The Responses encoder of one stream. Ids are derived from the response's id."""

    def __init__(self, opening: Open, format: ResponsesFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self.reasoning_tokens = 0
        self.pieces: list[bytes] = []
        self._opening = opening
        self._format = format
        self._streaming = opening.streaming
        self._id_root = opening.response_id.removeprefix("resp_").encode()
        self._head = b'{"id":%b,"object":"response","created_at":%d,"model":%b,' % (
            string(opening.response_id),
            opening.created,
            string(opening.model),
        )
        self._echo = b"," + format.echo if format.echo else b""
        self._items: list[bytes] = []
        self._shape = _MESSAGE
        self._kind = Kind.HIDDEN
        self._item_head = b""
        self._name = b""
        self._place = b""
        self._summary_place = b""
        self._delta_head = b""
        self._text: list[bytes] = []
        self._item_open = False
        self._plain = True  # a delta is its text alone
        self._pending: list[Scored] = []
        self._scored: list[Scored] = []

    def open(self) -> None:
        if not self._streaming:
            return
        status = b"queued" if self._format.queued else b"in_progress"
        response = self._response(status, usage=b"null")
        self._event(b"response.created", b'"response":%b' % response)
        if self._format.queued:
            self._event(b"response.queued", b'"response":%b' % response)
            response = self.in_progress()
        self._event(b"response.in_progress", b'"response":%b' % response)

    def in_progress(self) -> bytes:
        """The response as it is before it has said anything."""
        return self._response(b"in_progress", usage=b"null")

    def begin(self, header: Header) -> None:
        self._kind = header.kind
        shape = self._shape = self._shape_of(header)
        index = len(self._items)
        item_id = b"%b%b%02x" % (shape.prefix, self._id_root, index)
        self._item_head = self._head_of_item(header, item_id, index)
        self._item_open = True
        self._plain = True
        self._pending, self._scored = [], []
        if not self._streaming:
            return
        self._place = b'"item_id":"%b","output_index":%d' % (item_id, index)
        self._event(
            b"response.output_item.added",
            b'"output_index":%d,"item":%b' % (index, self._item(b"in_progress", b"")),
        )
        if shape is _REASONING and self._format.summary:
            self._plain = False
            self._summary_place = b'%b,"summary_index":0' % self._place
            self._event(
                _SUMMARY + b"_part.added",
                b'%b,"part":{"type":"summary_text","text":""}' % self._summary_place,
            )
        if shape in (_REASONING, _MESSAGE):
            self._place += b',"content_index":0'
            self._event(
                b"response.content_part.added", b'%b,"part":%b' % (self._place, self._part(b""))
            )
        self._delta_head = b'event: %b.delta\ndata: {"type":"%b.delta",%b%b"delta":"' % (
            shape.event,
            shape.event,
            self._place,
            b',"logprobs":[],' if shape is _MESSAGE else b",",
        )

    def logprob(self, token: int, entry: TokenLogprobs) -> None:
        if self._kind in _PHASE:
            self._pending.append((token, entry))

    def text(self, escaped: bytes) -> None:
        self._text.append(escaped)
        if self._pending:
            scored, self._pending = self._pending, []
            self._scored += scored
            if self._streaming:
                told = logprobs_json(scored, with_bytes=False)
                members = b'%b,"logprobs":%b,"delta":"%b"' % (self._place, told, escaped)
                self._event(b"response.output_text.delta", members)
        elif self._streaming:
            self.pieces.append(
                b'%b%b","sequence_number":%d}\n\n' % (self._delta_head, escaped, self.next_sequence)
            )
            self.next_sequence += 1
            if not self._plain:
                delta = b'%b,"delta":"%b"' % (self._summary_place, escaped)
                self._event(_SUMMARY + b"_text.delta", delta)

    def end(self, tokens: int, complete: bool) -> None:
        if self._kind is Kind.REASONING:
            self.reasoning_tokens += tokens
        self._close_item(b"completed" if complete else b"incomplete")

    def finish(
        self, status: Status, usage: Usage, now: int, stop_sequence: str | None = None
    ) -> None:
        counts = (
            b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},'
            b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        ) % (
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            self.reasoning_tokens,
            usage.prompt_tokens + usage.output_tokens,
        )
        if status == "length":
            reason = b'{"reason":"max_output_tokens"}'
            response = self._response(b"incomplete", usage=counts, incomplete=reason)
            self._terminal(b"response.incomplete", response)
        else:
            response = self._response(b"completed", usage=counts, completed=b"%d" % now)
            self._terminal(b"response.completed", response)

    def fail(self, failure: Failure, now: int) -> None:
        if not self._streaming and not self._format.retrieved:
            self.pieces.append(error_body(failure))
            return
        if self._item_open:
            self._close_item(b"incomplete")
        code, message = string(failure.code), string(failure.message)
        cancelled = failure.code == CANCELLED
        if self._streaming and self._format.error_event and not cancelled:
            self._event(b"error", b'"code":%b,"message":%b,"param":null' % (code, message))
        error = b"null" if cancelled else b'{"code":%b,"message":%b}' % (code, message)
        status = b"cancelled" if cancelled else b"failed"
        self._terminal(b"response.failed", self._response(status, usage=b"null", error=error))

    def _terminal(self, name: bytes, response: bytes) -> None:
        if self._streaming:
            self._event(name, b'"response":%b' % response)
        else:
            self.pieces.append(response)

    def _close_item(self, status: bytes) -> None:
        whole = b"".join(self._text)
        item = self._item(status, whole)
        index = len(self._items)
        self._items.append(item)
        self._item_open = False
        self._text = []
        if not self._streaming:
            return
        shape = self._shape
        logprobs = b""
        if shape is _MESSAGE:
            logprobs = b',"logprobs":%b' % logprobs_json(self._scored, with_bytes=False)
        self._event(
            shape.event + b".done",
            b'%b%b%b,"%b":"%b"' % (self._place, logprobs, self._name, shape.member, whole),
        )
        if shape in (_REASONING, _MESSAGE):
            part = b'%b,"part":%b' % (self._place, self._part(whole))
            self._event(b"response.content_part.done", part)
        if not self._plain:
            text = b'%b,"text":"%b"' % (self._summary_place, whole)
            self._event(_SUMMARY + b"_text.done", text)
            part = b'%b,"part":%b' % (self._summary_place, _summary_part(whole))
            self._event(_SUMMARY + b"_part.done", part)
        self._event(b"response.output_item.done", b'"output_index":%d,"item":%b' % (index, item))

    def _shape_of(self, header: Header) -> _Shape:
        if header.kind is Kind.CALL:
            return _CUSTOM if header.name in self._opening.custom else _FUNCTION
        return _REASONING if header.kind is Kind.REASONING else _MESSAGE

    def _head_of_item(self, header: Header, item_id: bytes, index: int) -> bytes:
        """The members of an item that never change, each with its comma."""
        head = b'"id":"%b","type":"%b",' % (item_id, self._shape.type)
        self._name = b""
        if header.kind is Kind.REASONING:
            return head
        if header.kind is not Kind.CALL:
            return b'%b"role":"assistant","phase":"%b",' % (head, _PHASE[header.kind])
        namespace, _, name = header.name.rpartition(".")
        if not namespace or header.name not in self._opening.tools:
            namespace, name = "", header.name
        if self._shape is _FUNCTION:
            self._name = b',"name":%b' % string(name)
        call_id = b"call_%b%02x" % (self._id_root, index)
        head += b'"call_id":"%b","name":%b,' % (call_id, string(name))
        return head + (b'"namespace":%b,' % string(namespace) if namespace else b"")

    def _item(self, status: bytes, whole: bytes) -> bytes:
        """The item, whose text is `whole`: at its beginning, before any text, that is empty."""
        shape = self._shape
        if shape is _REASONING:
            rest = self._reasoning_members(status, whole)
        elif shape is _MESSAGE:
            rest = b'"content":[%b]' % (b"" if status == b"in_progress" else self._part(whole))
        else:
            rest = b'"%b":"%b"' % (shape.member, whole)
        return b'{%b"status":"%b",%b}' % (self._item_head, status, rest)

    def _reasoning_members(self, status: bytes, whole: bytes) -> bytes:
        if status == b"in_progress":
            return b'"summary":[],"encrypted_content":null,"content":[]'
        summary = _summary_part(whole) if self._format.summary else b""
        sealed = b"null"
        if self._format.sealed:
            text = unescape(whole)
            sealed = string(seal(self._format.seal_key, "reasoning", self._opening.tenant, text))
        return b'"summary":[%b],"encrypted_content":%b,"content":[%b]' % (
            summary,
            sealed,
            self._part(whole),
        )

    def _part(self, whole: bytes) -> bytes:
        if self._shape is _REASONING:
            return b'{"type":"reasoning_text","text":"%b"}' % whole
        return b'{"type":"output_text","text":"%b","annotations":[],"logprobs":%b}' % (
            whole,
            logprobs_json(self._scored, with_bytes=True),
        )

    def _response(
        self,
        status: bytes,
        *,
        usage: bytes,
        completed: bytes = b"null",
        error: bytes = b"null",
        incomplete: bytes = b"null",
    ) -> bytes:
        return (
            b'%b"status":"%b","completed_at":%b,"error":%b,"incomplete_details":%b,'
            b'"output":[%b],"usage":%b%b}'
        ) % (
            self._head,
            status,
            completed,
            error,
            incomplete,
            b",".join(self._items),
            usage,
            self._echo,
        )

    def _event(self, name: bytes, members: bytes) -> None:
        self.pieces.append(
            b'event: %b\ndata: {"type":"%b",%b,"sequence_number":%d}\n\n'
            % (name, name, members, self.next_sequence)
        )
        self.next_sequence += 1


def _summary_part(whole: bytes) -> bytes:
    return b'{"type":"summary_text","text":"%b"}' % whole

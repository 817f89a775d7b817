"""Encodes a turn as OpenAI's Responses API: server-sent events, or one response object.

Members that do not change between the events of one item are encoded once, at its beginning.
The order of events and the members they need are those that docs/api.md lists.
"""

from ipc.messages import Open, ResponsesFormat
from postproc_workers.encoders import Failure, Status, Usage
from postproc_workers.encoders.json_pieces import error_body, string
from postproc_workers.headers import Header, Kind

_ITEM_PREFIX = {
    Kind.REASONING: b"rs_",
    Kind.PREAMBLE: b"msg_",
    Kind.ANSWER: b"msg_",
    Kind.CALL: b"fc_",
}
_DELTA_EVENT = {
    Kind.REASONING: b"response.reasoning_text",
    Kind.PREAMBLE: b"response.output_text",
    Kind.ANSWER: b"response.output_text",
    Kind.CALL: b"response.function_call_arguments",
}
_PHASE = {Kind.PREAMBLE: b"commentary", Kind.ANSWER: b"final_answer"}


class ResponsesEncoder:
    """The Responses encoder of one stream. Ids are derived from the response's id."""

    def __init__(self, opening: Open, format: ResponsesFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self._streaming = opening.streaming
        self.pieces: list[bytes] = []
        self._id_root = opening.response_id.removeprefix("resp_").encode()
        self._head = b'{"id":%b,"object":"response","created_at":%d,"model":%b,' % (
            string(opening.response_id),
            opening.created,
            string(opening.model),
        )
        self._echo = b"," + format.echo if format.echo else b""
        self._items: list[bytes] = []
        self._kind = Kind.HIDDEN
        self._item_head = b""
        self._name = b""
        self._place = b""
        self._delta_head = b""
        self._text: list[bytes] = []
        self._item_open = False
        self._reasoning_tokens = 0

    def open(self) -> None:
        if self._streaming:
            response = self._response(b"in_progress", usage=b"null")
            self._event(b"response.created", b'"response":%b' % response)
            self._event(b"response.in_progress", b'"response":%b' % response)

    def begin(self, header: Header) -> None:
        kind = self._kind = header.kind
        index = len(self._items)
        item_id = b"%b%b%02x" % (_ITEM_PREFIX[kind], self._id_root, index)
        self._item_head = self._head_of_item(header, item_id, index)
        if not self._streaming:
            return
        self._place = b'"item_id":"%b","output_index":%d' % (item_id, index)
        if kind is not Kind.CALL:
            self._place += b',"content_index":0'
        delta_event = _DELTA_EVENT[kind]
        logprobs = b',"logprobs":[]' if kind in _PHASE else b""
        self._delta_head = b'event: %b.delta\ndata: {"type":"%b.delta",%b%b,"delta":"' % (
            delta_event,
            delta_event,
            self._place,
            logprobs,
        )
        item = self._item(b"in_progress", content=b"", arguments=b"")
        self._event(b"response.output_item.added", b'"output_index":%d,"item":%b' % (index, item))
        self._item_open = True
        if kind is not Kind.CALL:
            self._event(
                b"response.content_part.added", b'%b,"part":%b' % (self._place, self._part(b""))
            )

    def text(self, escaped: bytes) -> None:
        self._text.append(escaped)
        if self._streaming:
            self.pieces.append(
                b'%b%b","sequence_number":%d}\n\n' % (self._delta_head, escaped, self.next_sequence)
            )
            self.next_sequence += 1

    def end(self, tokens: int, complete: bool) -> None:
        if self._kind is Kind.REASONING:
            self._reasoning_tokens += tokens
        self._close_item(b"completed" if complete else b"incomplete")

    def finish(self, status: Status, usage: Usage, now: int) -> None:
        counts = (
            b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},'
            b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        ) % (
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            self._reasoning_tokens,
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
        if not self._streaming:
            self.pieces.append(error_body(failure))
            return
        if self._item_open:
            self._close_item(b"incomplete")
        code, message = string(failure.code), string(failure.message)
        self._event(b"error", b'"code":%b,"message":%b,"param":null' % (code, message))
        error = b'{"code":%b,"message":%b}' % (code, message)
        response = self._response(b"failed", usage=b"null", error=error)
        self._event(b"response.failed", b'"response":%b' % response)

    def _terminal(self, name: bytes, response: bytes) -> None:
        if self._streaming:
            self._event(name, b'"response":%b' % response)
        else:
            self.pieces.append(response)

    def _close_item(self, status: bytes) -> None:
        whole = b"".join(self._text)
        item = self._item(status, content=self._part(whole), arguments=whole)
        index = len(self._items)
        self._items.append(item)
        self._item_open = False
        self._text = []
        if not self._streaming:
            return
        member = b"arguments" if self._kind is Kind.CALL else b"text"
        logprobs = b',"logprobs":[]' if self._kind in _PHASE else b""
        name = _DELTA_EVENT[self._kind] + b".done"
        self._event(name, b'%b%b%b,"%b":"%b"' % (self._place, logprobs, self._name, member, whole))
        if self._kind is not Kind.CALL:
            part = self._part(whole)
            self._event(b"response.content_part.done", b'%b,"part":%b' % (self._place, part))
        self._event(b"response.output_item.done", b'"output_index":%d,"item":%b' % (index, item))

    def _head_of_item(self, header: Header, item_id: bytes, index: int) -> bytes:
        """The members of an item that never change, each with its comma."""
        self._name = b""
        if header.kind is Kind.REASONING:
            return b'"id":"%b","type":"reasoning","summary":[],"encrypted_content":null,' % item_id
        if header.kind is Kind.CALL:
            name = string(header.name)
            self._name = b',"name":%b' % name
            call_id = b"call_%b%02x" % (self._id_root, index)
            return b'"id":"%b","type":"function_call","call_id":"%b","name":%b,' % (
                item_id,
                call_id,
                name,
            )
        return b'"id":"%b","type":"message","role":"assistant","phase":"%b",' % (
            item_id,
            _PHASE[header.kind],
        )

    def _item(self, status: bytes, content: bytes, arguments: bytes) -> bytes:
        if self._kind is Kind.CALL:
            rest = b'"arguments":"%b"' % arguments
        else:
            rest = b'"content":[%b]' % content
        return b'{%b"status":"%b",%b}' % (self._item_head, status, rest)

    def _part(self, whole: bytes) -> bytes:
        if self._kind is Kind.REASONING:
            return b'{"type":"reasoning_text","text":"%b"}' % whole
        return b'{"type":"output_text","text":"%b","annotations":[],"logprobs":[]}' % whole

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

"""Encodes a turn as OpenAI's Chat Completions API: chunks, or one completion object.

Reasoning goes to `reasoning`; preambles and answers to `content`. Where a turn has several
messages of one sort, an empty line stands between them.
"""

from ipc.messages import ChatFormat, Open
from postproc_workers.encoders import Failure, Status, Usage
from postproc_workers.encoders.json_pieces import error_body, string
from postproc_workers.headers import Header, Kind

_MEMBER = {
    Kind.REASONING: b"reasoning",
    Kind.PREAMBLE: b"content",
    Kind.ANSWER: b"content",
}
_BETWEEN_MESSAGES = rb"\n\n"


class ChatEncoder:
    """The Chat encoder of one stream. Ids of calls are derived from the completion's id."""

    def __init__(self, opening: Open, format: ChatFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self._streaming = opening.streaming
        self.pieces: list[bytes] = []
        self._id_root = opening.response_id.removeprefix("chatcmpl-").encode()
        self._include_usage = format.include_usage
        self._head = b'{"id":%b,"object":"chat.completion%b","created":%d,"model":%b,' % (
            string(opening.response_id),
            b".chunk" if opening.streaming else b"",
            opening.created,
            string(opening.model),
        )
        self._chunk_head = b'data: %b"choices":[{"index":0,"delta":' % self._head
        self._chunk_tail = b',"logprobs":null,"finish_reason":null}]'
        if self._include_usage:
            self._chunk_tail += b',"usage":null'
        self._chunk_tail += b"}\n\n"
        self._delta_head = b""
        self._delta_tail = b'"}' + self._chunk_tail
        self._kind = Kind.HIDDEN
        self._texts: dict[bytes, list[bytes]] = {b"reasoning": [], b"content": []}
        self._text: list[bytes] = []
        self._calls: list[bytes] = []
        self._call_head = b""
        self._between = b""
        self._reasoning_tokens = 0

    def open(self) -> None:
        if self._streaming:
            self._chunk(b'{"role":"assistant","content":""}')

    def begin(self, header: Header) -> None:
        self._kind = header.kind
        self._between = b""
        if header.kind is Kind.CALL:
            self._begin_call(header.name)
            return
        member = _MEMBER[header.kind]
        self._text = self._texts[member]
        self._delta_head = b'%b{"%b":"' % (self._chunk_head, member)
        if self._text:
            self._between = _BETWEEN_MESSAGES

    def text(self, escaped: bytes) -> None:
        if self._between:
            escaped, self._between = self._between + escaped, b""
        self._text.append(escaped)
        if self._streaming:
            self.pieces.append(b"%b%b%b" % (self._delta_head, escaped, self._delta_tail))

    def end(self, tokens: int, complete: bool) -> None:
        if self._kind is Kind.REASONING:
            self._reasoning_tokens += tokens
        elif self._kind is Kind.CALL:
            self._delta_tail = b'"}' + self._chunk_tail
            self._calls.append(b'%b"%b"}}' % (self._call_head, b"".join(self._text)))

    def finish(self, status: Status, usage: Usage, now: int) -> None:
        reason = b"tool_calls" if self._calls and status == "stop" else status.encode()
        if not self._streaming:
            self.pieces.append(self._completion(reason, usage))
            return
        usage_member = b',"usage":null' if self._include_usage else b""
        self.pieces.append(
            b'%b{},"logprobs":null,"finish_reason":"%b"}]%b}\n\n'
            % (self._chunk_head, reason, usage_member)
        )
        if self._include_usage:
            counts = self._usage(usage)
            self.pieces.append(b'data: %b"choices":[],"usage":%b}\n\n' % (self._head, counts))
        self.pieces.append(b"data: [DONE]\n\n")

    def fail(self, failure: Failure, now: int) -> None:
        body = error_body(failure)
        self.pieces.append(b"data: %b\n\ndata: [DONE]\n\n" % body if self._streaming else body)

    def _begin_call(self, name: str) -> None:
        index = len(self._calls)
        head = b'"id":"call_%b%02x","type":"function","function":{"name":%b,"arguments":' % (
            self._id_root,
            index,
            string(name),
        )
        self._call_head = b"{" + head
        self._text = []
        if self._streaming:
            self._chunk(b'{"tool_calls":[{"index":%d,%b""}}]}' % (index, head))
            self._delta_head = b'%b{"tool_calls":[{"index":%d,"function":{"arguments":"' % (
                self._chunk_head,
                index,
            )
            self._delta_tail = b'"}}]}' + self._chunk_tail

    def _completion(self, reason: bytes, usage: Usage) -> bytes:
        content = b"".join(self._texts[b"content"])
        reasoning = b"".join(self._texts[b"reasoning"])
        message = b'{"role":"assistant","content":%b,"refusal":null' % (
            b"null" if self._calls and not content else b'"%b"' % content
        )
        if reasoning:
            message += b',"reasoning":"%b"' % reasoning
        if self._calls:
            message += b',"tool_calls":[%b]' % b",".join(self._calls)
        return (
            b'%b"choices":[{"index":0,"message":%b},"logprobs":null,"finish_reason":"%b"}],'
            b'"usage":%b}'
        ) % (self._head, message, reason, self._usage(usage))

    def _usage(self, usage: Usage) -> bytes:
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":%d},'
            b'"completion_tokens_details":{"reasoning_tokens":%d}}'
        ) % (
            usage.prompt_tokens,
            usage.output_tokens,
            usage.prompt_tokens + usage.output_tokens,
            usage.cached_tokens,
            self._reasoning_tokens,
        )

    def _chunk(self, delta: bytes) -> None:
        self.pieces.append(b"%b%b%b" % (self._chunk_head, delta, self._chunk_tail))

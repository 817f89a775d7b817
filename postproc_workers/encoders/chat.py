"""Encodes a turn as OpenAI's Chat Completions API: chunks, or one completion object.

Reasoning goes to `reasoning` (or `reasoning_content`); preambles and answers to `content`. Where a
turn has several messages of one sort, an empty line stands between them. Of several choices each
is a stream of its own, whose reader adds what they share: `completion`, `last_chunks`.
"""

from collections.abc import Sequence

from ipc.messages import ChatFormat, Open, TokenLogprobs
from postproc_workers.encoders import Failure, Status, Usage
from postproc_workers.encoders.json_pieces import error_body, string
from postproc_workers.headers import Header, Kind
from postproc_workers.logprobs import Scored, logprobs_json

_CONTENT = b"content"
_BETWEEN_MESSAGES = rb"\n\n"
_DONE = b"data: [DONE]\n\n"


class ChatEncoder:
    """The Chat encoder of one stream. Ids of calls are derived from the completion's id."""

    def __init__(self, opening: Open, format: ChatFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self.reasoning_tokens = 0
        self.pieces: list[bytes] = []
        self._opening = opening
        self._streaming = opening.streaming
        self._part = format.part
        self._include_usage = format.include_usage
        self._reasoning = format.reasoning_member.encode()
        self._id_root = opening.response_id.removeprefix("chatcmpl-").encode()
        self._index = format.part or 0
        if self._index:
            self._id_root += b"%02x" % self._index
        self._head = _head(opening)
        self._chunk_head = b'data: %b"choices":[{"index":%d,"delta":' % (self._head, self._index)
        self._usage_member = b',"usage":null' if self._include_usage else b""
        self._chunk_end = b',"finish_reason":null}]%b}\n\n' % self._usage_member
        self._chunk_tail = b',"logprobs":null' + self._chunk_end
        self._delta_head = b""
        self._delta_tail = b'"}' + self._chunk_tail
        self._kind = Kind.HIDDEN
        self._texts: dict[bytes, list[bytes]] = {self._reasoning: [], _CONTENT: []}
        self._text: list[bytes] = []
        self._calls: list[bytes] = []
        self._call_head = b""
        self._between = b""
        self._pending: list[Scored] = []
        self._scored: list[Scored] | None = None

    def open(self) -> None:
        if self._streaming:
            self._chunk(b'{"role":"assistant","content":""}')

    def begin(self, header: Header) -> None:
        self._kind = header.kind
        self._between = b""
        self._pending = []
        if header.kind is Kind.CALL:
            self._begin_call(header.name)
            return
        member = self._reasoning if header.kind is Kind.REASONING else _CONTENT
        self._text = self._texts[member]
        self._delta_head = b'%b{"%b":"' % (self._chunk_head, member)
        if self._text:
            self._between = _BETWEEN_MESSAGES

    def logprob(self, token: int, entry: TokenLogprobs) -> None:
        if self._kind in (Kind.ANSWER, Kind.PREAMBLE):
            self._pending.append((token, entry))

    def text(self, escaped: bytes) -> None:
        if self._between:
            escaped, self._between = self._between + escaped, b""
        self._text.append(escaped)
        if self._pending:
            self._scored_text(escaped)
        elif self._streaming:
            self.pieces.append(b"%b%b%b" % (self._delta_head, escaped, self._delta_tail))

    def end(self, tokens: int, complete: bool) -> None:
        if self._kind is Kind.REASONING:
            self.reasoning_tokens += tokens
        elif self._kind is Kind.CALL:
            self._delta_tail = b'"}' + self._chunk_tail
            whole = b"".join(self._text)
            self._calls.append(b'%b"%b"}}' % (self._call_head, whole))

    def finish(
        self, status: Status, usage: Usage, now: int, stop_sequence: str | None = None
    ) -> None:
        reason = b"tool_calls" if self._calls and status == "stop" else status.encode()
        whole = self._part is None
        if not self._streaming:
            choice = self._choice(reason)
            self.pieces.append(
                completion(self._opening, [choice], usage, self.reasoning_tokens)
                if whole
                else choice
            )
            return
        self.pieces.append(
            b'%b{},"logprobs":null,"finish_reason":"%b"}]%b}\n\n'
            % (self._chunk_head, reason, self._usage_member)
        )
        if whole:
            asked = usage if self._include_usage else None
            self.pieces.append(last_chunks(self._opening, asked, self.reasoning_tokens))

    def fail(self, failure: Failure, now: int) -> None:
        body = error_body(failure)
        self.pieces.append(b"data: %b\n\n%b" % (body, _DONE) if self._streaming else body)

    def _scored_text(self, escaped: bytes) -> None:
        scored, self._pending = self._pending, []
        self._scored = (self._scored or []) + scored
        if self._streaming:
            self.pieces.append(
                b'%b%b"},"logprobs":%b%b'
                % (self._delta_head, escaped, _logprobs(scored), self._chunk_end)
            )

    def _begin_call(self, name: str) -> None:
        index = len(self._calls)
        kind, text = (
            (b"custom", b"input") if name in self._opening.custom else (b"function", b"arguments")
        )
        head = b'"id":"call_%b%02x","type":"%b","%b":{"name":%b,"%b":' % (
            self._id_root,
            index,
            kind,
            kind,
            string(name),
            text,
        )
        self._call_head = b"{" + head
        self._text = []
        if self._streaming:
            self._chunk(b'{"tool_calls":[{"index":%d,%b""}}]}' % (index, head))
            self._delta_head = b'%b{"tool_calls":[{"index":%d,"%b":{"%b":"' % (
                self._chunk_head,
                index,
                kind,
                text,
            )
            self._delta_tail = b'"}}]}' + self._chunk_tail

    def _choice(self, reason: bytes) -> bytes:
        content = b"".join(self._texts[_CONTENT])
        reasoning = b"".join(self._texts[self._reasoning])
        message = b'{"role":"assistant","content":%b,"refusal":null' % (
            b"null" if self._calls and not content else b'"%b"' % content
        )
        if reasoning:
            message += b',"%b":"%b"' % (self._reasoning, reasoning)
        if self._calls:
            message += b',"tool_calls":[%b]' % b",".join(self._calls)
        scored = b"null" if self._scored is None else _logprobs(self._scored)
        return b'{"index":%d,"message":%b},"logprobs":%b,"finish_reason":"%b"}' % (
            self._index,
            message,
            scored,
            reason,
        )

    def _chunk(self, delta: bytes) -> None:
        self.pieces.append(b"%b%b%b" % (self._chunk_head, delta, self._chunk_tail))


def completion(
    opening: Open, choices: Sequence[bytes], usage: Usage, reasoning_tokens: int
) -> bytes:
    """The completion object of an unstreamed request with these choices."""
    return b'%b"choices":[%b],"usage":%b}' % (
        _head(opening),
        b",".join(choices),
        _usage(usage, reasoning_tokens),
    )


def last_chunks(opening: Open, usage: Usage | None, reasoning_tokens: int) -> bytes:
    """What ends a stream after its choices: the usage, if it was asked for, and the mark."""
    if usage is None:
        return _DONE
    counts = _usage(usage, reasoning_tokens)
    return b'data: %b"choices":[],"usage":%b}\n\n%b' % (_head(opening), counts, _DONE)


def _head(opening: Open) -> bytes:
    return b'{"id":%b,"object":"chat.completion%b","created":%d,"model":%b,' % (
        string(opening.response_id),
        b".chunk" if opening.streaming else b"",
        opening.created,
        string(opening.model),
    )


def _logprobs(scored: list[Scored]) -> bytes:
    return b'{"content":%b,"refusal":null}' % logprobs_json(scored, with_bytes=True)


def _usage(usage: Usage, reasoning_tokens: int) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d},'
        b'"completion_tokens_details":{"reasoning_tokens":%d}}'
    ) % (
        usage.prompt_tokens,
        usage.output_tokens,
        usage.prompt_tokens + usage.output_tokens,
        usage.cached_tokens,
        reasoning_tokens,
    )

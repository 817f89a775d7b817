"""Encodes a turn as Anthropic's Messages API: server-sent events, or one message object.

Blocks come one after another, each opened by its first text, so that none is empty but a call
without arguments. docs/api.md says what is shown of the reasoning, and how arguments are told.
"""

import msgspec

from ipc.messages import MessagesFormat, Open, TokenLogprobs
from postproc_workers.encoders import Failure, Status, Usage
from postproc_workers.encoders.json_pieces import string
from postproc_workers.headers import Header, Kind
from postproc_workers.signatures import signature_of
from postproc_workers.tokens import escape, unescape

INVALID_JSON = "INVALID_JSON"
"""Holds arguments that are no object. Source: Anthropic's "Fine-grained tool streaming"."""

_DELTA = {
    Kind.REASONING: b'"thinking_delta","thinking"',
    Kind.PREAMBLE: b'"text_delta","text"',
    Kind.ANSWER: b'"text_delta","text"',
    Kind.CALL: b'"input_json_delta","partial_json"',
}
_STOP_REASON = {"stop": b"end_turn", "length": b"max_tokens"}
_START_OF_USAGE = Usage(0, 0, 0)


def error_body(failure: Failure) -> bytes:
    """Anthropic's error object, as the body of a reply or the data of an event."""
    return b'{"type":"error","error":{"type":"%b","message":%b}}' % (
        _error_type(failure),
        string(failure.message),
    )


def _error_type(failure: Failure) -> bytes:
    if failure.code == "overloaded":
        return b"overloaded_error"
    return b"invalid_request_error" if failure.status < 500 else b"api_error"


class MessagesEncoder:
    """The Messages encoder of one stream. Ids of calls are derived from the message's id."""

    def __init__(self, opening: Open, format: MessagesFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self.pieces: list[bytes] = []
        self.reasoning_tokens = 0
        self._opening = opening
        self._streaming = opening.streaming
        self._id_root = opening.response_id.removeprefix("msg_").encode()
        self._hidden_kinds = set() if format.preambles else {Kind.PREAMBLE}
        if format.thinking == "hidden":
            self._hidden_kinds.add(Kind.REASONING)
        self._omits_thinking = format.thinking == "omitted"
        self._blocks: list[bytes] = []
        """Whole ones, or in a stream nothing but their number."""
        self._kind = Kind.HIDDEN
        self._hidden = False
        self._block_open = False
        self._delta_head = b""
        self._call_head = b""
        self._text: list[bytes] = []
        self._called = False

    def open(self) -> None:
        if self._streaming:
            usage = _START_OF_USAGE._replace(prompt_tokens=self._opening.prompt_tokens)
            message = self._message(b"null", b"null", usage)
            self._event(b"message_start", b',"message":%b' % message)
            self._event(b"ping", b"")

    def begin(self, header: Header) -> None:
        self._kind = header.kind
        self._hidden = header.kind in self._hidden_kinds
        if header.kind is Kind.CALL:
            self._called = True
            self._call_head = b'{"type":"tool_use","id":"toolu_%b%02x","name":%b,"input":' % (
                self._id_root,
                len(self._blocks),
                string(header.name),
            )
            self._open_block(self._call_head + b"{}}")

    def logprob(self, token: int, entry: TokenLogprobs) -> None:
        """This API tells none."""

    def text(self, escaped: bytes) -> None:
        if self._hidden:
            return
        if self._kind is Kind.CALL and not self._text:
            # The SDK's helper fails at white space with nothing behind it.
            escaped = escape(unescape(escaped).lstrip(" \t\r\n"))
            if not escaped:
                return
        self._text.append(escaped)
        if not self._streaming or (self._kind is Kind.REASONING and self._omits_thinking):
            return
        if not self._block_open:
            self._open_block(self._block(b"", b""))
        self.pieces.append(b'%b%b"}}\n\n' % (self._delta_head, escaped))

    def end(self, tokens: int, complete: bool) -> None:
        if self._kind is Kind.REASONING:
            self.reasoning_tokens += tokens
        if self._text or self._kind is Kind.CALL:
            self._end_block(b"".join(self._text))
            self._text = []

    def finish(
        self, status: Status, usage: Usage, now: int, stop_sequence: str | None = None
    ) -> None:
        sequence = b"null" if stop_sequence is None else string(stop_sequence)
        reason = _STOP_REASON[status]
        if status == "stop" and stop_sequence is not None:
            reason = b"stop_sequence"
        elif status == "stop" and self._called:
            reason = b"tool_use"
        if not self._streaming:
            self.pieces.append(self._message(b'"%b"' % reason, sequence, usage))
            return
        delta = b'{"stop_reason":"%b","stop_sequence":%b,"stop_details":null}' % (reason, sequence)
        self._event(b"message_delta", b',"delta":%b,"usage":%b' % (delta, self._usage(usage)))
        self._event(b"message_stop", b"")

    def fail(self, failure: Failure, now: int) -> None:
        body = error_body(failure)
        self.pieces.append(b"event: error\ndata: %b\n\n" % body if self._streaming else body)

    def _open_block(self, block: bytes) -> None:
        self._block_open = True
        if not self._streaming:
            return
        index = len(self._blocks)
        self._event(b"content_block_start", b',"index":%d,"content_block":%b' % (index, block))
        self._delta_head = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":%d,"delta":{"type":%b:"'
        ) % (index, _DELTA[self._kind])

    def _end_block(self, whole: bytes) -> None:
        shown, signature = whole, b""
        if self._kind is Kind.REASONING:
            if self._omits_thinking:
                shown = b""
            signature = signature_of("" if shown else unescape(whole)).encode()
        if not self._streaming:
            self._blocks.append(self._block(shown, signature))
        else:
            if not self._block_open:
                self._open_block(self._block(b"", b""))
            index = len(self._blocks)
            if signature:
                delta = b'{"type":"signature_delta","signature":"%b"}' % signature
                self._event(b"content_block_delta", b',"index":%d,"delta":%b' % (index, delta))
            self._event(b"content_block_stop", b',"index":%d' % index)
            self._blocks.append(b"")
        self._block_open = False

    def _block(self, whole: bytes, signature: bytes) -> bytes:
        if self._kind is Kind.REASONING:
            return b'{"type":"thinking","thinking":"%b","signature":"%b"}' % (whole, signature)
        if self._kind is Kind.CALL:
            return b"%b%b}" % (self._call_head, _input(unescape(whole)))
        return b'{"type":"text","text":"%b"}' % whole

    def _message(self, reason: bytes, sequence: bytes, usage: Usage) -> bytes:
        return (
            b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[%b],'
            b'"stop_reason":%b,"stop_sequence":%b,"stop_details":null,"usage":%b}'
        ) % (
            string(self._opening.response_id),
            string(self._opening.model),
            b",".join(self._blocks),
            reason,
            sequence,
            self._usage(usage),
        )

    def _usage(self, usage: Usage) -> bytes:
        return (
            b'{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,'
            b'"output_tokens":%d,"output_tokens_details":{"thinking_tokens":%d}}'
        ) % (
            usage.prompt_tokens - usage.cached_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            self.reasoning_tokens,
        )

    def _event(self, name: bytes, members: bytes) -> None:
        self.pieces.append(b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, members))


def _input(arguments: str) -> bytes:
    """A call's arguments as the JSON object that they are, or one that holds them as text."""
    if not arguments:
        return b"{}"
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode({INVALID_JSON: arguments})
    return arguments.encode()

"""Encodes a plain text as OpenAI's Completions API: chunks, or one completion object.

Of several choices each is a stream of its own, whose reader adds what they share: `completion`,
`last_chunks`.
"""

from collections.abc import Sequence

import msgspec

from ipc.messages import CompletionFormat, Open, TokenLogprobs
from postproc_workers.encoders import Failure, Status, Usage
from postproc_workers.encoders.json_pieces import error_body, string
from postproc_workers.headers import Header
from postproc_workers.logprobs import token_name
from postproc_workers.tokens import GlyphDecoder, escape, token_table

_DONE = b"data: [DONE]\n\n"
_MEMBERS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

Row = tuple[str, float, dict[str, float], int]
"""What is told of a token's log-probability: its `_MEMBERS`."""


class CompletionEncoder:
    """The encoder of one stream of `/v1/completions`."""

    def __init__(self, opening: Open, format: CompletionFormat) -> None:  # noqa: A002
        self.next_sequence = 0
        self.reasoning_tokens = 0
        self.pieces: list[bytes] = []
        self._opening = opening
        self._streaming = opening.streaming
        self._echo = format.echo
        self._part = format.part
        self._include_usage = format.include_usage
        usage = b',"usage":null' if self._include_usage else b""
        self._chunk_head = b'data: %b"choices":[{"index":%d,"text":"' % (
            _head(opening),
            format.part or 0,
        )
        self._chunk_end = b"}]%b}\n\n" % usage
        self._chunk_tail = b'","logprobs":null,"finish_reason":null' + self._chunk_end
        self._text: list[bytes] = []
        self._pending: list[Row] = []
        self._scored: list[Row] = []
        self._offset = 0
        self._glyphs = GlyphDecoder()

    def open(self) -> None:
        if self._echo:
            self.text(escape(self._echo))

    def begin(self, header: Header) -> None:
        pass  # the text is one message, and nothing tells of its beginning

    def logprob(self, token: int, entry: TokenLogprobs) -> None:
        self._pending.append(_row(token, entry, self._offset))
        self._offset += len(self._glyphs.feed(token_table().raw(token)))

    def text(self, escaped: bytes) -> None:
        if not self._streaming:
            self._text.append(escaped)
            self._scored += self._pending
        elif self._pending:
            self.pieces.append(
                b'%b%b","logprobs":%b,"finish_reason":null%b'
                % (self._chunk_head, escaped, _logprobs(self._pending), self._chunk_end)
            )
        else:
            self.pieces.append(b"%b%b%b" % (self._chunk_head, escaped, self._chunk_tail))
        self._pending = []

    def end(self, tokens: int, complete: bool) -> None:
        pass  # `finish` tells how it ended

    def finish(
        self, status: Status, usage: Usage, now: int, stop_sequence: str | None = None
    ) -> None:
        whole = self._part is None
        if not self._streaming:
            choice = self._choice(status)
            self.pieces.append(completion(self._opening, [choice], usage) if whole else choice)
            return
        self.pieces.append(
            b'%b","logprobs":null,"finish_reason":"%b"%b'
            % (self._chunk_head, status.encode(), self._chunk_end)
        )
        if whole:
            self.pieces.append(last_chunks(self._opening, usage if self._include_usage else None))

    def fail(self, failure: Failure, now: int) -> None:
        body = error_body(failure)
        self.pieces.append(b"data: %b\n\n%b" % (body, _DONE) if self._streaming else body)

    def _choice(self, status: Status) -> bytes:
        return b'{"index":%d,"text":"%b","logprobs":%b,"finish_reason":"%b"}' % (
            self._part or 0,
            b"".join(self._text),
            _logprobs(self._scored) if self._scored else b"null",
            status.encode(),
        )


def completion(opening: Open, choices: Sequence[bytes], usage: Usage) -> bytes:
    """The completion object of an unstreamed request with these choices."""
    return b'%b"choices":[%b],"usage":%b}' % (_head(opening), b",".join(choices), _usage(usage))


def last_chunks(opening: Open, usage: Usage | None) -> bytes:
    """What ends a stream after its choices: the usage, if it was asked for, and the mark."""
    if usage is None:
        return _DONE
    return b'data: %b"choices":[],"usage":%b}\n\n%b' % (_head(opening), _usage(usage), _DONE)


def _head(opening: Open) -> bytes:
    return b'{"id":%b,"object":"text_completion","created":%d,"model":%b,' % (
        string(opening.response_id),
        opening.created,
        string(opening.model),
    )


def _shown(token: int) -> str:
    """A token's text; of one that is no whole UTF-8 its bytes, as OpenAI writes them."""
    raw = token_name(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _row(token: int, entry: TokenLogprobs, offset: int) -> Row:
    """For a token whose text begins at `offset`, in characters of the completion. The token itself
    is always among the most likely ones that are told."""
    name = _shown(token)
    top = {_shown(other): logprob for other, logprob in entry.top}
    top.setdefault(name, entry.logprob)
    return name, entry.logprob, top, offset


def _logprobs(rows: Sequence[Row]) -> bytes:
    columns = zip(*rows, strict=True)
    return msgspec.json.encode(dict(zip(_MEMBERS, columns, strict=True)))


def _usage(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}'
    ) % (
        usage.prompt_tokens,
        usage.output_tokens,
        usage.prompt_tokens + usage.output_tokens,
        usage.cached_tokens,
    )

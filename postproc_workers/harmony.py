"""The Harmony stream: token ids in, messages out, one token at a time, in whatever steps they come.

A state machine over token ids. Ordinary tokens between `<|message|>` and the next special token
are a message's body and go to the sink at once; all others are collected as a header, which is
read when its `<|message|>` comes. Nothing that a model can write raises: what is malformed is
mended as docs/harmony.md tells, and counted in `recovered`.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from operator import length_hint
from typing import Protocol

from postproc_workers.headers import Header, Kind, read_header, text_in_header
from postproc_workers.tokens import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    START,
    GlyphDecoder,
    TokenTable,
    escape,
)

MAX_HEADER_TOKENS = 96
"""More tokens than that without a `<|message|>` are no header but an answer without one."""


class EndOfTurn(Exception):  # noqa: N818  a sink's way to say that the answer is complete
    """Raised by a sink's `text` or `end`: what it has is all that the client asked for."""


class MessageSink(Protocol):
    """Takes the messages of one stream: `begin`, `text` any number of times, `end`.

    `escaped` is text as the inside of a JSON string, never empty. `tokens` is how many tokens the
    body had; `complete` is False where the output was cut off inside the message.
    """

    def begin(self, header: Header) -> None: ...
    def text(self, escaped: bytes) -> None: ...
    def end(self, tokens: int, complete: bool) -> None: ...


class HarmonyStream:
    """Reads one turn, from right behind the prompt's `<|start|>assistant`.

    `consumed` counts the tokens that belong to the turn, up to and with the one that ended it
    early, if any did; `ended_early` says so.
    """

    def __init__(self, sink: MessageSink, table: TokenTable, tools: Collection[str] = ()) -> None:
        self.consumed = 0
        self.ended_early = False
        self.recovered: Counter[str] = Counter()
        self._sink = sink
        self._table = table
        self._tools = tools
        self._in_body = False
        self._hidden = False
        self._over = False
        self._plain = False  # in a visible body, with no unfinished glyph
        self._header: list[int] = []
        self._body_start = 0
        self._glyphs: GlyphDecoder | None = None

    def feed(self, tokens: Sequence[int]) -> bool:
        """Read the next tokens, any number of them; whether a sink has ended the turn early."""
        if self.ended_early:
            return True
        escaped = self._table.escaped
        text = self._sink.text
        iterator = iter(tokens)
        start = self.consumed
        try:
            for token in iterator:
                if self._plain and token < FIRST_SPECIAL and (piece := escaped[token]) is not None:
                    text(piece)
                else:
                    self.consumed = start + len(tokens) - length_hint(iterator)
                    self._special(token)
        except EndOfTurn:
            self.consumed = start + len(tokens) - length_hint(iterator)
            self.ended_early = True
            return True
        self.consumed = start + len(tokens)
        return False

    def finish(self, cut: bool) -> None:
        """The output is over; `cut` says that a limit ended it rather than the model."""
        if self.ended_early:
            return
        try:
            if self._in_body:
                self._end_message(self.consumed, complete=not cut)
            elif self._header and not self._over:
                self._answer_in_header(cut)
                if self._in_body:
                    self._end_message(self.consumed, complete=not cut)
        except EndOfTurn:
            self.ended_early = True

    def _special(self, token: int) -> None:
        """A token that is not plainly body text; `consumed` counts it already."""
        if self._over:
            return
        if self._in_body and token < FIRST_SPECIAL:
            if not self._hidden:
                self._split_glyph(token)
            return
        if token in (END, CALL, RETURN, ENDOFTEXT):
            self._over = token in (RETURN, ENDOFTEXT)
            self._end_by_token()
        elif token == START:
            self._start_header([])
        elif token == CHANNEL:
            self._start_header([CHANNEL]) if self._in_body else self._header.append(CHANNEL)
        elif token == MESSAGE:
            self._begin_by_token()
        elif token == CONSTRAIN and not self._in_body:
            self._header.append(token)
        elif token < FIRST_SPECIAL:
            self._header.append(token)
            if len(self._header) > MAX_HEADER_TOKENS:
                self._answer_in_header(cut=False)
        else:
            self.recovered["stray_token"] += 1

    def _end_by_token(self) -> None:
        if self._in_body:
            self._end_message(self.consumed - 1, complete=True)
        elif self._header:
            self._answer_in_header(cut=False)
            if self._in_body:
                self._end_message(self.consumed - 1, complete=True)
        self._header = []

    def _start_header(self, header: list[int]) -> None:
        if self._in_body:
            self.recovered["message_not_ended"] += 1
            self._end_message(self.consumed - 1, complete=True)
        elif self._header:
            self.recovered["header_not_ended"] += 1
        self._header = header

    def _begin_by_token(self) -> None:
        if self._in_body:
            self.recovered["stray_token"] += 1
            return
        header = read_header(self._header, self._table, self._tools, self.recovered)
        self._begin_message(header)

    def _begin_message(self, header: Header) -> None:
        self._header = []
        self._in_body = True
        self._body_start = self.consumed
        self._hidden = header.kind is Kind.HIDDEN
        self._plain = not self._hidden
        if not self._hidden:
            self._sink.begin(header)

    def _end_message(self, end: int, complete: bool) -> None:
        if self._glyphs is not None:
            rest, self._glyphs = self._glyphs.finish(), None
            if rest:
                self._sink.text(escape(rest))
        self._in_body = self._plain = False
        if not self._hidden:
            self._sink.end(end - self._body_start, complete)

    def _answer_in_header(self, cut: bool) -> None:
        header, text = text_in_header(self._header, self._table, cut)
        body_tokens = len(self._header)
        if text.strip():
            self.recovered["text_in_header"] += 1
            self._begin_message(header)
            self._body_start -= body_tokens
            self._sink.text(escape(text))

    def _split_glyph(self, token: int) -> None:
        """A token whose bytes are not whole UTF-8, or one after such a token."""
        if self._glyphs is None:
            self._glyphs = GlyphDecoder()
        text = self._glyphs.feed(self._table.raw(token))
        self._plain = not self._glyphs.waiting
        if self._plain:
            self._glyphs = None
        if text:
            self._sink.text(escape(text))

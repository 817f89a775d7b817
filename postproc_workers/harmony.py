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

from ipc.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    START,
)
from postproc_workers.headers import Header, HeaderReader, Kind
from postproc_workers.tokens import GlyphDecoder, TokenTable, escape

MAX_HEADER_TOKENS = 96
"""More tokens than that without a `<|message|>` are no header but a message without one."""


class EndOfTurn(Exception):  # noqa: N818  a sink's way to say that the answer is complete
    """Raised by a sink's `text` or `end`: what it has is all that the client asked for.

    A message in which `text` raised it is ended as every other.
    """


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
    early, if any did; `ended_early` says so. `recovered` counts what was mended, by kind.
    """

    def __init__(self, sink: MessageSink, table: TokenTable, tools: Collection[str] = ()) -> None:
        self.consumed = 0
        self.ended_early = False
        self.recovered: Counter[str] = Counter()
        self._sink = sink
        self._table = table
        self._headers = HeaderReader(table, tools, self.recovered)
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
                if (
                    self._plain
                    and 0 <= token < FIRST_SPECIAL
                    and (piece := escaped[token]) is not None
                ):
                    text(piece)
                else:
                    self.consumed = start + len(tokens) - length_hint(iterator)
                    self._special(token)
        except EndOfTurn:
            self.consumed = start + len(tokens) - length_hint(iterator)
            self._end_early()
            return True
        self.consumed = start + len(tokens)
        return False

    @property
    def in_text(self) -> bool:
        """Whether an ordinary token would be part of a message's text."""
        return self._in_body and not self._hidden

    def finish(self, cut: bool) -> None:
        """The output is over; `cut` says that a limit ended it rather than the model.

        Of a glyph that was cut nothing is shown.
        """
        if self.ended_early:
            return
        try:
            while cut and self._table.splits_glyph(self._header):
                self._header.pop()
            if self._header:
                self._message_within_header(self.consumed, cut=cut)
            if self._in_body:
                self._end_message(self.consumed, complete=not cut)
        except EndOfTurn:
            self._end_early()

    def _end_early(self) -> None:
        self.ended_early = True
        if self._in_body:
            self._glyphs = None
            self._end_message(self.consumed, complete=True)

    def _special(self, token: int) -> None:
        """A token that is not plainly body text; `consumed` counts it already."""
        if self._over:
            return
        if 0 <= token < FIRST_SPECIAL:
            if not self._in_body:
                self._add_to_header(token)
            elif not self._hidden:
                self._split_glyph(token)
        elif token in (END, CALL, RETURN, ENDOFTEXT):
            self._end_by_token(token)
            self._over = token in (RETURN, ENDOFTEXT)
        elif token == START:
            self._break_off(START)
            self._header = [START]
        elif token == CHANNEL and self._in_body:
            self._break_off(CHANNEL)
            self._header = [CHANNEL]
        elif token == MESSAGE and not self._in_body:
            self._begin_by_token()
        elif token in (CHANNEL, CONSTRAIN) and not self._in_body:
            self._add_to_header(token)
        else:
            self.recovered["stray_token"] += 1

    def _add_to_header(self, token: int) -> None:
        self._header.append(token)
        if len(self._header) > MAX_HEADER_TOKENS and not self._table.splits_glyph(self._header):
            self._message_within_header(self.consumed, long=True)

    def _begin_by_token(self) -> None:
        self._answer_before_header(self.consumed - 1)
        self._begin_message(self._headers.read(self._header))
        self._header = []

    def _answer_before_header(self, end: int) -> None:
        said = self._headers.text_before(self._header)
        if said:
            self._begin_within_header(Header(Kind.ANSWER), said, end)
            self._end_message(end, complete=True)

    def _break_off(self, token: int) -> None:
        """A header begins where a message should have ended."""
        if self._in_body:
            self.recovered["message_not_ended"] += 1
        if self._in_body or self._header:
            self._end_by_token(token)

    def _end_by_token(self, token: int) -> None:
        end = self.consumed - 1
        if self._header:
            self._message_within_header(end, call=token == CALL)
        elif not self._in_body:
            self.recovered["stray_token"] += 1
        if self._in_body:
            self._end_message(end, complete=True)

    def _message_within_header(
        self, end: int, *, cut: bool = False, call: bool = False, long: bool = False
    ) -> None:
        """Begin the message that the header holds, if any, though it has no `<|message|>`.

        `end` is the place behind its last token. A call needs no arguments if `<|call|>` ended
        it (`call`), and what is too `long` for a header of somebody else stays hidden.
        """
        if CHANNEL in self._header:
            self._answer_before_header(end)
        header, text = self._headers.text_within(self._header, cut)
        if text.strip() or (header.kind is Kind.CALL and call):
            self._begin_within_header(header, text, end)
        elif header.kind is Kind.HIDDEN and long:
            self._begin_message(header)
        else:
            self.recovered["header_not_ended"] += 1
        self._header = []

    def _begin_within_header(self, header: Header, text: str, end: int) -> None:
        self.recovered["text_in_header"] += 1
        self._begin_message(header)
        self._body_start = end - len(self._header)
        if text:
            self._sink.text(escape(text))

    def _begin_message(self, header: Header) -> None:
        self._in_body = True
        self._body_start = self.consumed
        self._hidden = header.kind is Kind.HIDDEN
        self._plain = not self._hidden
        if not self._hidden:
            self._sink.begin(header)

    def _end_message(self, end: int, complete: bool) -> None:
        if self._glyphs is not None:
            rest, self._glyphs = self._glyphs.finish(), None
            if rest and complete:
                self._sink.text(escape(rest))
        self._in_body = self._plain = False
        if not self._hidden:
            self._sink.end(end - self._body_start, complete)

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

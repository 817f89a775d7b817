"""Plain text: token ids in, one message out, in whatever steps they come."""

from collections import Counter
from collections.abc import Sequence

from ipc.vocabulary import FIRST_SPECIAL
from postproc_workers.harmony import EndOfTurn, MessageSink
from postproc_workers.headers import Header, Kind
from postproc_workers.tokens import GlyphDecoder, TokenTable, escape


class TextStream:
    """Reads all that the model says as the text of a single answer; special tokens say nothing.

    It has the interface of a HarmonyStream. There is no markup to be mended: `recovered` stays
    empty.
    """

    def __init__(self, sink: MessageSink, table: TokenTable) -> None:
        self.consumed = 0
        self.ended_early = False
        self.recovered: Counter[str] = Counter()
        self._sink = sink
        self._table = table
        self._begun = False
        self._glyphs = GlyphDecoder()

    @property
    def in_text(self) -> bool:
        """Whether an ordinary token would be part of the text: always."""
        return True

    def feed(self, tokens: Sequence[int]) -> bool:
        """Read the next tokens, any number of them; whether the sink has ended the turn early."""
        if self.ended_early:
            return True
        self._begin()
        try:
            for token in tokens:
                self.consumed += 1
                if 0 <= token < FIRST_SPECIAL:
                    self._ordinary(token)
        except EndOfTurn:
            self._end_early()
        return self.ended_early

    def finish(self, cut: bool) -> None:
        """The output is over; of a glyph that a limit has `cut` nothing is shown."""
        if self.ended_early:
            return
        self._begin()
        try:
            if not cut and (rest := self._glyphs.finish()):
                self._sink.text(escape(rest))
            self._sink.end(self.consumed, complete=not cut)
        except EndOfTurn:
            self._end_early()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._sink.begin(Header(Kind.ANSWER))

    def _ordinary(self, token: int) -> None:
        escaped = self._table.escaped[token]
        if escaped is None or self._glyphs.waiting:
            escaped = escape(self._glyphs.feed(self._table.raw(token)))
        if escaped:
            self._sink.text(escaped)

    def _end_early(self) -> None:
        self.ended_early = True
        self._sink.end(self.consumed, complete=True)

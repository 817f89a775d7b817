"""What a token id says: its text as JSON, from a table made once a process, and the ids of
Harmony's special tokens.

Body text goes from the table into the events, already escaped, and is never encoded again.
"""

import codecs
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec

from ipc.vocabulary import FIRST_SPECIAL, token_bytes

MAX_GLYPH_BYTES = 4


def escape(text: str) -> bytes:
    """`text` as the inside of a JSON string."""
    return msgspec.json.encode(text)[1:-1]


def unescape(escaped: bytes) -> str:
    """The inverse of `escape`."""
    return msgspec.json.decode(b'"%b"' % escaped, type=str)


class TokenTable:
    """`escaped[id]` is an ordinary token's text as the inside of a JSON string, or None where its
    bytes are not whole UTF-8; those are in `partial`."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.escaped: list[bytes | None] = [None] * len(tokens)
        self.partial: dict[int, bytes] = {}
        for token, raw in enumerate(tokens):
            try:
                self.escaped[token] = escape(raw.decode())
            except UnicodeDecodeError:
                self.partial[token] = raw

    def raw(self, token: int) -> bytes:
        """The bytes of an ordinary token."""
        escaped = self.escaped[token]
        return self.partial[token] if escaped is None else unescape(escaped).encode()

    def text(self, tokens: Iterable[int]) -> str:
        """The text of ordinary tokens; special and unknown ones have none."""
        raw = b"".join(self.raw(token) for token in tokens if 0 <= token < FIRST_SPECIAL)
        return raw.decode(errors="replace")

    def splits_glyph(self, tokens: Sequence[int]) -> bool:
        """Whether the last of ordinary `tokens` leaves a glyph unfinished."""
        if not tokens or tokens[-1] not in self.partial:
            return False
        decoder = GlyphDecoder()
        for token in tokens[-MAX_GLYPH_BYTES:]:
            decoder.feed(self.raw(token) if 0 <= token < FIRST_SPECIAL else b"")
        return decoder.waiting


@cache
def token_table() -> TokenTable:
    """The table of the bundled vocabulary, made at the first call: about 0.3 s and 30 MB."""
    return TokenTable(token_bytes())


class GlyphDecoder:
    """Text out of tokens that split glyphs: bytes wait until a glyph is whole or cannot become
    so, in which case U+FFFD stands for them (one for each maximal prefix, as WHATWG decodes)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, raw: bytes) -> str:
        return self._decoder.decode(raw)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    @property
    def waiting(self) -> bool:
        """Whether bytes of an unfinished glyph are held."""
        return bool(self._decoder.getstate()[0])

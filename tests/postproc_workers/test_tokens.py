"""What token ids say: the table, its escaped text, and glyphs that are split over tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc import vocabulary
from postproc_workers.testkit.strategies import encode, harmony
from postproc_workers.tokens import GlyphDecoder, TokenTable, escape, token_table, unescape


def test_special_tokens_have_the_ids_of_openai_harmony() -> None:
    names = ["RETURN", "CONSTRAIN", "CHANNEL", "START", "END", "MESSAGE", "CALL", "ENDOFTEXT"]
    for name in names:
        assert encode(f"<|{name.lower()}|>") == [getattr(vocabulary, name)]
    assert encode("<|startoftext|>") == [vocabulary.FIRST_SPECIAL]


def test_the_table_says_what_each_token_is() -> None:
    table, raw = token_table(), vocabulary.token_bytes()
    assert len(table.escaped) == len(raw) == vocabulary.FIRST_SPECIAL
    for token in range(0, len(raw), 97):
        assert table.raw(token) == raw[token]
    for token, partial in table.partial.items():
        assert table.escaped[token] is None
        assert partial == raw[token]
        with pytest.raises(UnicodeDecodeError):
            partial.decode()


def test_the_table_is_made_once() -> None:
    assert token_table() is token_table()


def test_no_ordinary_token_is_empty() -> None:
    assert b"" not in token_table().escaped


def test_text_leaves_out_special_and_invalid_ids() -> None:
    found = [*encode("Hi"), vocabulary.START, -1, 201_087, 10**9, *encode(" there")]
    assert token_table().text(found) == "Hi there"


@given(st.text())
def test_escaped_text_is_json_and_comes_back(text: str) -> None:
    assert json.loads(b'"%b"' % escape(text)) == text
    assert unescape(escape(text)) == text


@given(st.binary(max_size=24), st.data())
def test_glyphs_decode_as_if_they_came_at_once(raw: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(raw)))
    decoder = GlyphDecoder()
    text = decoder.feed(raw[:place]) + decoder.feed(raw[place:])
    assert text + decoder.finish() == raw.decode(errors="replace")
    assert not decoder.waiting


@pytest.mark.parametrize(
    ("raw", "text", "waiting"),
    [
        (b"\xf0\x9f\xab", "", True),
        (b"\xf0\x9f\xab\xb6", "\U0001faf6", False),
        (b"\xf0\x9f", "", True),
        (b"\xf0\x9fA", "\ufffdA", False),
        (b"\xb6", "\ufffd", False),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", False),
        (b"A\xc3", "A", True),
    ],
)
def test_bytes_wait_until_a_glyph_is_whole_or_cannot_be(
    raw: bytes, text: str, waiting: bool
) -> None:
    decoder = GlyphDecoder()
    assert decoder.feed(raw) == text
    assert decoder.waiting == waiting


def test_a_table_knows_where_a_glyph_is_split() -> None:
    table = TokenTable([b"A", b"\xf0\x9f", b"\xab", b"\xb6", b"\xb6B"])
    splits = [table.splits_glyph(found) for found in ([0], [0, 1], [1, 2], [1, 2, 3], [1, 2, 4])]
    assert splits == [False, True, True, False, False]
    assert not table.splits_glyph([])
    assert not table.splits_glyph([1, vocabulary.CHANNEL])


def test_the_vocabulary_is_the_one_of_openai_harmony() -> None:
    text = 'def f(x): return {"naïve": x} \U0001faf6 \u4e2d\u6587 \u05d0\u05d1'
    found = harmony().encode(text)
    assert token_table().text(found) == harmony().decode(found) == text

"""Stop strings: found across tokens, in visible text only, and nothing of them is sent."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postproc_workers.harmony import HarmonyStream
from postproc_workers.headers import Kind
from postproc_workers.testkit.strategies import encode
from postproc_workers.tokens import token_table
from postproc_workers.turn_limits import StopScanner, TurnLimits
from tests.postproc_workers.turns import CUTS, Message, RecordingSink, Steps, Turn

FINAL = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"


def read_limited(
    steps: Steps, stops: tuple[str, ...] = (), parallel: bool = True, cut: bool = False
) -> Turn:
    sink = RecordingSink()
    stream = HarmonyStream(TurnLimits(sink, stops, parallel), token_table(), ("search",))
    for step in steps:
        stream.feed(step)
    stream.finish(cut)
    assert sink.at_rest
    return Turn(
        sink.messages, stream.recovered, stream.consumed, stream.ended_early, sink.body_tokens
    )


def answer(text: str, complete: bool = True) -> Message:
    return Message(Kind.ANSWER, text, complete=complete)


STOPPED = [
    ("one token", f"{FINAL}Hi there, END of it", ("END",), [answer("Hi there, ")]),
    ("at once", f"{FINAL}END", ("END",), [answer("")]),
    ("several tokens", f"{FINAL}Say *_*~*_* now", ("*_*~*_*",), [answer("Say ")]),
    ("across words", f"{FINAL}the quick brown fox", ("k bro",), [answer("the quic")]),
    ("an overlapping beginning", f"{FINAL}aab aaaab c", ("aaab",), [answer("aab a")]),
    ("its own beginning again", f"{FINAL}ab abaabac x", ("abac",), [answer("ab aba")]),
    ("the one that ends first", f"{FINAL}one two three", ("two t", "wo"), [answer("one t")]),
    ("the longer of two", f"{FINAL}one two three", ("wo", "two"), [answer("one ")]),
    ("unicode", f"{FINAL}a\U0001faf6\U0001f3fd b", ("\U0001faf6\U0001f3fd",), [answer("a")]),
    (
        "half of a cluster",
        f"{FINAL}a\U0001faf6\U0001f3fd b",
        ("\U0001f3fd",),
        [answer("a\U0001faf6")],
    ),
    ("quotes and newlines", f'{FINAL}{{"a": "b"}}\n\nc', ('"}\n\n',), [answer('{"a": "b')]),
    (
        "a preamble",
        "<|channel|>commentary<|message|>Let me END look",
        ("END",),
        [Message(Kind.PREAMBLE, "Let me ")],
    ),
    (
        "not in the reasoning",
        f"{ANALYSIS}The END is near<|end|><|start|>assistant{FINAL}It is the END.",
        ("END",),
        [Message(Kind.REASONING, "The END is near"), answer("It is the ")],
    ),
    (
        "not in arguments",
        '<|channel|>commentary to=functions.search<|message|>{"END":1}<|call|>'
        f"<|start|>assistant{FINAL}The END.",
        ("END",),
        [Message(Kind.CALL, '{"END":1}', "search"), answer("The ")],
    ),
    ("text without a header", "Hello END world<|return|>", ("END",), [answer("Hello ")]),
]

NOT_STOPPED = [
    ("a beginning, then the end", f"{FINAL}Well, EN<|return|>", ("END",), [answer("Well, EN")]),
    ("a beginning, then more", f"{FINAL}Well, ENTER<|return|>", ("END",), [answer("Well, ENTER")]),
    (
        "not across messages",
        f"<|channel|>commentary<|message|>EN<|end|><|start|>assistant{FINAL}D",
        ("END",),
        [Message(Kind.PREAMBLE, "EN"), answer("D")],
    ),
    ("not in markup", f"{FINAL}Hi<|return|>", ("final", "<|return|>"), [answer("Hi")]),
]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    ("markup", "stops", "messages"),
    [case[1:] for case in STOPPED],
    ids=[case[0] for case in STOPPED],
)
def test_the_turn_ends_before_a_stop_string(
    markup: str,
    stops: tuple[str, ...],
    messages: list[Message],
    cut: Callable[[list[int]], Steps],
) -> None:
    tokens = encode(markup)
    turn = read_limited(cut(tokens), stops)
    assert turn.messages == messages
    assert turn.ended_early
    assert turn == read_limited([tokens], stops)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    ("markup", "stops", "messages"),
    [case[1:] for case in NOT_STOPPED],
    ids=[case[0] for case in NOT_STOPPED],
)
def test_other_text_is_whole(
    markup: str,
    stops: tuple[str, ...],
    messages: list[Message],
    cut: Callable[[list[int]], Steps],
) -> None:
    turn = read_limited(cut(encode(markup)), stops)
    assert turn.messages == messages
    assert not turn.ended_early


def test_tokens_are_counted_up_to_the_one_that_completes_the_stop_string() -> None:
    turn = read_limited([encode(f"{FINAL}one two three four")], ("two thr",))
    assert turn.consumed == len(encode(f"{FINAL}one two three"))
    assert turn.body_tokens == [len(encode("one two three"))]


def test_held_text_is_sent_when_a_limit_cuts_the_message() -> None:
    turn = read_limited([encode(f"{FINAL}Well, EN")], ("END",), cut=True)
    assert turn.messages == [answer("Well, EN", complete=False)]


def test_a_stop_string_in_the_text_that_the_end_brings_stops_too() -> None:
    turn = read_limited([encode("Hello END")], ("END",), cut=True)
    assert turn.messages == [answer("Hello ")]
    assert turn.ended_early


def test_a_broken_glyph_can_be_a_stop_string() -> None:
    turn = read_limited([encode(f"{FINAL}Hi", 4103, "<|return|>")], ("\ufffd",))
    assert turn.messages == [answer("Hi")]


def test_nothing_of_a_glyph_is_shown_that_begins_behind_a_stop_string() -> None:
    space_and_half_a_glyph = encode(" \U0001faf6")[:1]
    turn = read_limited([encode(f"{FINAL}Hi", *space_and_half_a_glyph)], (" ",))
    assert turn.messages == [answer("Hi")]


def test_of_stop_strings_in_one_piece_the_first_that_is_complete_counts() -> None:
    assert StopScanner(["aba", "b"]).feed("aba") == ("a", "b")


def test_nothing_is_read_after_the_end() -> None:
    sink = RecordingSink()
    stream = HarmonyStream(TurnLimits(sink, ("END",), True), token_table())
    assert stream.feed(encode(f"{FINAL}Hi END"))
    consumed = stream.consumed
    assert stream.feed(encode("more"))
    assert stream.consumed == consumed
    assert sink.messages == [answer("Hi ")]


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Reads `text` character by character."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


SHORT = st.text("ab\u00e9", max_size=12)


@given(SHORT, st.lists(st.text("ab\u00e9", min_size=1, max_size=4), min_size=1), st.data())
def test_pieces_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    scanner = StopScanner(stops)
    sent = ""
    for start, end in pairwise([0, *places, len(text)]):
        piece, stopped = scanner.feed(text[start:end])
        sent += piece
        assert text.startswith(sent)
        if stopped:
            break
    else:
        stopped = None
        sent += scanner.finish()
    assert (sent, stopped) == naive(text, stops)

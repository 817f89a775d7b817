"""Malformed Harmony markup is mended: no answer is lost, no markup shown, nothing raises."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from postproc_workers.harmony import MAX_HEADER_TOKENS, HarmonyStream
from postproc_workers.headers import Kind
from postproc_workers.testkit.strategies import encode
from postproc_workers.tokens import TokenTable, token_table
from tests.postproc_workers.turns import CUTS, TOOLS, Message, RecordingSink, Steps, read

LONG_TEXT = "Here is a long answer that never had a header. " * 20
HALF_GLYPH = (4103, 104)  # the first three of the four bytes of U+1FAF6


def answer(text: str, complete: bool = True) -> Message:
    return Message(Kind.ANSWER, text, complete=complete)


def reasoning(text: str, complete: bool = True) -> Message:
    return Message(Kind.REASONING, text, complete=complete)


def preamble(text: str) -> Message:
    return Message(Kind.PREAMBLE, text)


def call(name: str, arguments: str, complete: bool = True) -> Message:
    return Message(Kind.CALL, arguments, name, complete)


@dataclass
class Case:
    """What a model wrote, what its client sees, and what is counted as mended."""

    name: str
    output: tuple[str | int, ...]
    messages: list[Message]
    recovered: dict[str, int] = field(default_factory=dict)
    cut: bool = False


WELL_FORMED = [
    Case(
        "an answer",
        ("<|channel|>final<|message|>Done.<|return|>",),
        [answer("Done.")],
    ),
    Case(
        "recipient in the role part",
        (' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"c":1}<|call|>',),
        [call("f", '{"c":1}')],
    ),
    Case(
        "a preamble before a call",
        (
            "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>"
            'commentary to=functions.search <|constrain|>json<|message|>{"q":1}<|call|>',
        ),
        [preamble("Let me look."), call("search", '{"q":1}')],
    ),
    Case(
        "a call from the analysis channel",
        ('<|channel|>analysis to=functions.search code<|message|>{"q":1}<|call|>',),
        [call("search", '{"q":1}')],
    ),
    Case(
        "a call that ends with <|return|>",
        ("<|channel|>commentary to=functions.search json<|message|>{}<|return|>",),
        [call("search", "{}")],
    ),
    Case(
        "a call that ends with <|end|>",
        ("<|channel|>commentary to=functions.search json<|message|>{}<|end|>",),
        [call("search", "{}")],
    ),
    Case(
        "a call with an empty body",
        ("<|channel|>commentary to=functions.search<|message|><|call|>",),
        [call("search", "")],
    ),
    Case(
        "several calls in one turn",
        (
            "<|channel|>analysis<|message|>A<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.search<|message|>1<|call|>"
            "<|start|>assistant<|channel|>analysis<|message|>B<|end|>"
            "<|start|>assistant to=functions.f<|channel|>commentary<|message|>2<|call|>"
            "<|start|>assistant<|channel|>final<|message|>C<|return|>",
        ),
        [reasoning("A"), call("search", "1"), reasoning("B"), call("f", "2"), answer("C")],
    ),
    Case(
        "an answer with a content type",
        ('<|channel|>final <|constrain|>json<|message|>{"a":1}<|return|>',),
        [answer('{"a":1}')],
    ),
    Case(
        "tokens after <|return|>",
        ("<|channel|>final<|message|>Hi<|return|>and<|start|>more<|message|><|return|>", -1),
        [answer("Hi")],
    ),
    Case(
        "tokens after <|endoftext|>",
        ("<|channel|>final<|message|>Hi<|endoftext|>Other text",),
        [answer("Hi")],
    ),
    Case("nothing at all", (), []),
    Case(
        "cut inside a message",
        ("<|channel|>analysis<|message|>I think",),
        [reasoning("I think", complete=False)],
        cut=True,
    ),
    Case(
        "cut inside a call",
        ('<|channel|>commentary to=functions.f<|message|>{"a',),
        [call("f", '{"a', complete=False)],
        cut=True,
    ),
    Case(
        "cut inside a glyph",
        ("<|channel|>final<|message|>Yes", *HALF_GLYPH),
        [answer("Yes", complete=False)],
        cut=True,
    ),
    Case(
        "ended inside a glyph",
        ("<|channel|>final<|message|>Yes", *HALF_GLYPH, "<|return|>"),
        [answer("Yes\ufffd")],
    ),
    Case(
        "cut behind a header",
        ("<|channel|>final<|message|>",),
        [answer("", complete=False)],
        cut=True,
    ),
    Case(
        "cut behind a message",
        ("<|channel|>analysis<|message|>A<|end|>",),
        [reasoning("A")],
        cut=True,
    ),
]

MALFORMED = [
    Case(
        "<|end|> and <|return|>",
        ("<|channel|>final<|message|>Done.<|end|><|return|>",),
        [answer("Done.")],
        {"stray_token": 1},
    ),
    Case(
        "<|end|> twice",
        ("<|channel|>final<|message|>Done.<|end|><|end|>",),
        [answer("Done.")],
        {"stray_token": 1},
    ),
    Case(
        "words after the recipient",
        ("<|channel|>commentary to=functions.search json please<|message|>{}<|call|>",),
        [call("search", "{}")],
    ),
    Case(
        "<|start|> as the first output",
        ("<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",),
        [call("f", "{}")],
    ),
    Case(
        "the role twice",
        (
            "<|channel|>analysis<|message|>A<|end|><|start|>assistantassistant<|channel|>final"
            "<|message|>Hi",
        ),
        [reasoning("A"), answer("Hi")],
        {"role": 1},
    ),
    Case(
        "an empty channel",
        ("<|channel|><|message|>Hi",),
        [answer("Hi")],
        {"channel_missing": 1},
    ),
    Case(
        "a call without functions.",
        ("<|channel|>commentary to=get_weather<|message|>{}<|call|>",),
        [call("get_weather", "{}")],
        {"recipient": 1},
    ),
    Case("only <|message|>", ("<|message|>Hi",), [answer("Hi")], {"channel_missing": 1}),
    Case("no markup", ("Hello world",), [answer("Hello world")], {"text_in_header": 1}),
    Case(
        "no markup, ended",
        ("Hello world<|return|>",),
        [answer("Hello world")],
        {"text_in_header": 1},
    ),
    Case(
        "no markup, cut",
        ("Hello world",),
        [answer("Hello world", complete=False)],
        {"text_in_header": 1},
        cut=True,
    ),
    Case(
        "no markup, cut inside a glyph",
        ("Hello world", *HALF_GLYPH),
        [answer("Hello world", complete=False)],
        {"text_in_header": 1},
        cut=True,
    ),
    Case("no markup, a short word", ("a<|return|>",), [answer("a")], {"text_in_header": 1}),
    Case(
        "no markup, longer than any header",
        (LONG_TEXT + "<|return|>",),
        [answer(LONG_TEXT)],
        {"text_in_header": 1},
    ),
    Case(
        "no markup, glyphs of several tokens",
        ("\U0001faf6\U0001f3fd" * 60 + "<|return|>",),
        [answer("\U0001faf6\U0001f3fd" * 60)],
        {"text_in_header": 1},
    ),
    Case(
        "cut inside a header",
        ("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>comm",),
        [reasoning("A")],
        {"header_not_ended": 1},
        cut=True,
    ),
    Case(
        "cut inside a recipient",
        ("<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.sea",),
        [reasoning("A")],
        {"header_not_ended": 1},
        cut=True,
    ),
    Case("cut inside the role", ("<|start|>assist",), [], {"header_not_ended": 1}, cut=True),
    Case(
        "no <|end|> before <|start|>",
        ("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B",),
        [reasoning("A"), answer("B")],
        {"message_not_ended": 1},
    ),
    Case(
        "no <|end|> before <|channel|>",
        ("<|channel|>analysis<|message|>A<|channel|>final<|message|>B<|return|>",),
        [reasoning("A"), answer("B")],
        {"message_not_ended": 1},
    ),
    Case(
        "no <|start|> after <|end|>",
        ("<|channel|>analysis<|message|>A<|end|>assistant<|channel|>final<|message|>B",),
        [reasoning("A"), answer("B")],
    ),
    Case(
        "<|message|> and <|constrain|> in a body",
        ("<|channel|>final<|message|>A<|message|>B<|constrain|>C<|return|>",),
        [answer("ABC")],
        {"stray_token": 2},
    ),
    Case(
        "special tokens without a meaning",
        ("<|channel|>final<|message|>A", 199_998, 200_001, 200_013, "B<|return|>"),
        [answer("AB")],
        {"stray_token": 3},
    ),
    Case(
        "ids that are no tokens, in a body",
        ("<|channel|>final<|message|>A", -1, -200_000, 201_087, 250_000, 2**62, "B<|return|>"),
        [answer("AB")],
        {"stray_token": 5},
    ),
    Case(
        "ids that are no tokens, in a header",
        (-1, "<|channel|>", 201_087, "final", -7, "<|message|>A", -3, "<|return|>"),
        [answer("A")],
        {"stray_token": 4},
    ),
    Case(
        "a made-up user turn",
        (
            "<|channel|>final<|message|>A<|end|><|start|>user<|message|>And now?<|end|>"
            "<|start|>assistant<|channel|>final<|message|>B<|return|>",
        ),
        [answer("A"), answer("B")],
        {"foreign_role": 1},
    ),
    Case(
        "a made-up tool result",
        (
            "<|channel|>commentary to=functions.search<|message|>{}<|call|>"
            "<|start|>functions.search to=assistant<|channel|>commentary<|message|>no\U0001faf6"
            "<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>",
        ),
        [call("search", "{}"), answer("B")],
        {"foreign_role": 1, "recipient": 1},
    ),
    Case(
        "a made-up user turn without <|message|>",
        ("<|channel|>final<|message|>A<|end|><|start|>user And now?<|end|>",),
        [answer("A")],
        {"foreign_role": 1, "header_not_ended": 1},
    ),
    Case(
        "a long made-up user turn without <|message|>",
        ("<|channel|>final<|message|>A<|end|><|start|>user" + LONG_TEXT + "<|end|>",),
        [answer("A")],
        {"foreign_role": 1},
    ),
    Case(
        "an answer that begins as a foreign role",
        ("user<|channel|>final<|message|>A<|return|>",),
        [answer("A")],
        {"role": 1},
    ),
    Case(
        "the channel twice",
        ("<|channel|>analysis<|channel|>final<|message|>A<|return|>",),
        [answer("A")],
        {"channel_repeated": 1},
    ),
    Case(
        "words after the channel",
        ("<|channel|>analysis code please<|message|>A<|end|>",),
        [reasoning("A")],
        {"channel_text": 1},
    ),
    Case(
        "the channel in the role part",
        ("<|start|>assistantanalysis<|message|>A<|end|>",),
        [reasoning("A")],
        {"role": 1},
    ),
    Case(
        "an unknown channel",
        ("<|channel|>thoughts<|message|>A<|end|>",),
        [answer("A")],
        {"channel_unknown": 1},
    ),
    Case(
        "the recipient after the content type",
        ("<|channel|>commentary <|constrain|>json to=functions.f<|message|>{}<|call|>",),
        [call("f", "{}")],
    ),
    Case(
        "a content type of two tokens",
        ("<|channel|>commentary to=functions.f<|constrain|>co", "de<|message|>{}<|call|>"),
        [call("f", "{}")],
    ),
    Case(
        "an empty recipient",
        ("<|channel|>commentary to=<|constrain|>json<|message|>A<|end|>",),
        [preamble("A")],
        {"recipient": 1},
    ),
    Case(
        "a recipient that is only a prefix",
        ("<|channel|>commentary to=functions.<|message|>A<|end|>",),
        [preamble("A")],
        {"recipient": 1},
    ),
    Case(
        "a content type where the recipient should be",
        ("<|channel|>final to= json<|message|>A<|end|>",),
        [answer("A")],
        {"recipient": 1},
    ),
    Case(
        "a recipient behind a space",
        ("<|channel|>commentary to= functions.f<|message|>{}<|call|>",),
        [call("f", "{}")],
    ),
    Case(
        "to=assistant",
        ("<|channel|>final to=assistant<|message|>A<|return|>",),
        [answer("A")],
        {"recipient": 1},
    ),
    Case(
        "a function that is called assistant",
        ("<|channel|>commentary to=functions.assistant<|message|>{}<|call|>",),
        [call("assistant", "{}")],
    ),
    Case(
        "speech before a header",
        ("Sure, I can.<|channel|>final<|message|>Hi<|return|>",),
        [answer("Sure, I can."), answer("Hi")],
        {"text_in_header": 1, "role": 1},
    ),
    Case(
        "speech before <|start|>",
        ("Hello world<|start|>assistant<|channel|>final<|message|>Hi<|return|>",),
        [answer("Hello world"), answer("Hi")],
        {"text_in_header": 1},
    ),
    Case(
        "speech before a header without <|message|>",
        ("Hello world<|channel|>final<|end|>",),
        [answer("Hello world")],
        {"text_in_header": 1, "header_not_ended": 1},
    ),
    Case(
        "an answer without <|message|>",
        ("<|channel|>final Hello world<|return|>",),
        [answer("Hello world")],
        {"text_in_header": 1},
    ),
    Case(
        "an answer without <|message|>, cut",
        ("<|channel|>finalThe answer is",),
        [answer("The answer is", complete=False)],
        {"text_in_header": 1},
        cut=True,
    ),
    Case(
        "JSON without <|message|>",
        ('<|channel|>final <|constrain|>json{"a":1}<|return|>',),
        [answer('{"a":1}')],
        {"text_in_header": 1},
    ),
    Case(
        "reasoning without <|message|>",
        (
            "<|channel|>analysis We need to think.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hi<|return|>",
        ),
        [reasoning("We need to think."), answer("Hi")],
        {"text_in_header": 1},
    ),
    Case(
        "a call without <|message|>",
        ('<|channel|>commentary to=functions.search <|constrain|>json{"q":1}<|call|>',),
        [call("search", '{"q":1}')],
        {"text_in_header": 1},
    ),
    Case(
        "a call without <|message|>, recipient in the role part",
        ('<|start|>assistant to=functions.search<|channel|>commentary code{"q":1}<|call|>',),
        [call("search", '{"q":1}')],
        {"text_in_header": 1},
    ),
    Case(
        "a call without <|message|> and without arguments",
        ("<|channel|>commentary to=functions.search json please<|call|>",),
        [call("search", "")],
        {"text_in_header": 1},
    ),
    Case(
        "a call begun twice",
        (
            "<|channel|>commentary to=functions.search"
            "<|start|>assistant<|channel|>commentary to=functions.search<|message|>{}<|call|>",
        ),
        [call("search", "{}")],
        {"header_not_ended": 1},
    ),
    Case(
        "a call without <|message|>, cut",
        ('<|channel|>commentary to=functions.search {"q":',),
        [call("search", '{"q":', complete=False)],
        {"text_in_header": 1},
        cut=True,
    ),
    Case(
        "a header of channels only",
        ("<|channel|>" * 3 * MAX_HEADER_TOKENS + "final<|message|>Hi<|return|>",),
        [answer("Hi")],
        {"header_not_ended": 2, "channel_repeated": 1},
    ),
    Case(
        "a header of spaces only",
        (" \n\t" * MAX_HEADER_TOKENS + " \n\t<|channel|>final<|message|>Hi<|return|>",),
        [answer("Hi")],
        {"header_not_ended": 1},
    ),
    Case("only markup", ("<|start|><|start|><|channel|><|end|>",), [], {"header_not_ended": 2}),
    Case("only <|return|>", ("<|return|>",), [], {"stray_token": 1}),
    Case("only the role", ("<|start|>assistant<|return|>",), [], {"header_not_ended": 1}),
    Case("only a channel's name", ("final<|return|>",), [], {"header_not_ended": 1}),
    Case(
        "words after a recipient in the role part",
        (" to=functions.f if I may<|channel|>commentary<|message|>{}<|call|>",),
        [call("f", "{}")],
        {"role": 1},
    ),
    Case(
        "words after a content type in the role part",
        ("<|constrain|>json if I may<|channel|>final<|message|>Hi",),
        [answer("Hi")],
        {"role": 1},
    ),
    Case(
        "several channels in the role part",
        ("<|start|>assistant analysis final<|message|>Hi",),
        [answer("Hi")],
        {"role": 1},
    ),
    Case("only the channel", ("<|channel|>final<|return|>",), [], {"header_not_ended": 1}),
]


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(WELL_FORMED + MALFORMED)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_what_the_client_sees(case: Case, cut: Callable[[list[int]], Steps]) -> None:
    tokens = encode(*case.output)
    turn = read(cut(tokens), cut=case.cut)
    assert turn.messages == case.messages
    assert dict(turn.recovered) == case.recovered
    assert turn.consumed == len(tokens)
    assert not turn.ended_early


@named([case for case in WELL_FORMED + MALFORMED if case.messages])
def test_only_the_last_message_can_be_incomplete(case: Case) -> None:
    turn = read([encode(*case.output)], cut=True)
    assert all(message.complete for message in turn.messages[:-1])


@named(WELL_FORMED + MALFORMED)
def test_any_beginning_of_a_turn_can_be_its_end(case: Case) -> None:
    tokens = encode(*case.output)[: 2 * MAX_HEADER_TOKENS]
    for length in range(len(tokens)):
        for cut in (False, True):
            turn = read([tokens[:length]], cut=cut)
            shown = "".join(message.text for message in turn.messages)
            assert "<|" not in shown
            assert "to=" not in shown


def test_body_tokens_are_counted_without_markup() -> None:
    turn = read([encode("<|channel|>analysis<|message|>one two three<|end|>Hello world<|end|>")])
    assert turn.body_tokens == [3, 2]


class CountingTable(TokenTable):
    """The real table, which counts the tokens whose text was asked for."""

    def __init__(self) -> None:
        self.escaped = token_table().escaped
        self.partial = token_table().partial
        self.asked = 0

    def text(self, tokens: Iterable[int]) -> str:
        found = list(tokens)
        self.asked += len(found)
        return super().text(found)


@pytest.mark.parametrize(
    "flood",
    [
        ("<|channel|>",),
        (" \n\t",),
        (" to=functions.f",),
        (" word",),
        ("<|start|>", "user"),
        ("<|channel|>", "analysis"),
        ("<|constrain|>",),
        (4103,),
        ("<|start|>",),
        ("<|message|>",),
    ],
    ids=str,
)
def test_no_flood_is_read_more_than_a_few_times(flood: tuple[str | int, ...]) -> None:
    table = CountingTable()
    stream = HarmonyStream(RecordingSink(), table, TOOLS)
    tokens = encode(*flood) * 3_000
    for token in tokens:
        stream.feed([token])
    stream.finish(cut=True)
    assert table.asked <= 6 * len(tokens)


@pytest.mark.parametrize(
    ("written", "name", "mended"),
    [
        ("agents.spawn", "agents.spawn", False),
        ("functions.agents.spawn", "agents.spawn", False),
        ("functions.spawn", "agents.spawn", True),
        ("functions.wait", "wait", False),  # two have that name
        ("functions.search", "search", False),
        ("functions.other", "other", False),
    ],
)
def test_tools_of_namespaces(written: str, name: str, mended: bool) -> None:
    tools = ("search", "agents.spawn", "agents.wait", "jobs.wait")
    markup = f"<|channel|>commentary to={written} <|constrain|>json<|message|>{{}}<|call|>"
    turn = read([encode(markup)], tools=tools)
    assert turn.messages == [Message(Kind.CALL, "{}", name)]
    assert bool(turn.recovered) is mended

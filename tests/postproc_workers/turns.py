"""Turns as a model writes them: from markup to tokens, cut into steps, read or post-processed."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frontend.prepare import responses_echo
from frontend.requests.responses import parse_responses
from ipc.messages import (
    ChatFormat,
    CompletionFormat,
    Finish,
    MessagesFormat,
    Open,
    OutputFormat,
    ResponsesFormat,
    TokenLogprobs,
)
from ipc.vocabulary import RETURN
from postproc_workers.encoders import Failure
from postproc_workers.harmony import HarmonyStream
from postproc_workers.headers import Header, Kind
from postproc_workers.post_processor import PostProcessor
from postproc_workers.tokens import token_table, unescape

TOOLS = ("search", "get_weather", "a-b.c")
NOW = 1_765_000_007

RESPONSES = ResponsesFormat(
    responses_echo(
        parse_responses(
            b'{"model":"gpt-oss-20b","input":"Hi","tools":[{"type":"function","name":"search"}]}'
        )
    )
)

Format = OutputFormat
Steps = Sequence[list[int]]
_ID_PREFIX = {
    ResponsesFormat: "resp_",
    ChatFormat: "chatcmpl-",
    MessagesFormat: "msg_",
    CompletionFormat: "cmpl-",
}


class Message(NamedTuple):
    """One message of a turn, as the client is to see it."""

    kind: Kind
    text: str
    name: str = ""
    complete: bool = True


@dataclass
class Turn:
    """What a Harmony stream made of a turn."""

    messages: list[Message]
    recovered: Counter[str]
    consumed: int
    ended_early: bool
    body_tokens: list[int]


class RecordingSink:
    """Keeps the messages of a turn; asserts that they come one after another."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.body_tokens: list[int] = []
        self._open: Header | None = None
        self._pieces: list[bytes] = []

    def begin(self, header: Header) -> None:
        assert self._open is None
        assert header.kind is not Kind.HIDDEN
        self._open = header
        self._pieces = []

    def text(self, escaped: bytes) -> None:
        assert self._open is not None
        assert escaped
        self._pieces.append(escaped)

    def end(self, tokens: int, complete: bool) -> None:
        assert self._open is not None
        header, self._open = self._open, None
        text = unescape(b"".join(self._pieces))
        self.messages.append(Message(header.kind, text, header.name, complete))
        self.body_tokens.append(tokens)

    @property
    def at_rest(self) -> bool:
        return self._open is None


def whole(tokens: list[int]) -> Steps:
    return [tokens]


def one_by_one(tokens: list[int]) -> Steps:
    return [[token] for token in tokens]


def randomly(seed: int) -> Callable[[list[int]], Steps]:
    """A way of cutting, with empty steps among the others."""

    def cut(tokens: list[int]) -> Steps:
        return list(_random_steps(tokens, random.Random(seed)))

    return cut


def _random_steps(tokens: list[int], source: random.Random) -> Iterator[list[int]]:
    place = 0
    while place < len(tokens):
        length = source.choice((0, 1, 1, 2, 3, 5, 8))
        yield tokens[place : place + length]
        place += length


CUTS = {"whole": whole, "one by one": one_by_one} | {f"cut {n}": randomly(n) for n in range(3)}


def read(steps: Steps, *, cut: bool = False, tools: Collection[str] = TOOLS) -> Turn:
    """Read a turn as a worker does; `cut` as in `HarmonyStream.finish`."""
    sink = RecordingSink()
    stream = HarmonyStream(sink, token_table(), tools)
    for step in steps:
        stream.feed(step)
    stream.finish(cut)
    assert sink.at_rest
    return Turn(
        sink.messages, stream.recovered, stream.consumed, stream.ended_early, sink.body_tokens
    )


def opening(
    output: Format,
    *,
    streaming: bool = True,
    stop: tuple[str, ...] = (),
    parallel_tool_calls: bool = True,
    custom: tuple[str, ...] = (),
    keep: bool = False,
) -> Open:
    """The Open of a turn of which little else matters."""
    root = "0123456789abcdef0123456789abcdef"
    return Open(
        stream_id=1,
        lease=1,
        response_id=_ID_PREFIX[type(output)] + root,
        model="gpt-oss-20b",
        created=1_765_000_000,
        prompt_tokens=17,
        format=output,
        streaming=streaming,
        tools=TOOLS,
        stop=stop,
        parallel_tool_calls=parallel_tool_calls,
        custom=custom,
        keep=keep,
    )


def score(token: int, top: int = 2) -> TokenLogprobs:
    """Made-up log-probabilities of a token, always the same; `top` tokens are in the list."""
    return TokenLogprobs(-(token % 7) / 4, [(token, -0.25), (RETURN, -1.5), (2, -9.0)][:top])


def post_process(
    opened: Open, steps: Steps, ending: Finish | Failure, *, scored: bool = False
) -> bytes:
    """All bytes of a turn, ended as a registry ends it; `scored`: it comes with logprobs."""
    return process(opened, steps, ending, scored=scored)[0]


def process(
    opened: Open, steps: Steps, ending: Finish | Failure, *, scored: bool = False
) -> tuple[bytes, bytes]:
    """The bytes of a turn, and its record."""
    processor = PostProcessor(opened)
    processor.open()
    body = processor.take()
    for step in steps:
        processor.feed(step, [score(token) for token in step] if scored else None)
        body += processor.take()
        if processor.ended_early:
            ending = Finish("stop")
            break
    if isinstance(ending, Finish):
        processor.finish(ending, NOW)
    else:
        processor.fail(ending, NOW)
    return body + processor.take(), processor.record

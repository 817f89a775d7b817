"""L12: a stream that moves from worker to worker gives its client the bytes of one that stayed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc.messages import (
    Abort,
    Fail,
    Finish,
    Open,
    Output,
    Outputs,
    Owner,
    Resume,
    Step,
    Tokens,
)
from postproc_workers.registry import Registry
from postproc_workers.testkit.strategies import steps
from tests.postproc_workers.turns import NOW, RESPONSES, Format, opening, post_process
from tests.properties.test_encoders import ANY_TOKENS, CHAT, FINISHES, FORMATS, opens

OWNER = Owner(0, 1)


class MovingStream:
    """A frontend's and an engine's side of one stream, which moves when it is told to."""

    def __init__(self, opened: Open) -> None:
        self.received = b""
        self.tokens = 0
        self.next_sequence = 0
        self.begun = False
        self.ended = False
        self.said: list[int] = []
        self._opening = opened
        self._registry = Registry()
        self._registry.owner_arrived(OWNER)
        self._receive(self._registry.open(OWNER, opened, NOW))

    def say(self, ids: list[int], finish: Finish | None = None, lost: bool = False) -> None:
        """The engine's next tokens; their output is `lost` if the worker dies with it."""
        start = len(self.said)
        self.said += ids
        reply = self._step(start, ids, finish)
        if not lost:
            self._receive(reply)

    def move(self, finish: Finish | None = None) -> None:
        """Open it on another worker, and say all again."""
        resume = Resume(self.tokens, self.next_sequence, self.begun)
        lease = self._opening.lease + 1
        self._opening = msgspec.structs.replace(self._opening, lease=lease, resume=resume)
        self._registry = Registry()
        self._registry.owner_arrived(OWNER)
        self._receive(self._registry.open(OWNER, self._opening, NOW))
        reply = self._step(0, self.said, finish)
        assert isinstance(reply, Outputs)
        [output] = reply.outputs
        assert output.resumed or output.terminal is not None
        self._receive(reply)

    def _step(self, start: int, ids: list[int], finish: Finish | None) -> Outputs | None:
        entry = Tokens(self._opening.stream_id, self._opening.lease, start, list(ids), finish)
        return self._registry.step(OWNER, Step([entry]), NOW)

    def _receive(self, reply: object) -> None:
        outputs: list[Output] = reply.outputs if isinstance(reply, Outputs) else []
        for output in outputs:
            assert not self.ended
            self.received += output.body
            self.tokens, self.next_sequence = output.tokens, output.next_sequence
            self.begun = True
            self.ended = output.terminal is not None


@pytest.mark.parametrize("output", FORMATS.values(), ids=FORMATS.keys())
@given(data=st.data(), tokens=ANY_TOKENS, finish=FINISHES, streaming=st.booleans())
def test_l12_a_moved_stream_is_unbroken(
    output: Format,
    data: st.DataObject,
    tokens: list[int],
    finish: Finish,
    streaming: bool,
) -> None:
    opened = data.draw(opens(output, streaming))
    cut = data.draw(steps(tokens))
    moves = data.draw(st.lists(st.booleans(), min_size=len(cut), max_size=len(cut)))
    stream = MovingStream(opened)
    for ids, moved in zip(cut, moves, strict=True):
        if stream.ended:
            break
        stream.say(ids, lost=moved)
        if moved:
            stream.move()
    if not stream.ended and data.draw(st.booleans()):
        stream.say([], finish, lost=True)
        stream.move(finish)
    elif not stream.ended:
        stream.say([], finish)
    assert stream.ended
    assert stream.received == post_process(opened, [tokens], finish)


@given(data=st.data(), tokens=ANY_TOKENS)
def test_l7_a_moved_stream_goes_on_from_the_number_it_is_told(
    data: st.DataObject, tokens: list[int]
) -> None:
    """Events that the frontend added (keepalives) have taken numbers of their own."""
    opened = data.draw(opens(RESPONSES, streaming=True))
    stream = MovingStream(opened)
    for ids in data.draw(steps(tokens)):
        if not stream.ended:
            stream.say(ids)
    if not stream.ended:
        before = stream.next_sequence
        stream.next_sequence += 5
        stream.move()
        assert stream.next_sequence == before + 5


def test_l7_a_moved_stream_that_fails_before_it_has_caught_up() -> None:
    resume = Resume(tokens=9, next_sequence=11, begun=True)
    moved = msgspec.structs.replace(opening(RESPONSES), resume=resume)
    registry = Registry()
    registry.owner_arrived(OWNER)
    assert registry.open(OWNER, moved, NOW) is None
    reply = registry.fail(OWNER, Fail(1, 1, "server_error", "the engine was lost"), NOW)
    assert reply is not None
    [output] = reply.outputs
    assert output.next_sequence == 13
    assert b'"sequence_number":11}' in output.body
    assert output.body.count(b"event: ") == 2


def test_l4_a_moved_stream_is_gone_from_its_old_worker() -> None:
    registry = Registry()
    registry.owner_arrived(OWNER)
    registry.open(OWNER, opening(CHAT), NOW)
    registry.abort(OWNER, Abort(1, 1, moved=True))
    assert registry.released["moved"] == 1
    assert registry.step(OWNER, Step([Tokens(1, 1, 0, [1])]), NOW) is None
    assert (registry.live, registry.stale) == (0, 1)

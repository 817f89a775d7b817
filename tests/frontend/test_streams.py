"""What the frontend's streams tell workers and engine, event by event; nothing else takes part."""

import json
from collections.abc import Callable

import pytest

from frontend.streams import (
    MAX_BUFFERED_BYTES,
    PATIENCE_SECONDS,
    POISON,
    Generation,
    NoEngineError,
    NoWorkerError,
    StreamHandle,
    Streams,
    TooManyStreamsError,
)
from ipc.messages import (
    Abort,
    Cancel,
    ChatFormat,
    Fail,
    GenerationRequest,
    Open,
    Output,
    Reassign,
    Released,
    Resume,
    Sampling,
    Terminal,
)

SAMPLING = Sampling(max_tokens=10)


def opening(stream_id: int, lease: int, resume: Resume | None = None) -> Open:
    chat = ChatFormat()
    return Open(stream_id, lease, "chatcmpl-1", "m", 0, 1, chat, True, resume=resume)


def generate(stream_id: int, worker: int, lease: int | None = None) -> GenerationRequest:
    return GenerationRequest(stream_id, lease or stream_id, worker, [7], SAMPLING)


class Peers:
    """Two workers and an engine: what they were told, in order, and which of them are there."""

    def __init__(self, max_streams: int = 100, max_seconds: float | None = None) -> None:
        self.load = {0: 0, 1: 0}
        self.up = [0, 1]
        self.now = 1000.0
        self.told: list[object] = []
        self.engine = self.Engine(self.told)
        self.streams = Streams(self, self.engine, max_streams, max_seconds, lambda: self.now)

    class Engine:
        def __init__(self, told: list[object]) -> None:
            self.up = True
            self._told = told

        def send(self, message: GenerationRequest | Cancel | Reassign) -> None:
            self._told.append(message)

    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        self.told.append((worker, message))

    def open(self) -> StreamHandle:
        return self.streams.open(Generation([7], SAMPLING, opening))

    def begun(self, tokens: int = 3) -> StreamHandle:
        """A stream on a worker, with a client that has something; what was told is forgotten."""
        handle = self.open()
        self.say(handle, tokens)
        self.told.clear()
        return handle

    def say(
        self,
        handle: StreamHandle,
        tokens: int,
        terminal: Terminal | None = None,
        resumed: bool = False,
    ) -> None:
        assert handle.worker is not None
        place = (handle.opening.stream_id, handle.opening.lease)
        output = Output(*place, tokens, 2, b"said\n\n", terminal, resumed)
        self.streams.worker_output(handle.worker, output)

    def lose(self, worker: int) -> None:
        self.up.remove(worker)
        self.streams.worker_lost(worker, "killed")

    def come(self, worker: int) -> None:
        self.up.append(worker)
        self.streams.worker_up(worker)

    def at_rest(self) -> bool:
        empty = self.load == {0: 0, 1: 0} and self.streams.none_live.is_set()
        return self.streams.live == 0 and empty


FINAL = Terminal("final", 200, 3)


def told_error(handle: StreamHandle) -> object:
    """The message of the error that a Chat client is told last."""
    assert handle.terminal is not None
    assert handle.terminal.reason == "error"
    last = [line for line in handle.take().decode().splitlines() if line.startswith("data: {")][-1]
    return json.loads(last.removeprefix("data: "))["error"]["message"]


# --- opening and closing -----------------------------------------------------------------------


def test_a_stream_is_opened_at_its_worker_before_it_is_asked_for() -> None:
    peers = Peers()
    peers.open()
    peers.open()
    assert peers.told == [(0, opening(1, 1)), generate(1, 0), (1, opening(2, 2)), generate(2, 1)]
    assert (peers.load, peers.streams.live) == ({0: 1, 1: 1}, 2)


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (lambda peers: peers.up.clear(), NoWorkerError),
        (lambda peers: setattr(peers.engine, "up", False), NoEngineError),
        (lambda peers: peers.open(), TooManyStreamsError),
    ],
)
def test_what_cannot_be_opened_leaves_nothing(
    break_it: Callable[[Peers], object], error: type[Exception]
) -> None:
    peers = Peers(max_streams=1)
    break_it(peers)
    live, told = peers.streams.live, len(peers.told)
    with pytest.raises(error):
        peers.open()
    assert (peers.streams.live, len(peers.told)) == (live, told)


def test_a_client_that_leaves_is_told_to_worker_and_engine() -> None:
    peers = Peers()
    handle = peers.begun()
    handle.close()
    handle.close()
    assert peers.told == [(0, Abort(1, 1)), Cancel(1, 1)]
    assert peers.at_rest()
    assert peers.streams.ended == {"abort": 1}


def test_a_stream_that_has_ended_is_told_to_the_engine_alone() -> None:
    peers = Peers()
    handle = peers.begun()
    peers.say(handle, 5, FINAL)
    handle.close()
    assert peers.told == [Cancel(1, 1)]
    assert peers.at_rest()
    assert peers.streams.ended == {"final": 1}


@pytest.mark.parametrize(("worker", "lease"), [(1, 1), (0, 2)], ids=["worker", "lease"])
def test_what_another_life_says_is_dropped(worker: int, lease: int) -> None:
    peers = Peers()
    handle = peers.open()
    peers.streams.worker_output(worker, Output(1, lease, 3, 2, b"foreign"))
    peers.streams.worker_released(worker, Released(1, lease, "expired"))
    assert (handle.take(), handle.terminal, peers.streams.stale_outputs) == (b"", None, 2)


def test_nothing_comes_after_the_terminal_output() -> None:
    peers = Peers()
    handle = peers.begun()
    peers.say(handle, 5, FINAL)
    peers.say(handle, 6)
    assert (handle.take(), handle.tokens) == (b"said\n\n" * 2, 5)


def test_a_client_that_lags_too_far_overflows() -> None:
    peers = Peers()
    handle = peers.begun()
    handle.take()
    for size, over in ((MAX_BUFFERED_BYTES, False), (1, True)):
        peers.streams.worker_output(0, Output(1, 1, 4, 2, bytes(size)))
        assert handle.overflowed.is_set() is over


@pytest.mark.parametrize("reason", ["expired", "not_owned"])
def test_a_client_whose_state_was_released_is_told(reason: str) -> None:
    peers = Peers()
    handle = peers.begun()
    peers.streams.worker_released(0, Released(1, 1, reason))  # type: ignore[arg-type]
    assert told_error(handle) == f"the stream's state was released: {reason}"
    handle.close()
    assert peers.at_rest()


# --- moving ------------------------------------------------------------------------------------


def test_a_lost_workers_stream_goes_on_elsewhere() -> None:
    peers = Peers()
    handle = peers.begun(tokens=3)
    peers.lose(0)
    moved = opening(1, 2, Resume(3, 2, True))
    assert peers.told == [(1, moved), Reassign(1, 1, 2)]
    assert (handle.worker, peers.load, peers.streams.moved) == (1, {0: 0, 1: 1}, 1)


def test_a_moved_stream_that_cannot_be_opened_anew_ends_with_the_reason() -> None:
    peers = Peers()
    handle = peers.begun(tokens=3)
    peers.lose(0)
    cannot = Terminal("error", 500, 0, message="no table of glyphs")
    peers.streams.worker_output(1, Output(1, 2, 0, 0, b"", cannot))
    assert told_error(handle) == "no table of glyphs"


def test_a_drained_worker_is_told_to_let_go() -> None:
    peers = Peers()
    peers.begun(tokens=3)
    peers.up.remove(0)
    peers.streams.worker_drained(0)
    moved = opening(1, 2, Resume(3, 2, True))
    assert peers.told == [(0, Abort(1, 1, moved=True)), (1, moved), Reassign(1, 1, 2)]


def test_streams_arrive_one_after_another() -> None:
    peers = Peers()
    peers.up.remove(1)
    handles = [peers.begun() for _ in range(3)]
    peers.lose(0)
    assert [handle.worker for handle in handles] == [None] * 3
    peers.come(1)
    assert [handle.worker for handle in handles] == [1, None, None]
    peers.say(handles[0], 4, resumed=True)
    assert [handle.worker for handle in handles] == [1, 1, None]
    handles[1].close()
    assert [handle.worker for handle in handles] == [1, 1, 1]
    assert peers.load == {0: 0, 1: 2}


def test_a_stream_that_kills_its_second_worker_is_not_moved_again() -> None:
    peers = Peers()
    poison, other = peers.begun(), peers.open()
    peers.lose(0)
    assert (poison.worker, other.worker) == (1, 1)
    peers.up.append(0)
    peers.lose(1)
    assert told_error(poison) == POISON
    assert (other.worker, other.terminal) == (0, None)
    poison.close()
    other.close()
    assert peers.at_rest()


def test_a_stream_that_arrives_from_a_drained_worker_has_killed_none_yet() -> None:
    peers = Peers()
    handle = peers.begun()
    peers.up.remove(0)
    peers.streams.worker_drained(0)
    peers.come(0)
    peers.lose(1)
    assert (handle.worker, handle.terminal) == (0, None)
    peers.come(1)
    peers.lose(0)
    assert told_error(handle) == POISON


def test_one_that_has_ended_does_not_move() -> None:
    peers = Peers()
    handle = peers.begun()
    peers.say(handle, 5, FINAL)
    peers.lose(0)
    assert peers.told == []
    handle.close()
    assert peers.at_rest()


def test_one_that_leaves_between_two_workers() -> None:
    peers = Peers()
    peers.up.remove(1)
    handle = peers.begun()
    peers.lose(0)
    handle.close()
    peers.come(1)
    assert peers.told == [Cancel(1, 1)]
    assert peers.at_rest()


def test_a_failure_outlives_the_worker_that_was_told_of_it() -> None:
    peers = Peers()
    handle = peers.begun()
    peers.streams.fail_all("overloaded", "the server is shutting down")
    assert peers.told == [(0, Fail(1, 1, "overloaded", "the server is shutting down"))]
    peers.lose(0)
    assert handle.terminal == Terminal("error", 503, 0)
    assert told_error(handle) == "the server is shutting down"


# --- the engine is lost ------------------------------------------------------------------------


def test_a_lost_engine_ends_what_has_begun() -> None:
    peers = Peers()
    peers.begun(tokens=3)
    peers.engine.up = False
    peers.streams.engine_lost("killed")
    assert peers.told == [(0, Fail(1, 1, "server_error", "the engine was lost: killed"))]


def test_a_lost_engine_ends_at_once_what_is_between_two_workers() -> None:
    peers = Peers()
    peers.up.remove(1)
    handle = peers.begun(tokens=3)
    peers.lose(0)
    peers.engine.up = False
    peers.streams.engine_lost("killed")
    assert told_error(handle) == "the engine was lost: killed"


def test_what_had_not_begun_is_asked_of_the_next_engine() -> None:
    peers = Peers()
    handle = peers.begun(tokens=0)
    peers.engine.up = False
    peers.streams.engine_lost("killed")
    assert peers.told == [(0, Abort(1, 1, moved=True))]
    assert (handle.worker, handle.terminal) == (None, None)
    peers.told.clear()
    peers.engine.up = True
    peers.streams.engine_up()
    assert peers.told == [(0, opening(1, 2, Resume(0, 2, True))), generate(1, 0, lease=2)]


# --- time and the end --------------------------------------------------------------------------


def test_the_deadline() -> None:
    peers = Peers(max_seconds=2.5)
    handle = peers.begun()
    peers.now += 2.5
    peers.streams.tick()
    assert peers.told == []
    peers.now += 0.1
    peers.streams.tick()
    peers.streams.tick()
    too_long = Fail(1, 1, "server_error", "the request took longer than 2.5 seconds")
    assert peers.told == [(0, too_long)]
    peers.say(handle, 3, Terminal("error", 500, 3))
    peers.streams.tick()
    assert peers.told == [(0, too_long)]


def test_without_a_deadline_a_stream_takes_as_long_as_it_likes() -> None:
    peers = Peers()
    peers.begun()
    peers.now += 1e6
    peers.streams.tick()
    assert peers.told == []


def test_a_deadline_does_not_wait_for_a_worker() -> None:
    peers = Peers(max_seconds=2)
    peers.up.remove(1)
    handle = peers.begun()
    peers.lose(0)
    peers.now += 3
    peers.streams.tick()
    assert told_error(handle) == "the request took longer than 2 seconds"


@pytest.mark.parametrize(("waited", "given_up"), [(0.0, False), (0.1, True)])
def test_patience_for_a_worker(waited: float, given_up: bool) -> None:
    peers = Peers()
    peers.up.remove(1)
    handle = peers.begun()
    peers.lose(0)
    peers.now += PATIENCE_SECONDS + waited
    peers.streams.tick()
    assert (handle.terminal is not None) is given_up


def test_all_are_failed_once() -> None:
    peers = Peers()
    ended, live = peers.begun(), peers.begun()
    peers.say(ended, 3, FINAL)
    for _ in range(2):
        peers.streams.fail_all("overloaded", "the end")
    assert peers.told == [(1, Fail(2, 2, "overloaded", "the end"))]
    peers.say(live, 3, Terminal("error", 503, 3))
    assert not peers.streams.none_live.is_set()
    for handle in (ended, live):
        handle.close()
    assert peers.at_rest()
    assert peers.streams.ended == {"final": 1, "error": 1}

"""What was said of a stream can be said again, to another worker, until the stream is cancelled."""

import pytest

from engine.ledger import UNKNOWN_STREAM, Entry, Ledger
from ipc.messages import ErrorResponse, Finish, Reassign, Tokens
from tests.engine.builders import OWNER, make_request

MOVE = Reassign(stream_id=1, worker=3, lease=9)


@pytest.fixture
def ledger() -> Ledger[str]:
    return Ledger()


@pytest.fixture
def entry(ledger: Ledger[str]) -> Entry[str]:
    entry = ledger.open(OWNER, make_request(stream_id=1), drop=print)
    assert entry is not None
    entry.sequence = "running"
    return entry


def test_a_moved_stream_is_said_from_its_first_token(
    ledger: Ledger[str], entry: Entry[str]
) -> None:
    ledger.say(entry, [5], None)
    ledger.say(entry, [6, 7], None)
    assert list(ledger.take()) == [(OWNER, 0)]
    ledger.reassign(OWNER, MOVE)
    ledger.say(entry, [8], Finish("stop"))
    step = ledger.take()[OWNER, 3]
    assert step.tokens == [Tokens(1, 9, 0, [5, 6, 7]), Tokens(1, 9, 3, [8], Finish("stop"))]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_ended_stream_is_said_again_with_its_ending(
    ledger: Ledger[str], entry: Entry[str], reason: str
) -> None:
    finish = Finish(reason)  # type: ignore[arg-type]
    ledger.say(entry, [5, 6], finish)
    ledger.take()
    for lease in (9, 10):
        ledger.reassign(OWNER, Reassign(1, 3, lease))
        assert ledger.take()[OWNER, 3].tokens == [Tokens(1, lease, 0, [5, 6], finish)]


def test_an_error_is_said_again_behind_the_tokens(ledger: Ledger[str], entry: Entry[str]) -> None:
    ledger.say(entry, [5], None)
    ledger.say_error(entry, "internal", "it broke")
    ledger.take()
    ledger.reassign(OWNER, MOVE)
    step = ledger.take()[OWNER, 3]
    assert step.tokens == [Tokens(1, 9, 0, [5])]
    assert step.errors == (ErrorResponse(1, 9, "internal", "it broke"),)


def test_a_stream_that_has_said_nothing_says_so(ledger: Ledger[str], entry: Entry[str]) -> None:
    ledger.reassign(OWNER, MOVE)
    ledger.say(entry, [5], None)
    assert ledger.take()[OWNER, 3].tokens == [Tokens(1, 9, 0, []), Tokens(1, 9, 0, [5])]


def test_a_cancelled_stream_is_not_known_any_more(ledger: Ledger[str], entry: Entry[str]) -> None:
    ledger.say(entry, [5], Finish("stop"))
    assert ledger.close(OWNER, 1, entry.lease) is None
    ledger.take()
    ledger.reassign(OWNER, MOVE)
    assert ledger.take()[OWNER, 3].errors == (ErrorResponse(1, 9, "internal", UNKNOWN_STREAM),)


def test_a_newer_request_replaces_its_stream(ledger: Ledger[str], entry: Entry[str]) -> None:
    dropped: list[str] = []
    newer = ledger.open(OWNER, make_request(stream_id=1, lease=2), drop=dropped.append)
    assert ledger.find(OWNER, 1) is newer
    assert dropped == ["running"]
    assert ledger.open(OWNER, make_request(stream_id=1, lease=2), drop=dropped.append) is None
    assert dropped == ["running"]


def test_a_late_move_or_cancel_changes_nothing(ledger: Ledger[str], entry: Entry[str]) -> None:
    ledger.reassign(OWNER, MOVE)
    ledger.reassign(OWNER, Reassign(1, worker=5, lease=9))
    assert (entry.worker, entry.lease, ledger.stale) == (3, 9, 1)
    assert ledger.close(OWNER, 1, lease=1) is None
    assert ledger.stale == 2
    assert ledger.close(OWNER, 1, lease=9) == "running"


def test_a_lost_owner_leaves_nothing(ledger: Ledger[str], entry: Entry[str]) -> None:
    ledger.say(entry, [5], None)
    assert ledger.forget(OWNER) == ["running"]
    assert not ledger.unsent
    assert ledger.find(OWNER, 1) is None

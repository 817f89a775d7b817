"""Streams are acted on by their owner and under their lease alone, and can be said again."""

import pytest

from ipc.messages import Cancel, GenerationRequest, Goodbye, Owner, Reassign, Sampling
from tests.engine_contract.engines import Engine
from tests.engine_contract.frontend import PROMPT, Frontend, Stream

LONG = 1500
"""Tokens that no engine here makes in the time of a test."""


def silent_from_now_on(frontend: Frontend, stream: Stream) -> bool:
    """Whether nothing is said of a stream any more, while another one is served."""
    frontend.settle()
    before = frontend.heard(stream)
    frontend.complete(max_tokens=8)
    return frontend.heard(stream) == before


def test_nothing_is_said_after_a_cancel(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=LONG)
    frontend.hear(stream, at_least=3)
    frontend.cancel(stream)
    assert silent_from_now_on(frontend, stream)


def test_a_request_that_is_cancelled_at_once_is_forgotten(frontend: Frontend) -> None:
    streams = [frontend.generate(max_tokens=LONG) for _ in range(20)]
    for stream in streams:
        frontend.cancel(stream)
    status = frontend.status()
    assert (status.running, status.waiting, status.kept) == (0, 0, 0)
    assert all(silent_from_now_on(frontend, stream) for stream in streams[::10])


def test_cancel_is_idempotent(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=2)
    frontend.hear(stream)
    before = frontend.status()
    for _ in range(3):
        frontend.cancel(stream)
    frontend.cancel(Stream(10**9, 1, 0))
    after = frontend.status()
    assert (after.kept, after.errors) == (0, before.errors)
    assert silent_from_now_on(frontend, stream)


def test_only_the_lease_cancels(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=30)
    before = frontend.status().rejected
    frontend.send(Cancel(stream.stream_id, stream.lease + 1))
    frontend.send(Cancel(stream.stream_id, stream.lease - 1))
    assert frontend.status().rejected == before + 2
    said = frontend.hear(stream)
    assert (len(said.ids), said.end) == (30, "length")


def test_only_the_owner_cancels(engine: Engine, frontend: Frontend) -> None:
    with engine.frontend() as other:
        stream = frontend.generate(max_tokens=30)
        other.cancel(stream)
        other.status()
        said = frontend.hear(stream)
        assert (len(said.ids), said.end) == (30, "length")


def test_two_owners_may_have_the_same_ids(engine: Engine, frontend: Frontend) -> None:
    with engine.frontend() as other:
        mine = frontend.generate([9, 8, 7], max_tokens=20, temperature=0.0)
        theirs = other.generate([30, 31], max_tokens=25, temperature=0.0)
        assert mine == theirs
        assert len(frontend.hear(mine).ids) == 20
        assert len(other.hear(theirs).ids) == 25
        frontend.cancel(mine)
        assert frontend.status().kept == 1
        other.cancel(theirs)
        assert frontend.heard(mine) == frontend.said[mine[:2]].parts


def test_a_new_lease_replaces_the_stream(frontend: Frontend) -> None:
    old = frontend.generate(max_tokens=LONG, stream_id=77)
    frontend.hear(old, at_least=2)
    new = frontend.generate(max_tokens=12, stream_id=77)
    said = frontend.hear(new)
    assert (len(said.ids), said.end) == (12, "length")
    assert silent_from_now_on(frontend, old)
    assert frontend.status().kept == 1


def test_a_lease_that_is_not_new_is_rejected(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=10)
    said = frontend.hear(stream)
    before = frontend.status().rejected
    for lease in (stream.lease, stream.lease - 1):
        frontend.send(GenerationRequest(78, lease, 0, PROMPT, Sampling(max_tokens=3)))
        frontend.send(Reassign(stream.stream_id, 1, lease))
    assert frontend.status().rejected == before + 4
    assert silent_from_now_on(frontend, Stream(78, stream.lease, 0))
    assert silent_from_now_on(frontend, stream)
    assert (len(said.ids), said.workers) == (10, {0})


@pytest.mark.parametrize("heard", [0, 1, 7, 40])
def test_a_moved_stream_is_said_again_from_its_first_token(frontend: Frontend, heard: int) -> None:
    stream = frontend.generate(max_tokens=40, worker=1)
    before = frontend.hear(stream, at_least=heard).ids[:heard]
    moved = frontend.reassign(stream, worker=2)
    said = frontend.hear(moved)
    assert said.ids[: len(before)] == before
    assert (len(said.ids), said.end) == (40, "length")
    assert silent_from_now_on(frontend, stream)


def test_a_stream_may_move_many_times(frontend: Frontend) -> None:
    lives = [frontend.generate(max_tokens=60)]
    for worker in range(1, 6):
        frontend.hear(lives[-1], at_least=2 * worker)
        lives.append(frontend.reassign(lives[-1], worker))
    said = frontend.hear(lives[-1])
    assert (len(said.ids), said.end) == (60, "length")
    for life in lives:
        before = frontend.said[life[:2]].ids
        assert before == said.ids[: len(before)]


def test_the_old_lease_of_a_moved_stream_cancels_nothing(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=30)
    moved = frontend.reassign(stream, worker=4)
    frontend.cancel(stream)
    assert len(frontend.hear(moved).ids) == 30
    frontend.cancel(moved)
    assert frontend.status().kept == 0


def test_a_moved_error_is_said_again(frontend: Frontend) -> None:
    stream = frontend.generate([])
    error = frontend.hear(stream)
    again = frontend.hear(frontend.reassign(stream, worker=3))
    assert (again.ids, again.end, again.message) == ([], error.end, error.message)


def test_a_stream_that_is_not_known_cannot_move(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=2)
    frontend.hear(stream)
    frontend.cancel(stream)
    said = frontend.hear(frontend.reassign(stream, worker=1))
    assert (said.ids, said.end) == ([], "internal")
    assert frontend.status().kept == 0


def test_goodbye_drops_all(engine: Engine, frontend: Frontend) -> None:
    with engine.frontend() as leaving:
        for _ in range(5):
            leaving.generate(max_tokens=LONG)
        leaving.hear(leaving.generate(max_tokens=1))
        assert (leaving.status().kept, frontend.status().kept) == (1, 1)
        leaving.send(Goodbye())
        leaving.wait_until_refused()
        status = frontend.status()
        assert (status.running, status.waiting, status.kept) == (0, 0, 0)


def test_a_frontend_that_is_gone_without_a_word_is_dropped(
    engine: Engine, frontend: Frontend
) -> None:
    with Frontend(engine.address, engine.new_owner()) as gone:
        gone.hear(gone.generate(max_tokens=LONG), at_least=1)
        assert frontend.status().running == 1
    while frontend.status().running:
        pass


def test_a_later_life_of_a_frontend_drops_the_earlier_one(engine: Engine) -> None:
    owner = engine.new_owner()
    with engine.frontend(owner) as old:
        old.hear(old.generate(max_tokens=LONG), at_least=1)
        with engine.frontend(Owner(owner.frontend, owner.epoch + 1)) as new:
            status = new.status()
            assert (status.running, status.waiting, status.kept) == (0, 0, 0)
            assert len(new.complete(max_tokens=6).ids) == 6

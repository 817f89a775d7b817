"""The events of a response for readers that come and go as they like."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from frontend.state.event_log import EventLog, frames_after
from tests.frontend.local_system import settle


def frame(number: int, text: str) -> bytes:
    delta = json.dumps(text, ensure_ascii=False).encode()
    return b'event: a\ndata: {"type":"a","delta":%b,"sequence_number":%d}\n\n' % (delta, number)


tricky = st.sampled_from(['"sequence_number":7}\n\n', "}\n\n", '\\"sequence_number\\":3}', "é\x00"])
texts = st.lists(tricky | st.text(max_size=20), max_size=12)


async def read(log: EventLog, after: int) -> bytes:
    return b"".join([piece async for piece in log.read(after)])


@given(texts, st.data())
def test_every_reader_has_all_events_after_its_own(said: list[str], data: st.DataObject) -> None:
    """Whenever it comes, wherever the events are cut into pieces."""
    frames = [frame(n, text) for n, text in enumerate(said)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frames)), max_size=4)))
    places = [0, *cuts, len(frames)]
    pieces = [b"".join(frames[a:b]) for a, b in pairwise(places)]
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, len(pieces)), st.integers(-1, 14))))

    async def scenario() -> None:
        log = EventLog()
        readers: list[tuple[int, asyncio.Task[bytes]]] = []

        def arrive(now: int) -> None:
            readers.extend(
                (after, asyncio.create_task(read(log, after)))
                for when, after in arrivals
                if when == now
            )

        for now, piece in enumerate(pieces):
            arrive(now)
            if now % 2:
                await settle()
            log.append(piece)
        await settle()
        assert not any(reader.done() for _, reader in readers)
        arrive(len(pieces))
        log.end()
        for after, reader in readers:
            assert await asyncio.wait_for(reader, 5) == b"".join(frames[after + 1 :])

    asyncio.run(scenario())


def test_an_event_is_read_as_soon_as_it_is_there() -> None:
    async def scenario() -> None:
        log = EventLog()
        reader = log.read()
        for number in range(3):
            waiting = asyncio.ensure_future(anext(reader))
            await settle()
            assert not waiting.done()
            log.append(frame(number, "x"))
            await settle()
            assert waiting.done()
            assert await waiting == frame(number, "x")
        log.end()
        assert [piece async for piece in reader] == []

    asyncio.run(scenario())


def test_a_reader_that_leaves_leaves_the_others_theirs() -> None:
    async def scenario() -> None:
        log = EventLog()
        log.append(frame(0, "x"))
        gone = cast("AsyncGenerator[bytes]", log.read())
        stays = asyncio.create_task(read(log, -1))
        assert await anext(gone) == frame(0, "x")
        await gone.aclose()
        cancelled = asyncio.create_task(read(log, -1))
        await settle()
        cancelled.cancel()
        log.append(frame(1, "y"))
        log.end()
        assert await stays == frame(0, "x") + frame(1, "y")

    asyncio.run(scenario())


def test_a_late_reader_of_a_long_log_holds_up_nobody() -> None:
    """Others take their turns while it reads past what it has had already."""

    async def scenario() -> None:
        log = EventLog()
        for number in range(5000):
            log.append(frame(number, "word"))
        log.end()
        turns = 0
        reader = asyncio.create_task(read(log, 4998))
        while not reader.done():
            await asyncio.sleep(0)
            turns += 1
        assert await reader == frame(4999, "word")
        assert turns > 20

    asyncio.run(scenario())


def test_frames_after_a_number_beyond_the_last_are_none() -> None:
    frames = frame(0, "x") + frame(1, "y")
    assert list(frames_after(frames, 1)) == []
    assert list(frames_after(frames, -1)) == [frame(0, "x"), frame(1, "y")]
    assert list(frames_after(b"", -1)) == []

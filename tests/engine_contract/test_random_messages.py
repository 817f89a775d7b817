"""Random messages of two owners, and a model of what has to be said of each life of a stream."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from ipc.messages import Cancel, GenerationRequest, Reassign, Sampling
from tests.engine_contract.engines import Engine
from tests.engine_contract.frontend import Frontend, Stream

STREAM_IDS = 6
"""Few, so that streams are replaced."""
MESSAGES = 60


@dataclass(slots=True)
class Known:
    """A stream that is open: its present life, and how it has to end."""

    stream: Stream
    count: int
    end: str
    key: tuple[int, int | None]


class Model:
    """One owner's side: what it has open, and lives of which nothing may be said any more, with
    how much was heard of them when that began."""

    def __init__(self, frontend: Frontend, random: random.Random) -> None:
        self.frontend = frontend
        self.open: dict[int, Known] = {}
        self.over: dict[Stream, int] = {}
        self.stale = 0
        self._closed: list[Stream] = []
        self._random = random

    def act(self) -> None:
        """Send one message of any kind."""
        kinds = (self.generate, self.generate, self.cancel, self.move, self.bad_lease, self.settle)
        self._random.choice(kinds)()

    def generate(self) -> None:
        stream_id = -self._random.randrange(1, STREAM_IDS)
        self._close(stream_id)
        count, seed = self._random.randrange(1, 40), self._random.choice([0, 0, 1, None])
        fields: dict[str, Any] = {"max_tokens": count, "seed": seed}
        bad = self._random.random() < 0.2
        stream = self.frontend.generate(
            [] if bad else [5 - stream_id], stream_id=stream_id, worker=0, **fields
        )
        end = "invalid_request" if bad else "length"
        self.open[stream_id] = Known(stream, 0 if bad else count, end, (stream_id, seed))

    def cancel(self) -> None:
        if self.open:
            stream_id = self._random.choice(list(self.open))
            self.frontend.cancel(self.open[stream_id].stream)
            self._close(stream_id)

    def move(self) -> None:
        if self.open:
            known = self.open[self._random.choice(list(self.open))]
            self._closed.append(known.stream)
            known.stream = self.frontend.reassign(known.stream, self._random.randrange(3))

    def bad_lease(self) -> None:
        """Messages of leases that are over; none of them may have any effect."""
        if not self.open:
            return
        stream = self.open[self._random.choice(list(self.open))].stream
        message = self._random.choice(
            [
                Cancel(stream.stream_id, stream.lease + 1000),
                Cancel(stream.stream_id, stream.lease - 1),
                Reassign(stream.stream_id, 1, stream.lease),
                GenerationRequest(stream.stream_id, stream.lease, 1, [5], Sampling(max_tokens=9)),
            ]
        )
        self.frontend.send(message)
        self.stale += 1

    def settle(self) -> None:
        """What was closed is over from now on."""
        self.frontend.settle()
        for stream in self._closed:
            self.over[stream] = self.frontend.heard(stream)
        self._closed.clear()

    def check(self) -> dict[tuple[int, int | None], list[int]]:
        """Hear all that is open to its end; returns what was said by prompt and seed."""
        self.settle()
        said = {}
        for known in self.open.values():
            told = self.frontend.hear(known.stream)
            assert (len(told.ids), told.end) == (known.count, known.end)
            said[known.key] = told.ids
        for stream, heard in self.over.items():
            assert self.frontend.heard(stream) == heard, stream
        for known in self.open.values():
            self.frontend.cancel(known.stream)
        return said

    def _close(self, stream_id: int) -> None:
        known = self.open.pop(stream_id, None)
        if known is not None:
            self._closed.append(known.stream)


@pytest.mark.parametrize("seed", range(8))
def test_random_messages(engine: Engine, seed: int) -> None:
    source = random.Random(seed)
    with engine.frontend() as one, engine.frontend() as other:
        rejected = one.status().rejected
        models = [Model(frontend, source) for frontend in (one, other)]
        for _ in range(MESSAGES):
            source.choice(models).act()
        said = [model.check() for model in models]
        assert one.status().rejected == rejected + sum(model.stale for model in models)
        for key in said[0].keys() & said[1].keys():
            first, second = said[0][key], said[1][key]
            shorter = min(len(first), len(second))
            assert key[1] is None or first[:shorter] == second[:shorter]

"""Virtual time and a network: everything that happens is an event in one seeded order."""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class World:
    """A clock in seconds and what is still to happen. The same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        return self.now

    def at(self, delay: float, happen: Callable[[], None]) -> None:
        """Let something happen in `delay` seconds."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), happen))

    def run(self, check: Callable[[], None], most: int = 1_000_000) -> None:
        """Let everything happen, and check after each event."""
        while self._queue:
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
            check()
            self.events += 1
            assert self.events < most, "the system does not come to rest"


class Channel(Generic[T]):
    """One direction of a connection: messages arrive late, in order, until it is cut."""

    def __init__(self, world: World, deliver: Callable[[T], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._arrival = 0.0
        self._open = True

    def send(self, message: T) -> None:
        """Send a message; into a cut connection, to nobody."""
        latency = self._world.random.expovariate(1 / 0.002)
        self._arrival = max(self._arrival, self._world.now + latency)
        self._world.at(self._arrival - self._world.now, lambda: self._arrive(message))

    def cut(self) -> None:
        """Lose what is under way."""
        self._open = False

    def _arrive(self, message: T) -> None:
        if self._open:
            self._deliver(message)

"""One seeded run: clients come, read, lag and leave; processes die; invariants are checked."""

import json
import re
from dataclasses import dataclass
from functools import cache, partial

from engine.scripted import Script, ScriptedError
from frontend.streams import POISON, Generation, NoEngineError, NoWorkerError, StreamHandle
from ipc.messages import ChatFormat, Finish, Open, ResponsesFormat, Sampling
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.turns import RESPONSES, TOOLS, post_process
from tests.simulation.system import DEADLY, System
from tests.simulation.world import World

_ANSWER = (
    "<|channel|>analysis<|message|>The user greets me 🎉.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hello there, friend.<|return|>"
)
_CALL = (
    "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.search <|constrain|>json<|message|>{"q": "antiphony"}<|call|>'
)
_MALFORMED = "<|channel|><|message|>Well <|message|>done<|end|><|end|><|channel|>final<|message|>."


@dataclass(frozen=True)
class Turn:
    """A script and what its tokens are; `error` if it ends by one; `deadly` to its worker."""

    script: Script
    tokens: list[int]
    finish: Finish
    error: bool = False
    deadly: bool = False


@cache
def turns() -> list[Turn]:
    """What the engine can say; a request picks one by its seed."""
    answer, call, malformed = encode(_ANSWER), encode(_CALL), encode(_MALFORMED)
    long = encode("<|channel|>final<|message|>" + " word" * 300 + "<|return|>")
    failed = ScriptedError(after=6, message="the executor failed")
    deadly = [*answer[:12], DEADLY, *answer[12:]]
    return [
        Turn(Script(answer, interval=0.01), answer, Finish("stop")),
        Turn(Script(call, tokens_per_step=3, interval=0.02), call, Finish("stop")),
        Turn(Script(long, tokens_per_step=4, interval=0.01, delay=0.2), long, Finish("stop")),
        Turn(Script(malformed, then="length"), malformed, Finish("length")),
        Turn(Script(answer, interval=0.01, error=failed), answer[:6], Finish("stop"), error=True),
        Turn(Script(deadly, interval=0.01), deadly, Finish("stop"), deadly=True),
    ]


HARMLESS = 5
"""So many turns come before the deadly one."""


class Client:
    """One client: opens a stream, reads when it likes, leaves when it likes or at the end."""

    def __init__(self, world: World, system: System, number: int, deadly: bool = False) -> None:
        self.turn_number = HARMLESS if deadly else world.random.randrange(HARMLESS)
        self.turn = turns()[self.turn_number]
        self.streaming = world.random.random() < 0.7
        responses = world.random.random() < 0.5
        self.format: ResponsesFormat | ChatFormat = RESPONSES if responses else ChatFormat(True)
        self.response_id = f"{'resp_' if responses else 'chatcmpl-'}{number:032x}"
        self.leaves = not deadly and world.random.random() < 0.2
        self.refused = False
        self.received = b""
        self.handle: StreamHandle | None = None
        self._frontend = 0
        self._world = world
        self._system = system

    @property
    def over(self) -> bool:
        if self.handle is None:
            return self.refused
        return self.handle.closed or self.cut_off

    @property
    def cut_off(self) -> bool:
        """Whether the frontend was killed that this client was connected to."""
        return self._frontend != self._system.frontend_kills

    def make_open(self, stream_id: int, lease: int) -> Open:
        return Open(
            stream_id,
            lease,
            self.response_id,
            "simulated",
            1_765_000_000,
            17,
            self.format,
            self.streaming,
            TOOLS,
        )

    def come(self) -> None:
        if not self._system.frontend_alive:
            self.refused = True
            return
        self._frontend = self._system.frontend_kills
        sampling = Sampling(max_tokens=100_000, seed=self.turn_number)
        try:
            self.handle = self._system.streams.open(Generation([1], sampling, self.make_open))
        except (NoWorkerError, NoEngineError):
            self.refused = True
            return
        if self.leaves:
            self._world.at(self._world.random.uniform(0, 1.5), self.handle.close)
        self._read()

    def _read(self) -> None:
        assert self.handle is not None
        if self.handle.closed or self.cut_off:
            return
        ended = self.handle.terminal is not None
        self.received += self.handle.take()
        if ended:
            self.handle.close()
        else:
            self._world.at(self._world.random.expovariate(1 / 0.03), self._read)

    def check(self) -> None:
        """What the client has is what one unbroken stream gives."""
        if self.handle is None:
            return
        terminal = self.handle.terminal
        whole = post_process(self.make_open(1, 1), [self.turn.tokens], self.turn.finish)
        if self.cut_off and not self.handle.closed:
            assert terminal is not None or whole.startswith(self.received)
        elif self.turn.deadly:
            assert POISON.encode() in self.received
        elif terminal is None or not self.received:
            assert self.leaves
        elif terminal.reason == "final":
            assert not self.turn.error
            assert self.received == whole or (self.leaves and whole.startswith(self.received))
        else:
            # Two workers killed from outside, each while a stream arrived, look like its doing.
            poison = POISON.encode() in self.received or self.leaves
            suspected = self._system.worker_kills > 1 and poison
            assert self.turn.error or self._system.engine_kills or suspected
            if self.streaming:
                self._check_failed()

    def _check_failed(self) -> None:
        """The failure is told once, under the next number, and all events are whole."""
        sign = b"event: error" if isinstance(self.format, ResponsesFormat) else b'data: {"error"'
        assert self.received.count(sign) == 1 or self.leaves
        numbers = [int(n) for n in re.findall(rb'"sequence_number":(\d+)}\n\n', self.received)]
        assert numbers == list(range(len(numbers)))
        for line in self.received.splitlines():
            if line.startswith(b"data: {"):
                json.loads(line[6:])


def simulate(seed: int, clients: int = 40, most: int = 1_000_000, *, poison: bool = False) -> int:
    """Run one seed to its end and check everything; returns the number of events.

    With `poison` nothing is killed but what one of the streams kills.
    """
    world = World(seed)
    system = System(world, world.random.choice((1, 2, 3)), [turn.script for turn in turns()])
    everybody = [Client(world, system, n, deadly=poison and n == 0) for n in range(clients)]
    for client in everybody:
        world.at(world.random.uniform(0.01, 3), client.come)
    if not poison:
        _plan_kills(world, system)

    def check() -> None:
        for registry in system.lives:
            assert registry.live == registry.opened - registry.released.total()
        assert system.worker_deaths <= 2
        assert min(system.pool.load.values()) >= 0
        assert sum(system.pool.load.values()) <= system.streams.live
        system.over = all(client.over for client in everybody)

    world.run(check, most)
    for client in everybody:
        client.check()
    assert system.worker_deaths == (2 if poison else 0)
    assert system.streams.live == 0
    assert not any(system.pool.load.values())
    assert [worker.registry.live for worker in system.workers] == [0] * len(system.workers)
    status = system.engine.core.status()
    assert (status.running, status.kept) == (0, 0)
    assert system.engine.core.wait() is None
    return world.events


def _plan_kills(world: World, system: System) -> None:
    for _ in range(world.random.randrange(6)):
        number = world.random.randrange(len(system.workers))
        when = world.random.uniform(0, 4)
        world.at(when, partial(system.kill_worker, number))
    for _ in range(world.random.randrange(3)):
        number = world.random.randrange(len(system.workers))
        world.at(world.random.uniform(0, 4), partial(system.drain_worker, number))
    if world.random.random() < 0.4:
        world.at(world.random.uniform(0, 4), system.kill_engine)
    if world.random.random() < 0.3:
        world.at(world.random.uniform(0, 4), system.kill_frontend)

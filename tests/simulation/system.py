"""Frontend, engine and workers as simulated processes around their real cores.

A process that is killed loses its core and all that is under way to it; its peers learn of it a
little later; the supervisor starts another after a while. A worker that reads DEADLY dies of it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.scripted import Script, ScriptedCore
from frontend.streams import Streams
from ipc import codec
from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    Cancel,
    Fail,
    FrontendToWorker,
    GenerationRequest,
    Hello,
    Open,
    Outputs,
    Owner,
    Reassign,
    Released,
    TokenLogprobs,
    WorkerInfo,
    WorkerStatus,
)
from postproc_workers.post_processor import PostProcessor
from postproc_workers.registry import Registry
from postproc_workers.testkit.strategies import encode
from tests.simulation.world import Channel, World

NOW = 1_765_000_007
"""What workers date endings by: constant, so that outputs can be compared."""
NOTICED_SECONDS = 0.05
RESTART_SECONDS = 0.3
HEARTBEAT_SECONDS = 1.0
REPEATED = 0.02
"""How much of what the engine says arrives twice."""
[DEADLY] = encode(" deadly")

ToWorker = bytes
FromWorker = Outputs | Released | WorkerStatus | WorkerInfo


class WorkerDies(BaseException):
    """The process ends here, as by a fault of the interpreter."""


class MortalPostProcessor(PostProcessor):
    """The real one, in a process that one token kills."""

    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None:
        if DEADLY in tokens:
            raise WorkerDies
        super().feed(tokens, logprobs)


class SimulatedWorker:
    """One life of a worker process; `die` is called when it ends by its own doing."""

    def __init__(self, die: Callable[[], None]) -> None:
        self.registry = Registry(MortalPostProcessor)
        self.alive = True
        self._die = die

    def receive(self, owner: Owner, frame: ToWorker, reply: Channel[FromWorker]) -> None:
        if not self.alive:
            return
        message: FrontendToWorker = codec.frontend_to_worker(frame)
        try:
            answer = self.registry.handle(owner, message, NOW)
        except WorkerDies:
            self._die()
            return
        if isinstance(message, Hello):
            reply.send(WorkerInfo(PROTOCOL_VERSION, 0, 0))
        elif answer is not None:
            reply.send(answer)


class SimulatedEngine:
    """One life of an engine process, with a scripted core."""

    def __init__(self, world: World, scripts: Sequence[Script]) -> None:
        self.core = ScriptedCore(scripts, world.clock)
        self.alive = True
        self._world = world
        self._replies: dict[Owner, Channel[tuple[int, bytes]]] = {}
        self._waking = False

    def connect(self, owner: Owner, reply: Channel[tuple[int, bytes]]) -> None:
        self._replies[owner] = reply
        self.core.hello(owner)

    def receive(self, owner: Owner, message: GenerationRequest | Cancel | Reassign) -> None:
        match message:
            case GenerationRequest():
                self.core.add(owner, message)
            case Cancel(stream_id, lease):
                self.core.cancel(owner, stream_id, lease)
            case Reassign():
                self.core.reassign(owner, message)
        self._wake()

    def lose(self, owner: Owner) -> None:
        self._replies.pop(owner, None)
        self.core.owner_lost(owner)

    def _wake(self) -> None:
        wait = self.core.wait()
        if wait is not None and not self._waking:
            self._waking = True
            self._world.at(wait, self._step)

    def _step(self) -> None:
        self._waking = False
        if not self.alive:
            return
        for (owner, worker), step in self.core.step().items():
            if owner in self._replies:
                self._replies[owner].send((worker, codec.encode(step)))
        self._wake()


class SimulatedPool:
    """The frontend's side of the workers."""

    def __init__(self, workers: int) -> None:
        self.load = dict.fromkeys(range(workers), 0)
        self.connections: list[Channel[ToWorker] | None] = [None] * workers
        self.answered = [False] * workers

    @property
    def up(self) -> list[int]:
        return [worker for worker, answered in enumerate(self.answered) if answered]

    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        self.forward(worker, codec.encode(message))

    def forward(self, worker: int, frame: bytes) -> None:
        connection = self.connections[worker]
        if connection is not None:
            connection.send(frame)


class SimulatedEngineClient:
    """The frontend's side of the engine."""

    def __init__(self) -> None:
        self.up = False
        self.connection: Channel[GenerationRequest | Cancel | Reassign] | None = None

    def send(self, message: GenerationRequest | Cancel | Reassign) -> None:
        if self.connection is not None:
            self.connection.send(message)


class System:
    """One frontend, one engine and some workers, which can be killed at any time.

    `worker_kills` are those from outside, `worker_deaths` those by a worker's own doing.
    """

    owner: Owner
    pool: SimulatedPool
    client: SimulatedEngineClient
    streams: Streams
    frontend_alive: bool

    def __init__(self, world: World, workers: int, scripts: Sequence[Script]) -> None:
        self.world = world
        self.over = False
        self.engine_kills = self.frontend_kills = self.worker_kills = self.worker_deaths = 0
        self.lives: list[Registry] = []
        self.workers = [self._new_worker(number) for number in range(workers)]
        self._scripts = scripts
        self.engine = SimulatedEngine(world, scripts)
        self._channels: dict[object, tuple[Channel[Any], Channel[Any]]] = {}
        self._start_frontend()
        self._beat()

    def kill_worker(self, number: int) -> None:
        """kill -9."""
        self.worker_kills += self.workers[number].alive
        self._end_worker(number)

    def kill_frontend(self) -> None:
        """kill -9: what it had sent still arrives. It can be back before it is missed."""
        if not self.frontend_alive:
            return
        self.frontend_kills += 1
        self.frontend_alive = False
        for _, from_peer in self._channels.values():
            from_peer.cut()
        self._channels.clear()
        self.pool.connections = [None] * len(self.workers)
        self.client.connection = None
        self.world.at(NOTICED_SECONDS, partial(self._frontend_lost, self.owner))
        restart = self.world.random.choice((NOTICED_SECONDS / 2, RESTART_SECONDS))
        self.world.at(restart, self._start_frontend)

    def _start_frontend(self) -> None:
        self.frontend_alive = True
        self.owner = Owner(0, 1 + self.frontend_kills)
        self.pool = SimulatedPool(len(self.workers))
        self.client = SimulatedEngineClient()
        self.streams = Streams(self.pool, self.client, max_streams=10_000, clock=self.world.clock)
        for number, worker in enumerate(self.workers):
            if worker.alive:
                self._connect_worker(number)
        if self.engine.alive:
            self._connect_engine()

    def _frontend_lost(self, owner: Owner) -> None:
        for worker in self.workers:
            worker.registry.owner_lost(owner)
        self.engine.lose(owner)

    def _new_worker(self, number: int) -> SimulatedWorker:
        def die() -> None:
            self.worker_deaths += 1
            self._end_worker(number)

        worker = SimulatedWorker(die)
        self.lives.append(worker.registry)
        return worker

    def _end_worker(self, number: int) -> None:
        worker = self.workers[number]
        if worker.alive:
            worker.alive = False
            self._cut(worker)
            self.world.at(NOTICED_SECONDS, lambda: self._worker_lost(number))
            self.world.at(RESTART_SECONDS, lambda: self._restart_worker(number))

    def kill_engine(self) -> None:
        """kill -9."""
        if self.engine.alive:
            self.engine_kills += 1
            self.engine.alive = False
            self._cut(self.engine)
            self.world.at(NOTICED_SECONDS, self._engine_lost)
            self.world.at(RESTART_SECONDS, self._restart_engine)

    def drain_worker(self, number: int) -> None:
        """Have a worker give its streams away; it comes back later."""
        if self.pool.answered[number]:
            self.pool.answered[number] = False
            self.streams.worker_drained(number)
            self.world.at(RESTART_SECONDS, lambda: self._worker_answers(number))

    def _cut(self, process: object) -> None:
        for channel in self._channels.pop(process, ()):
            channel.cut()

    def _connect_worker(self, number: int) -> None:
        worker, owner = self.workers[number], self.owner
        reply: Channel[FromWorker] = Channel(
            self.world, lambda message: self._worker_says(number, message)
        )
        request: Channel[ToWorker] = Channel(
            self.world, lambda frame: worker.receive(owner, frame, reply)
        )
        self.pool.connections[number] = request
        self._channels[worker] = (request, reply)
        request.send(codec.encode(Hello(PROTOCOL_VERSION, owner)))

    def _connect_engine(self) -> None:
        engine, owner, pool = self.engine, self.owner, self.pool

        def forward(step: tuple[int, bytes]) -> None:
            pool.forward(*step)
            if self.world.random.random() < REPEATED:
                later = self.world.random.expovariate(1 / 0.02)
                self.world.at(later, lambda: pool.forward(*step))

        reply: Channel[tuple[int, bytes]] = Channel(self.world, forward)
        request: Channel[GenerationRequest | Cancel | Reassign] = Channel(
            self.world, lambda message: engine.receive(owner, message)
        )
        engine.connect(owner, reply)
        self._channels[engine] = (request, reply)
        self.client.connection, self.client.up = request, True
        self.streams.engine_up()

    def _worker_says(self, number: int, message: FromWorker) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    self.streams.worker_output(number, output)
            case Released():
                self.streams.worker_released(number, message)
            case WorkerInfo():
                self._worker_answers(number)
            case WorkerStatus():
                raise AssertionError("nobody asked for a status")

    def _worker_answers(self, number: int) -> None:
        if self.pool.connections[number] is not None:
            self.pool.answered[number] = True
            self.streams.worker_up(number)

    def _worker_lost(self, number: int) -> None:
        self.pool.connections[number] = None
        self.pool.answered[number] = False
        self.streams.worker_lost(number, "killed")

    def _restart_worker(self, number: int) -> None:
        self.workers[number] = self._new_worker(number)
        if self.frontend_alive:
            self._connect_worker(number)

    def _engine_lost(self) -> None:
        self.client.connection, self.client.up = None, False
        self.streams.engine_lost("killed")

    def _restart_engine(self) -> None:
        self.engine = SimulatedEngine(self.world, self._scripts)
        if self.frontend_alive:
            self._connect_engine()

    def _beat(self) -> None:
        self.streams.tick()
        if not self.over:
            self.world.at(HEARTBEAT_SECONDS, self._beat)

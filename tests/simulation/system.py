"""Frontend, engine and workers as simulated processes around their real cores.

A process that is killed loses its core and all that is under way to and from it; its peers learn
of it a little later; the supervisor starts another after a while.
"""

from collections.abc import Sequence
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
    WorkerInfo,
    WorkerStatus,
)
from postproc_workers.registry import Registry
from tests.simulation.world import Channel, World

NOW = 1_765_000_007
"""What workers date endings by: constant, so that outputs can be compared."""
NOTICED_SECONDS = 0.05
RESTART_SECONDS = 0.3
HEARTBEAT_SECONDS = 1.0

ToWorker = bytes
FromWorker = Outputs | Released | WorkerStatus | WorkerInfo


class SimulatedWorker:
    """One life of a worker process."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.alive = True

    def receive(self, owner: Owner, frame: ToWorker, reply: Channel[FromWorker]) -> None:
        message: FrontendToWorker = codec.frontend_to_worker(frame)
        answer = self.registry.handle(owner, message, NOW)
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
    """One frontend, one engine and some workers, which can be killed at any time."""

    def __init__(self, world: World, workers: int, scripts: Sequence[Script]) -> None:
        self.world = world
        self.over = False
        self.engine_kills = 0
        self.owner = Owner(0, 1)
        self.pool = SimulatedPool(workers)
        self.client = SimulatedEngineClient()
        self.streams = Streams(self.pool, self.client, max_streams=10_000, clock=world.clock)
        self.workers = [SimulatedWorker() for _ in range(workers)]
        self.lives: list[Registry] = [worker.registry for worker in self.workers]
        self._scripts = scripts
        self.engine = SimulatedEngine(world, scripts)
        self._channels: dict[object, tuple[Channel[Any], Channel[Any]]] = {}
        for number in range(workers):
            self._connect_worker(number)
        self._connect_engine()
        self._beat()

    def kill_worker(self, number: int) -> None:
        """kill -9."""
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

    def repeat_frame(self, number: int, frame: bytes) -> None:
        """Let a frame arrive at a worker once more."""
        self.pool.forward(number, frame)

    def _cut(self, process: object) -> None:
        for channel in self._channels.pop(process):
            channel.cut()

    def _connect_worker(self, number: int) -> None:
        worker = self.workers[number]
        reply: Channel[FromWorker] = Channel(
            self.world, lambda message: self._worker_says(number, message)
        )
        request: Channel[ToWorker] = Channel(
            self.world, lambda frame: worker.receive(self.owner, frame, reply)
        )
        self.pool.connections[number] = request
        self._channels[worker] = (request, reply)
        request.send(codec.encode(Hello(PROTOCOL_VERSION, self.owner)))

    def _connect_engine(self) -> None:
        engine = self.engine
        reply: Channel[tuple[int, bytes]] = Channel(
            self.world, lambda step: self.pool.forward(*step)
        )
        request: Channel[GenerationRequest | Cancel | Reassign] = Channel(
            self.world, lambda message: engine.receive(self.owner, message)
        )
        engine.connect(self.owner, reply)
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
        self.workers[number] = SimulatedWorker()
        self.lives.append(self.workers[number].registry)
        self._connect_worker(number)

    def _engine_lost(self) -> None:
        self.client.connection, self.client.up = None, False
        self.streams.engine_lost("killed")

    def _restart_engine(self) -> None:
        self.engine = SimulatedEngine(self.world, self._scripts)
        self._connect_engine()

    def _beat(self) -> None:
        self.streams.tick()
        if not self.over:
            self.world.at(HEARTBEAT_SECONDS, self._beat)

"""A frontend's streams on real registries in one event loop; the test is the engine."""

import asyncio
from collections.abc import Callable, Sequence

from frontend.streams import Generation, StreamHandle, Streams
from ipc.messages import (
    Abort,
    Cancel,
    ErrorResponse,
    Fail,
    Finish,
    GenerationRequest,
    Open,
    Outputs,
    Owner,
    Reassign,
    Sampling,
    Step,
    Tokens,
)
from postproc_workers.post_processor import PostProcessor
from postproc_workers.registry import Processor, Registry
from tests.postproc_workers.turns import NOW

OWNER = Owner(0, 1)


class LocalEngine:
    """The sequences that were asked for and not cancelled, and how much of each was said."""

    up = True

    def __init__(self) -> None:
        self.sequences: dict[int, GenerationRequest] = {}
        self.said: dict[int, int] = {}

    def send(self, message: GenerationRequest | Cancel | Reassign) -> None:
        assert not isinstance(message, Reassign)
        if isinstance(message, GenerationRequest):
            self.sequences[message.stream_id] = message
            self.said[message.stream_id] = 0
        else:
            del self.sequences[message.stream_id]


class LocalSystem:
    """Made in a running event loop, as deliveries wait for its next turn; or, while `withheld`,
    for `deliver`."""

    def __init__(
        self, workers: int = 1, make_processor: Callable[[Open], Processor] = PostProcessor
    ) -> None:
        self.registries = [Registry(make_processor) for _ in range(workers)]
        for registry in self.registries:
            registry.owner_arrived(OWNER)
        self.load = dict.fromkeys(range(workers), 0)
        self.up = list(range(workers))
        self.withheld = False
        self.engine = LocalEngine()
        self.streams = Streams(self, self.engine, max_streams=100)
        self._waiting: list[tuple[int, Outputs]] = []
        self._loop = asyncio.get_running_loop()

    def open(self, make_open: Callable[[int, int], Open]) -> StreamHandle:
        return self.streams.open(Generation([1], Sampling(max_tokens=1000), make_open))

    def send(self, worker: int, message: Open | Fail | Abort) -> None:
        self._reply(worker, self.registries[worker].handle(OWNER, message, NOW))

    def step(
        self,
        said: dict[int, list[int]],
        finish: Finish | None = None,
        errors: Sequence[ErrorResponse] = (),
    ) -> None:
        """One engine step: new tokens of streams, by id."""
        for worker, registry in enumerate(self.registries):
            here = {i for i, request in self.engine.sequences.items() if request.worker == worker}
            tokens = [self._tokens(i, ids, finish) for i, ids in said.items() if i in here]
            ended = tuple(error for error in errors if error.stream_id in here)
            self._reply(worker, registry.handle(OWNER, Step(tokens, ended), NOW))

    def deliver(self) -> None:
        """Let what was withheld, and all that comes, arrive."""
        self.withheld = False
        for worker, outputs in self._waiting:
            for output in outputs.outputs:
                self.streams.worker_output(worker, output)
        self._waiting.clear()

    @property
    def held(self) -> dict[str, int]:
        """All that is held for any stream, anywhere."""
        found = {
            "workers": sum(registry.live for registry in self.registries),
            "frontend": self.streams.live,
            "load": sum(self.load.values()),
            "engine": len(self.engine.sequences),
        }
        return {name: number for name, number in found.items() if number}

    @property
    def released(self) -> dict[str, int]:
        """How often streams were released, by reason."""
        return {
            reason: number
            for reason in self.registries[0].released
            if (number := sum(registry.released[reason] for registry in self.registries))
        }

    def _tokens(self, stream_id: int, ids: list[int], finish: Finish | None) -> Tokens:
        start = self.engine.said[stream_id]
        self.engine.said[stream_id] += len(ids)
        return Tokens(stream_id, self.engine.sequences[stream_id].lease, start, ids, finish)

    def _reply(self, worker: int, reply: object) -> None:
        if isinstance(reply, Outputs):
            self._waiting.append((worker, reply))
            self._loop.call_soon(self._deliver_unless_withheld)

    def _deliver_unless_withheld(self) -> None:
        if not self.withheld:
            self.deliver()


async def settle() -> None:
    """Let all that can happen without anybody's doing happen."""
    for _ in range(20):
        await asyncio.sleep(0)

"""What the engine's client makes of answers and of silence."""

import asyncio
from pathlib import Path

import zmq

from frontend.engine_client import UNRESPONSIVE_SECONDS, EngineClient
from ipc import codec
from ipc.messages import EngineInfo, Owner, Step

INFO = EngineInfo(version=1, model="tiny", context_length=64, vocabulary_size=300)


class Events:
    """A frontend that takes no notice."""

    def engine_step(self, worker: int, frame: bytes) -> None:
        pass

    def engine_up(self) -> None:
        pass

    def engine_lost(self, reason: str) -> None:
        pass


def test_the_states_of_an_engine(tmp_path: Path) -> None:
    asyncio.run(states(f"ipc://{tmp_path}/engine"))


async def states(address: str) -> None:
    now = [0.0]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = EngineClient(context, address, Owner(1, 1), Events(), clock=lambda: now[0])
    states = []

    def after(seconds: float) -> None:
        now[0] += seconds
        states.append(client.state)

    try:
        client.heartbeat()
        after(1000.0)
        client._receive([b"", codec.encode(INFO)])
        after(1000.0)
        client.heartbeat()
        after(UNRESPONSIVE_SECONDS)
        client.heartbeat()
        after(0.1)
        client._receive([b"0", codec.encode(Step([]))])
        after(0.0)
        assert client._link is not None
        client._link.close()
        client._lost("it is gone")
        after(0.0)
        client._receive([b"", codec.encode(INFO)])
        after(1000.0)
    finally:
        client.close()
        context.term()
    assert states == ["loading", "up", "up", "unresponsive", "up", "lost", "up"]

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
    client.heartbeat()
    now[0] += 1000.0
    assert client.state == "loading"
    client._receive([b"", codec.encode(INFO)])
    assert client.state == "up"
    now[0] += 1000.0
    assert client.state == "up"
    client.heartbeat()
    now[0] += UNRESPONSIVE_SECONDS
    client.heartbeat()
    assert client.state == "up"
    now[0] += 0.1
    assert client.state == "unresponsive"
    client._receive([b"0", codec.encode(Step())])
    assert client.state == "up"
    client._lost("it is gone")
    assert client.state == "lost"
    client._receive([b"", codec.encode(INFO)])
    now[0] += 1000.0
    assert client.state == "up"
    client.close()
    context.term()

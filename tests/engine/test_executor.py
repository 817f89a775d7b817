"""The executor over a real socket, in a thread, with the scripted core."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from engine.executor import EngineListener, Executor
from engine.scripted import Script, ScriptedCore, ScriptedError
from ipc import codec
from ipc.messages import Cancel, GenerationRequest, Goodbye, Owner
from tests.engine.builders import make_request
from tests.engine.client import Client

FOUR = [10, 11, 12, 13]
SCRIPTS = [
    Script(FOUR),
    Script(FOUR, then="hang"),
    Script(FOUR, tokens_per_step=2, error=ScriptedError(2)),
]
HANG, FAIL = 1, 2


class Clock:
    """The listener's time; the scripted core's stands still, as its scripts have no delays."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def running(address: str, clock: Clock | None = None) -> Iterator[Executor]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    core = ScriptedCore(SCRIPTS, Clock())
    clock = clock or Clock()
    listener: EngineListener = EngineListener(
        context, address, codec.frontend_to_engine, core.info, clock=clock
    )
    executor = Executor(core, listener)
    thread = threading.Thread(target=executor.run)
    thread.start()
    try:
        yield executor
    finally:
        executor.stop()
        thread.join()
        listener.close()
        context.term()


def test_requests_are_answered_by_worker_and_in_order(address: str) -> None:
    with running(address), Client(address) as client:
        assert client.info.model == "scripted"
        first = make_request(1, max_tokens=9)
        client.send(first)
        client.send(GenerationRequest(2, 2, 3, first.prompt, first.sampling))
        client.send(make_request(3, max_tokens=9, seed=FAIL))
        assert client.hear_end(1) == (FOUR, "stop")
        assert client.hear_end(2) == (FOUR, "stop")
        assert client.hear_end(3) == (FOUR[:2], "internal")
        workers = {t.stream_id: worker for worker, step in client.steps for t in step.tokens}
        assert workers == {1: 0, 2: 3, 3: 0}


def test_two_owners_with_the_same_stream_id(address: str) -> None:
    with running(address), Client(address) as one, Client(address, Owner(2, 1)) as two:
        one.send(make_request(1, max_tokens=2))
        two.send(make_request(1, max_tokens=3))
        assert one.hear_end(1) == (FOUR[:2], "length")
        assert two.hear_end(1) == (FOUR[:3], "length")


def test_cancel_and_status(address: str) -> None:
    with running(address), Client(address) as client:
        client.send(make_request(1, max_tokens=9, seed=HANG))
        client.hear_steps(4)
        assert client.status().running == 1
        client.send(Cancel(1, lease=2))
        client.send_raw(b"rubbish")
        status = client.status()
        assert (status.running, status.rejected) == (1, 2)
        client.send(Cancel(1, lease=1))
        assert client.status().running == 0


def test_goodbye_drops_what_the_owner_has(address: str) -> None:
    with running(address), Client(address, Owner(2, 1)) as watcher, Client(address) as client:
        client.send(make_request(1, max_tokens=9, seed=HANG))
        assert client.status().running == 1
        client.send(Goodbye())
        while watcher.status().running:
            pass


def test_silence_drops_what_the_owner_has(address: str) -> None:
    clock = Clock()
    with (
        running(address, clock),
        Client(address, Owner(2, 1)) as watcher,
        Client(address) as client,
    ):
        client.send(make_request(1, max_tokens=9, seed=HANG))
        client.hear_steps(4)
        clock.now += 6.0
        assert watcher.status().running == 1
        clock.now += 6.0
        while watcher.status().running:
            pass


def test_a_later_life_of_a_frontend_drops_the_earlier_ones_sequences(address: str) -> None:
    with running(address), Client(address) as old:
        old.send(make_request(1, max_tokens=9, seed=HANG))
        assert old.status().running == 1
        with Client(address, Owner(1, 2)) as new:
            assert new.status().running == 0


def test_stopping_tells_every_sequence(address: str) -> None:
    with running(address) as executor, Client(address) as client:
        client.send(make_request(1, max_tokens=9, seed=HANG))
        client.hear_steps(4)
        executor.stop()
        assert client.hear_end(1) == (FOUR, "overloaded")
        assert [error.message for error in client.errors()] == ["the engine is shutting down"]

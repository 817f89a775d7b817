"""One process an engine for all tests, started anew only if a test has ended it."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.engine.client import engine_address
from tests.engine_contract.engines import CONSTRAINING_KINDS, KINDS, Engine, Kind, installed
from tests.engine_contract.frontend import Frontend


class Processes:
    """The engine processes of a run, by the name of their kind."""

    def __init__(self, directories: pytest.TempPathFactory, stack: ExitStack) -> None:
        self._directories = directories
        self._stack = stack
        self._running: dict[str, Engine] = {}

    def get(self, kind: Kind) -> Engine:
        """A running engine of that kind."""
        engine = self._running.get(kind.name)
        if engine is None or engine.process.poll() is not None:
            address = self._stack.enter_context(engine_address())
            engine = Engine(kind, self._directories.mktemp(kind.name), address)
            self._running[kind.name] = engine
            self._stack.callback(self._end, engine)
        return engine

    @staticmethod
    def _end(engine: Engine) -> None:
        with engine.process as process:
            try:
                if process.poll() is None:
                    assert engine.terminate() == 0, engine.log
            finally:
                process.kill()


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path_factory, stack)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def engine(request: pytest.FixtureRequest, processes: Processes) -> Iterator[Engine]:
    """An engine of each kind."""
    yield from _checked(request.param, processes)


@pytest.fixture(params=CONSTRAINING_KINDS, ids=lambda kind: kind.name)
def constraining_engine(request: pytest.FixtureRequest, processes: Processes) -> Iterator[Engine]:
    """An engine that can constrain its output."""
    yield from _checked(request.param, processes)


def _checked(kind: Kind, processes: Processes) -> Iterator[Engine]:
    """An engine, which must hold nothing once the test is over."""
    if not installed(kind):
        pytest.skip(f"{kind.name}: {kind.needs_module} is not installed here")
    engine = processes.get(kind)
    yield engine
    if engine.process.poll() is None:
        with engine.frontend() as watcher:
            status = watcher.status()
        assert (status.running, status.waiting, status.kept) == (0, 0, 0)
        assert status.free_blocks == status.total_blocks


@pytest.fixture
def frontend(engine: Engine) -> Iterator[Frontend]:
    """A frontend of the engine."""
    with engine.frontend() as frontend:
        yield frontend

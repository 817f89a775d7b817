"""One server on the demo model for all client tests, and one that says what scripts.py tells it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.scripts import write_scripts
from tests.servers import Server, running

MODEL = "antiphon-demo"
NODE = Path(__file__).parent / "node"

MakeAsyncClient = Callable[[], AsyncOpenAI]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running("--num-postprocess-workers", "2") as server:
        yield server


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = write_scripts(tmp_path_factory.mktemp("scripts"))
    options = ["--script", str(script), "--served-model-name", MODEL]
    with running(*options, "--num-postprocess-workers", "2") as server:
        yield server


@pytest.fixture(scope="session")
def without_error_event(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same as `scripted`, but that a stream that fails has no `error` event."""
    script = write_scripts(tmp_path_factory.mktemp("scripts"))
    options = ["--script", str(script), "--served-model-name", MODEL]
    with running(*options, "--stream-error-event", "off") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def make_async_client(server: Server) -> MakeAsyncClient:
    def make() -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    return make


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no stream is live on any worker, and the engine holds no block."""
    yield
    for name in {"server", "scripted"} & set(request.fixturenames):
        server: Server = request.getfixturevalue(name)
        server.wait_until_idle()
        metrics = server.metrics()
        assert metrics["antiphon_engine_free_blocks"] == metrics["antiphon_engine_total_blocks"]

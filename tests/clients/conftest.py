"""One server on the demo model for all client tests."""

from collections.abc import Callable, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.servers import Server, running

MODEL = "antiphon-demo"

MakeAsyncClient = Callable[[], AsyncOpenAI]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running("--num-postprocess-workers", "2") as server:
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
def nothing_left(server: Server) -> Iterator[None]:
    """After each test no stream is live on any worker, and the engine holds no block."""
    yield
    server.wait_until_idle()
    metrics = server.metrics()
    assert metrics["antiphon_engine_free_blocks"] == metrics["antiphon_engine_total_blocks"]

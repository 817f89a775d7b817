"""Servers with a scripted engine, shared by the tests that leave them as they found them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.scripts import write_scripts
from tests.servers import Server, running


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripts(tmp_path_factory.mktemp("scripts"))


@pytest.fixture(scope="module", params=[0, 1, 3], ids=lambda n: f"workers-{n}")
def server(scripts: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with 0, 1 and 3 workers; every test must leave nothing live."""
    arguments = ["--script", str(scripts), "--num_postprocess_workers", str(request.param)]
    with running(*arguments, "--served-model-name", "scripted") as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on a shared server nothing is live, at once or after the leaving client."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_until_idle()

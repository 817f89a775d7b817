"""The real vLLM: what the fake stands for is there, and what becomes of its processes."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import psutil
import pytest

from engine.vllm.__main__ import EXIT_DIED
from engine.vllm.requests import Abilities, work_of
from ipc.process import EXIT_CONFIGURATION
from ipc.vocabulary import SIZE
from tests.engine.builders import INFO, make_request
from tests.engine.checkpoints import random_tensors, save, small_config
from tests.engine.client import engine_address
from tests.engine.vllm.fake import FakeAsyncLlm
from tests.engine_contract.engines import STOP_SECONDS, VLLM, Engine
from tests.servers import running

pytest.importorskip("vllm", reason="vLLM is not installed here")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_the_fake_has_the_signatures_of_the_real_one() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    for name in ("generate", "shutdown"):
        fake = inspect.signature(getattr(FakeAsyncLlm, name)).parameters
        real = inspect.signature(getattr(AsyncLLM, name)).parameters
        for parameter in fake.values():
            assert real[parameter.name].kind == parameter.kind
            assert real[parameter.name].default == parameter.default
        beyond = [real[other] for other in real.keys() - fake.keys()]
        assert all(parameter.default is not inspect.Parameter.empty for parameter in beyond)
    assert isinstance(AsyncLLM.errored, property)


def test_vllm_has_the_fields_that_are_set_and_read() -> None:
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    request = make_request(1, seed=1, top_p=0.5, top_k=1, min_p=0.1, logit_bias={1: 1.0})
    SamplingParams(**work_of(request, INFO, Abilities()).sampling)
    assert {"token_ids", "logprobs", "finish_reason"} <= get_type_hints(CompletionOutput).keys()
    assert {"logprob", "rank"} <= get_type_hints(Logprob).keys()
    told = SchedulerStats()
    assert (told.num_waiting_reqs, told.num_skipped_waiting_reqs, told.kv_cache_usage) == (0, 0, 0)
    assert (told.prefix_cache_stats.queries, told.prefix_cache_stats.hits) == (0, 0)
    assert IterationStats().num_preempted_reqs == 0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with engine_address() as address:
        engine = Engine(VLLM, tmp_path, address)
        with engine.process as process:
            yield engine
            process.kill()


def _children(engine: Engine) -> list[psutil.Process]:
    children = psutil.Process(engine.process.pid).children(recursive=True)
    assert any("EngineCore" in child.name() for child in children)
    return children


def test_when_its_engine_process_dies_so_does_ours(engine: Engine) -> None:
    children = _children(engine)
    next(child for child in children if "EngineCore" in child.name()).kill()
    assert engine.process.wait(STOP_SECONDS) == EXIT_DIED, engine.log
    assert not psutil.wait_procs(children, STOP_SECONDS)[1]


def test_when_ours_is_killed_its_processes_end(engine: Engine) -> None:
    children = _children(engine)
    engine.process.kill()
    assert not psutil.wait_procs(children, STOP_SECONDS)[1]


def test_a_server_gets_a_new_engine_when_vllm_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VLLM.environment.items():
        monkeypatch.setenv(name, value)
    config = small_config(vocab_size=SIZE, hidden_size=32, num_hidden_layers=2)
    model = save(tmp_path / "model", config, random_tensors(config))
    request = {"model": "model", "input": "Hi", "max_output_tokens": 16, "temperature": 0}
    with running(str(model), "--engine", "vllm", "--", "--enforce-eager") as server:
        status, before = server.post("/v1/responses", request)
        assert (status, before["usage"]["output_tokens"]) == (200, 16)
        children = psutil.Process(server.process.pid).children(recursive=True)
        next(child for child in children if "EngineCore" in child.name()).kill()
        server.wait_until(lambda: server.get("/health")[0] == 503)
        server.wait_until(lambda: server.get("/health")[0] == 200, seconds=60)
        status, after = server.post("/v1/responses", request)
        assert (status, after["usage"]) == (200, before["usage"])
        server.wait_until_idle()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--max-model-len", "many"], "--max-model-len"),
        ([], "nowhere"),
    ],
)
def test_what_cannot_be_started_says_why_once(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "engine.vllm", "--listen", "ipc:///nowhere/engine"]
    ended = subprocess.run(
        [*command, "--model", "/nowhere", *options],
        capture_output=True,
        text=True,
        env=os.environ | VLLM.environment,
        timeout=60,
    )
    assert ended.returncode == EXIT_CONFIGURATION, ended.stderr
    assert said in ended.stderr

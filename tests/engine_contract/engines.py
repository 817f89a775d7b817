"""The engines of the contract: how each is started, and what it cannot do by its nature."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ipc.messages import Goodbye, Owner
from ipc.vocabulary import SIZE
from tests.engine.checkpoints import random_tensors, save, small_config
from tests.engine_contract.frontend import Frontend

NAME = "contract"
CONTEXT_LENGTH = 2048
STOP_SECONDS = 30

_SCRIPTS = [
    {"tokens": list(range(first, first + 30)), "interval": 0.001, "then": "repeat"}
    for first in (10, 50)
]
_FOLLOWS = "it follows its script whatever the sampling"


@dataclass(frozen=True, slots=True)
class Kind:
    """One engine. `options` makes those of its process, which may need files in a directory, with
    `config` for the checkpoint; `lacks` gives the reason for each thing that it cannot do."""

    name: str
    module: str
    options: Callable[[Path, dict[str, Any]], list[str]]
    lacks: dict[str, str] = field(default_factory=dict)
    needs_module: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def _torch_options(directory: Path, config: dict[str, Any]) -> list[str]:
    return ["--model", _checkpoint(directory, config), "--blocks", "2000", "--threads", "1"]


def _vllm_options(directory: Path, config: dict[str, Any]) -> list[str]:
    model = _checkpoint(directory, config)
    options = ["--model", model, "--enforce-eager", "--dtype", "float32"]
    return options + (["--constraints"] if config else [])


def _scripted_options(directory: Path, config: dict[str, Any]) -> list[str]:
    path = directory / "scripts.json"
    path.write_text(json.dumps({"scripts": _SCRIPTS}))
    return ["--scripts", str(path)]


def _checkpoint(directory: Path, changes: dict[str, Any]) -> str:
    config = small_config(**changes)
    return str(save(directory / "tiny", config, random_tensors(config)))


TORCH = Kind("torch", "engine", _torch_options)
SCRIPTED = Kind(
    "scripted",
    "engine.scripted",
    _scripted_options,
    lacks={
        "sampling": _FOLLOWS,
        "logprobs": "scripts have none",
        "prefix_cache": "it has no cache",
    },
)
VLLM = Kind(
    "vllm",
    "engine.vllm",
    _vllm_options,
    needs_module="vllm",
    environment={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    },
)
KINDS = (TORCH, SCRIPTED, VLLM)

_O200K = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2}
"""Constraints need the vocabulary; the model is all the smaller for it."""
CONSTRAINING_KINDS = tuple(
    replace(kind, name=f"{kind.name}-o200k", config=_O200K) for kind in (TORCH, VLLM)
)


class Engine:
    """A running engine process. Every frontend of it has an id of its own, so that tests that
    share a process share nothing else."""

    _ids = count(1)

    def __init__(self, kind: Kind, directory: Path, address: str) -> None:
        self.kind = kind
        self.address = address
        self._log = directory / "log"
        common = ["--listen", address, "--name", NAME, "--context-length", str(CONTEXT_LENGTH)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", kind.module, *kind.options(directory, kind.config), *common],
                stderr=log,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | kind.environment,
            )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        """Wait for its socket, as long as the process lives: vLLM takes half a minute."""
        socket = Path(self.address.removeprefix("ipc://"))
        while not socket.exists():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
                raise AssertionError(self.log)

    def need(self, ability: str) -> None:
        """Skip the test, with the reason, if this engine cannot do that."""
        if ability in self.kind.lacks:
            pytest.skip(f"{self.kind.name}: {self.kind.lacks[ability]}")

    @contextmanager
    def frontend(self, owner: Owner | None = None) -> Iterator[Frontend]:
        """A frontend that says Goodbye at the end."""
        owner = owner or self.new_owner()
        with Frontend(self.address, owner) as frontend:
            try:
                yield frontend
            finally:
                frontend.send(Goodbye())
            # Closing at once could lose it.
            frontend.wait_until_refused()

    def new_owner(self) -> Owner:
        """An owner that nobody else is."""
        return Owner(next(self._ids), 1)

    def terminate(self) -> int:
        """End the process as the supervisor does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    @property
    def log(self) -> str:
        """What the process has written to standard error."""
        return self._log.read_text()


def installed(kind: Kind) -> bool:
    """Whether the engine's library is there."""
    return kind.needs_module is None or importlib.util.find_spec(kind.needs_module) is not None

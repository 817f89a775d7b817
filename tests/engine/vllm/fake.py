"""A fake AsyncLLM: it has the methods that are used of vLLM's, and follows a script a prompt."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.vllm.requests import Logprob


@dataclass(slots=True)
class FakeLogprob:
    logprob: float
    rank: int | None


@dataclass(slots=True)
class FakeCompletion:
    token_ids: Sequence[int]
    finish_reason: str | None = None
    logprobs: Sequence[Mapping[int, Logprob]] | None = None


@dataclass(slots=True)
class FakeOutput:
    outputs: Sequence[FakeCompletion]
    num_cached_tokens: int | None = 0


def said(*ids: int, finish: str | None = None, cached: int | None = 0) -> FakeOutput:
    """An output with these new tokens."""
    return FakeOutput([FakeCompletion(ids, finish)], cached)


HANG = object()
"""In a script: nothing more comes until the request is aborted."""
GATE = object()
"""In a script: nothing more comes until the test opens the gate for all."""

ScriptItem = FakeOutput | Exception | object


@dataclass(slots=True)
class FakeAsyncLlm:
    """Follows, for a prompt, the script of its first token. `errored` may be set by the test;
    `at_gate` is released by each request that gets to a gate, `idle` set by an aborted one."""

    scripts: dict[int, list[ScriptItem]]
    errored: bool = False
    calls: dict[str, tuple[Any, Any, int]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    shut_down: bool = False
    idle: threading.Event = field(default_factory=threading.Event)
    at_gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None

    def open_gate(self, requests: int) -> None:
        """Once so many requests are there, let all of them go on in one round of the loop."""
        for _ in range(requests):
            assert self.at_gate.acquire(timeout=10)
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self.gate.set()
        self.gate = asyncio.Event()

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[FakeOutput, None]:
        self.calls[request_id] = (prompt, sampling_params, priority)
        try:
            for item in self.scripts[prompt["prompt_token_ids"][0]]:
                if isinstance(item, FakeOutput):
                    yield item
                elif isinstance(item, Exception):
                    raise item
                elif item is GATE:
                    self.loop = asyncio.get_running_loop()
                    self.at_gate.release()
                    await self.gate.wait()
                else:
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            self.idle.set()
            raise

    def shutdown(self, timeout: float | None = None) -> None:
        self.shut_down = True

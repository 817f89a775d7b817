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

ScriptItem = FakeOutput | Exception | object


@dataclass(slots=True)
class FakeAsyncLlm:
    """Follows, for a prompt, the script of its first token. A script's items come in steps that
    all requests share, as vLLM's do; `errored` may be set by the test."""

    scripts: dict[int, list[ScriptItem]]
    errored: bool = False
    calls: dict[str, tuple[Any, Any, int]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    shut_down: bool = False
    idle: threading.Event = field(default_factory=threading.Event)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[FakeOutput, None]:
        self.calls[request_id] = (prompt, sampling_params, priority)
        try:
            for item in self.scripts[prompt["prompt_token_ids"][0]]:
                await asyncio.sleep(0)
                if isinstance(item, FakeOutput):
                    yield item
                elif isinstance(item, Exception):
                    raise item
                else:
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            self.idle.set()
            raise

    def shutdown(self, timeout: float | None = None) -> None:
        self.shut_down = True

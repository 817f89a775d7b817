"""The engine core that lets vLLM generate: the books are ours, the scheduler and the model its."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine.admission import RequestError, check_request
from engine.ledger import Entry, ErrorCode, Ledger, Steps
from engine.vllm.generations import Generations
from engine.vllm.requests import Abilities, Output, finish_of, logprobs_of, work_of
from ipc.grammars import GrammarError
from ipc.messages import (
    BlockEvents,
    EngineInfo,
    EngineStatus,
    GenerationRequest,
    Owner,
    Reassign,
)

log = logging.getLogger(__name__)

FULL = "too many requests wait for this engine"


class EngineDiedError(Exception):
    """vLLM's engine process is gone, and with it all sequences."""


class EngineHungError(Exception):
    """vLLM has brought nothing for too long, though it has sequences to run."""


@dataclass(slots=True)
class Counters:
    """What vLLM tells of itself, by its stat loggers: from its thread, and late by a step."""

    steps: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Take the `SchedulerStats` and `IterationStats` of a step; either may be None."""
        self.steps += 1
        if scheduler is not None:
            self.waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.cache_usage = scheduler.kv_cache_usage
            self.prefix_queried_tokens += scheduler.prefix_cache_stats.queries
            self.prefix_hit_tokens += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self.preemptions += iteration.num_preempted_reqs


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one engine. `live` requests at most are with vLLM; it is given up after `silence`
    seconds without a word. `error_code` tells whose fault an exception of vLLM's is."""

    live: int
    silence: float
    total_blocks: int = 0
    abilities: Abilities = field(default_factory=Abilities)
    error_code: Callable[[Exception], ErrorCode] = field(default=lambda _: "internal")


@dataclass(slots=True, eq=False)
class Generation:
    """A sequence that vLLM has."""

    number: int
    entry: "Entry[Generation]"
    request: GenerationRequest


class VllmCore:
    """An engine core over vLLM. `clock` gives seconds, monotonic.

    `wait` and `step` raise EngineDiedError or EngineHungError when vLLM is of no more use: the
    process is then to end, and frontends do what they do when an engine is lost.
    """

    def __init__(
        self,
        info: EngineInfo,
        generations: Generations,
        counters: Counters,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self.info = info
        self._generations = generations
        self._counters = counters
        self._limits = limits
        self._clock = clock
        self._heard = clock()
        self._ledger = Ledger[Generation]()
        self._live: dict[int, Generation] = {}
        self._numbers = count()
        self._generated_tokens = self._prompt_tokens = 0

    def hello(self, owner: Owner) -> None:
        self._ledger.hello(owner)

    def add(self, owner: Owner, request: GenerationRequest) -> None:
        entry = self._ledger.open(owner, request, drop=self._drop)
        if entry is None:
            return
        try:
            check_request(request, self.info)
            work = work_of(request, self.info, self._limits.abilities)
            if len(self._live) >= self._limits.live:
                raise RequestError("overloaded", FULL)
        except RequestError as error:
            self._ledger.say_error(entry, error.code, str(error))
            return
        if not self._live:
            self._heard = self._clock()
        generation = Generation(next(self._numbers), entry, request)
        entry.sequence = self._live[generation.number] = generation
        self._generations.start(generation.number, work)

    def cancel(self, owner: Owner, stream_id: int, lease: int) -> None:
        generation = self._ledger.close(owner, stream_id, lease)
        if generation is not None:
            self._drop(generation)

    def reassign(self, owner: Owner, message: Reassign) -> None:
        self._ledger.reassign(owner, message)

    def watch_blocks(self, owner: Owner) -> None:
        """vLLM names its blocks in a way of its own; `block_size` 0 says that nothing is told."""

    def block_events(self) -> dict[Owner, BlockEvents]:
        return {}

    def owner_lost(self, owner: Owner) -> None:
        for generation in self._ledger.forget(owner):
            self._drop(generation)

    def shut_down(self) -> None:
        self._ledger.shut_down(self._drop)

    def wait(self) -> float | None:
        if self._generations.dead:
            raise EngineDiedError("vLLM's engine process has died")
        if self._ledger.unsent or self._generations.pending:
            return 0.0
        silence = self._clock() - self._heard
        if self._live and silence > self._limits.silence:
            raise EngineHungError(f"vLLM has brought nothing for {silence:.0f} s")
        return None

    def step(self) -> Steps:
        for number, event in self._generations.take():
            self._heard = self._clock()
            generation = self._live.get(number)
            if generation is None:
                continue
            if event is None:
                event = ValueError("vLLM has not said how it ended")
            if isinstance(event, Exception):
                self._fail(generation, event)
            else:
                self._accept(generation, event)
        return self._ledger.take()

    def status(self) -> EngineStatus:
        counters, live = self._counters, len(self._live)
        # What vLLM told last may be of a time when it had more to do.
        waiting = min(counters.waiting, live)
        used = counters.cache_usage if live else 0.0
        total = self._limits.total_blocks
        return EngineStatus(
            running=live - waiting,
            waiting=waiting,
            free_blocks=round(total * (1.0 - used)),
            total_blocks=total,
            steps=counters.steps,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            preemptions=counters.preemptions,
            errors=self._ledger.errors,
            rejected=self._ledger.stale,
            kept=self._ledger.kept,
            prefix_queried_tokens=counters.prefix_queried_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
        )

    def _accept(self, generation: Generation, output: Output) -> None:
        entry = generation.entry
        [completion] = output.outputs
        if not entry.said:
            self._prompt_tokens += len(generation.request.prompt)
            entry.cached_tokens = output.num_cached_tokens or 0
        try:
            finish = finish_of(completion)
        except ValueError as error:
            self._fail(generation, error)
            return
        ids = list(completion.token_ids)
        logprobs = logprobs_of(completion, generation.request.sampling.logprobs)
        self._generated_tokens += len(ids)
        if finish is not None:
            del self._live[generation.number]
        if ids or finish is not None:
            self._ledger.say(entry, ids, finish, logprobs)

    def _fail(self, generation: Generation, error: Exception) -> None:
        if self._generations.dead:
            raise EngineDiedError("vLLM's engine process has died") from error
        entry, code = generation.entry, self._limits.error_code(error)
        if isinstance(error, GrammarError):
            code, reason = "invalid_request", f"the grammar cannot be compiled: {error}"
        elif code == "internal":
            log.error("stream %d of %s", entry.stream_id, entry.owner, exc_info=error)
            reason = f"the engine failed on this request ({type(error).__name__})"
        else:
            reason = str(error)
        self._drop(generation)
        self._ledger.say_error(entry, code, reason)

    def _drop(self, generation: Generation) -> None:
        """Give a sequence up."""
        del self._live[generation.number]
        self._generations.abort(generation.number)

"""The engine as a plain object: messages in, one `Step` a destination and step out.

`EngineCore` is what the executor drives; `ModelCore` here runs a model, `engine.scripted` replays
scripts. No sockets, no clock and, but for the runner that is handed in, no torch.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from engine.admission import RequestError, check_request
from engine.batch import Sampled
from engine.block_watch import BlockWatch
from engine.constraint import (
    CompiledConstraint,
    ConstraintError,
    TurnConstraint,
    compile_constraint,
)
from engine.faults import is_out_of_memory
from engine.ledger import Entry, ErrorCode, Ledger, Steps
from engine.scheduler import Scheduled, Scheduler
from engine.sequence import Sequence
from ipc.grammars import GrammarError
from ipc.messages import (
    BlockEvents,
    Constraint,
    EngineInfo,
    EngineStatus,
    GenerationRequest,
    Owner,
    Reassign,
)

log = logging.getLogger(__name__)

COMPILE_SECONDS = 0.002
"""How soon an engine that has nothing else to do looks for a compiled constraint again."""
OUT_OF_MEMORY = "the engine has run out of memory"
OUTGROWN = "the prompt and its output need more KV cache than this engine has"


class EngineCore(Protocol):
    """The decisions of an engine process; each method returns at once but `step`."""

    @property
    def info(self) -> EngineInfo:
        """What frontends must know."""
        ...

    def hello(self, owner: Owner) -> None:
        """A frontend has connected."""
        ...

    def add(self, owner: Owner, request: GenerationRequest) -> None:
        """Take a request; if it cannot be served, the next step says so."""
        ...

    def cancel(self, owner: Owner, stream_id: int, lease: int) -> None:
        """Drop a sequence and what is kept of it, if the lease is its own. Idempotent."""
        ...

    def reassign(self, owner: Owner, message: Reassign) -> None:
        """Say a stream again, from its first token, to the worker that has it now."""
        ...

    def watch_blocks(self, owner: Owner) -> None:
        """Tell an owner of the blocks in the prefix cache, if there is one."""
        ...

    def owner_lost(self, owner: Owner) -> None:
        """Drop all that an owner has."""
        ...

    def shut_down(self) -> None:
        """End every sequence with an error, which the next step says."""
        ...

    def wait(self) -> float | None:
        """Seconds until a step has something to do: 0 for now, None for not before a message."""
        ...

    def step(self) -> Steps:
        """Do a step's work. Never raises for what belongs to one sequence."""
        ...

    def block_events(self) -> dict[Owner, BlockEvents]:
        """What owners who watch the prefix cache must be told since the last call."""
        ...

    def status(self) -> EngineStatus:
        """Counts since the start; `rejected` are the stale messages."""
        ...


class Runner(Protocol):
    """Computes scheduled tokens. Running the same again must give the same."""

    def run(self, scheduled: Sequences[Scheduled]) -> list[Sampled | None]:
        """The next token of each scheduled sequence that is caught up with, else None."""
        ...


Compile = Callable[[Constraint], Future[CompiledConstraint]]


def _compile_in_thread() -> Compile:
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile")
    return lambda constraint: pool.submit(compile_constraint, constraint)


class ModelCore:
    """An engine core that generates with a model.

    `new_seed` draws the seeds of requests that bring none. At most `max_waiting` sequences wait;
    more are answered with an overload error. `compile_constraint` works aside, so that what is
    slow to compile holds up its own sequence alone. `clock`, in seconds, tells the scheduler how
    long steps take.
    """

    def __init__(
        self,
        info: EngineInfo,
        runner: Runner,
        scheduler: Scheduler,
        new_seed: Callable[[], int],
        max_waiting: int = 4096,
        compile_constraint: Compile | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.info = info
        self._runner = runner
        self._scheduler = scheduler
        self._watch = BlockWatch(scheduler.cache.blocks)
        self._new_seed = new_seed
        self._max_waiting = max_waiting
        self._compile = compile_constraint or _compile_in_thread()
        self._clock = clock
        self._compiling: dict[Sequence, Future[CompiledConstraint]] = {}
        self._ledger = Ledger[Sequence]()
        self._steps = self._generated_tokens = self._prompt_tokens = 0

    def hello(self, owner: Owner) -> None:
        self._ledger.hello(owner)

    def add(self, owner: Owner, request: GenerationRequest) -> None:
        entry = self._ledger.open(owner, request, drop=self._drop)
        if entry is None:
            return
        try:
            check_request(request, self.info)
            if self._scheduler.waiting + len(self._compiling) >= self._max_waiting:
                raise RequestError("overloaded", "too many requests wait for this engine")
        except RequestError as error:
            self._ledger.say_error(entry, error.code, str(error))
            return
        entry.sequence = self._sequence(entry, request)
        if request.constraint is None:
            self._scheduler.add(entry.sequence)
        else:
            self._compiling[entry.sequence] = self._compile(request.constraint)

    def cancel(self, owner: Owner, stream_id: int, lease: int) -> None:
        sequence = self._ledger.close(owner, stream_id, lease)
        if sequence is not None:
            self._drop(sequence)

    def reassign(self, owner: Owner, message: Reassign) -> None:
        self._ledger.reassign(owner, message)

    def watch_blocks(self, owner: Owner) -> None:
        self._watch.watch(owner)

    def owner_lost(self, owner: Owner) -> None:
        self._watch.forget(owner)
        for sequence in self._ledger.forget(owner):
            self._drop(sequence)

    def shut_down(self) -> None:
        self._ledger.shut_down(self._drop)

    def wait(self) -> float | None:
        scheduler = self._scheduler
        if self._ledger.unsent or scheduler.running or scheduler.waiting:
            return 0.0
        if not self._compiling:
            return None
        return 0.0 if any(future.done() for future in self._compiling.values()) else COMPILE_SECONDS

    def step(self) -> Steps:
        self._take_compiled()
        plan = self._scheduler.schedule()
        for sequence in plan.outgrown:
            self._ledger.say_error(sequence.entry, "context_length_exceeded", OUTGROWN)
        if plan.scheduled:
            self._steps += 1
            self._run(plan.scheduled)
        return self._ledger.take()

    def block_events(self) -> dict[Owner, BlockEvents]:
        return self._watch.take()

    def status(self) -> EngineStatus:
        cache = self._scheduler.cache
        return EngineStatus(
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting + len(self._compiling),
            free_blocks=cache.free_blocks,
            total_blocks=cache.blocks.pool.total,
            steps=self._steps,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            preemptions=self._scheduler.preemptions,
            errors=self._ledger.errors,
            rejected=self._ledger.stale,
            kept=self._ledger.kept,
            prefix_queried_tokens=cache.queried_tokens,
            prefix_hit_tokens=cache.hit_tokens,
            cached_blocks=cache.blocks.idle_blocks,
            evicted_blocks=cache.blocks.evictions,
        )

    def _sequence(self, entry: Entry[Sequence], request: GenerationRequest) -> Sequence:
        sampling, prompt = request.sampling, request.prompt
        return Sequence(
            entry=entry,
            prompt_tokens=len(prompt),
            tokens=list(prompt),
            sampling=sampling,
            seed=self._new_seed() if sampling.seed is None else sampling.seed,
            length_limit=min(len(prompt) + sampling.max_tokens, self.info.context_length),
            tenant=request.tenant,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )

    def _take_compiled(self) -> None:
        """Let the sequences wait for their turn whose constraints are compiled."""
        for sequence in [s for s, future in self._compiling.items() if future.done()]:
            try:
                compiled = self._compiling.pop(sequence).result()
            except GrammarError as error:
                reason = f"the grammar cannot be compiled: {error}"
                self._ledger.say_error(sequence.entry, "invalid_request", reason)
                continue
            except Exception as error:
                self._tell(sequence, error, "internal", _failed(error))
                continue
            sequence.constraint = TurnConstraint(compiled)
            self._scheduler.add(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Give up a sequence, wherever it is."""
        future = self._compiling.pop(sequence, None)
        if future is None:
            self._scheduler.remove(sequence)
        else:
            future.cancel()

    def _run(self, scheduled: Sequences[Scheduled]) -> None:
        """Run and accept; when that raises, less at a time, so that only those end that raise
        alone."""
        started = self._clock() if self._clock is not None else 0.0
        try:
            results = self._runner.run(scheduled)
        except Exception as error:
            if is_out_of_memory(error):
                self._shed(scheduled, error)
            elif len(scheduled) > 1:
                log.warning("a step failed, its sequences run one by one: %r", error)
                for item in scheduled:
                    self._run([item])
            elif isinstance(error, GrammarError):
                self._fail(scheduled[0].sequence, error, "invalid_request", str(error))
            else:
                self._fail(scheduled[0].sequence, error, "internal", _failed(error))
            return
        if self._clock is not None:
            self._scheduler.observe(scheduled, self._clock() - started)
        for item, sampled in zip(scheduled, results, strict=True):
            self._accept(item, sampled)

    def _shed(self, scheduled: Sequences[Scheduled], error: Exception) -> None:
        """After running out of memory: plan smaller steps from now on, and run this one in halves,
        of its sequences or of a lone one's tokens. Only a lone token's sequence ends."""
        tokens = sum(item.count for item in scheduled)
        self._scheduler.limit_step(tokens // 2)
        if len(scheduled) > 1:
            log.warning("out of memory in a step of %d tokens, it runs in halves", tokens)
            middle = len(scheduled) // 2
            self._run(scheduled[:middle])
            self._run(scheduled[middle:])
        elif tokens > 1:
            # The other half follows in the next steps.
            self._run([Scheduled(scheduled[0].sequence, tokens // 2)])
        else:
            self._fail(scheduled[0].sequence, error, "overloaded", OUT_OF_MEMORY)

    def _accept(self, item: Scheduled, sampled: Sampled | None) -> None:
        sequence = item.sequence
        self._scheduler.advance(item)
        if sampled is None:
            return
        if not sequence.output_tokens:
            self._prompt_tokens += sequence.prompt_tokens
            sequence.entry.cached_tokens = sequence.cached_tokens or 0
        self._generated_tokens += 1
        try:
            finish = sequence.append(sampled.token)
        except ConstraintError as error:
            self._fail(sequence, error, "internal", _failed(error))
            return
        if finish is not None:
            self._scheduler.remove(sequence)
        logprobs = None if sampled.logprobs is None else [sampled.logprobs]
        self._ledger.say(sequence.entry, [sampled.token], finish, logprobs)

    def _fail(self, sequence: Sequence, error: Exception, code: ErrorCode, reason: str) -> None:
        self._scheduler.remove(sequence)
        self._tell(sequence, error, code, reason)

    def _tell(self, sequence: Sequence, error: Exception, code: ErrorCode, reason: str) -> None:
        entry = sequence.entry
        log.error("stream %d of %s", entry.stream_id, entry.owner, exc_info=error)
        self._ledger.say_error(entry, code, reason)


def _failed(error: Exception) -> str:
    return f"the engine failed on this request ({type(error).__name__})"

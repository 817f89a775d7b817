"""vLLM's AsyncLLM is asyncio, our executor a loop of its own: this is where they meet.

The event loop runs in a thread, with a task a request. What the tasks bring is handed over in
batches, one for all that vLLM brought at once, and wakes the executor.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from engine.constraint import compile_constraint
from engine.vllm.requests import Output, Work


class AsyncLlm(Protocol):
    """What is used of `vllm.v1.engine.async_llm.AsyncLLM`."""

    @property
    def errored(self) -> bool:
        """Whether its engine process has died."""
        ...

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Output, None]:
        """Outputs until one of them has a finish reason. Cancelled, it aborts the request."""
        ...

    def shutdown(self, timeout: float | None = None) -> None:
        """End its engine process, by force after `timeout` seconds."""
        ...


Event = tuple[int, Output | Exception | None]
"""A generation's number with what it brought: an output, an error, or None after its last one."""

CLOSE_SECONDS = 1.0
SHUTDOWN_SECONDS = 2.0
"""Less than the supervisor waits, so that no process of vLLM's is left behind."""


class Generations:
    """Generations of `llm` by number, begun and given up from any one thread. `make_params` makes
    vLLM's SamplingParams of a request's fields; `wake` is called when there is something to take.
    """

    def __init__(
        self, llm: AsyncLlm, make_params: Callable[[dict[str, Any]], Any], wake: Callable[[], None]
    ) -> None:
        self._llm = llm
        self._make_params = make_params
        self._wake = wake
        self._fresh: list[Event] = []
        self._taken: deque[Event] = deque()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()

    @property
    def dead(self) -> bool:
        """Whether nothing will come any more."""
        return self._llm.errored

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._taken)

    def start(self, number: int, work: Work) -> None:
        """Begin a generation."""
        self._loop.call_soon_threadsafe(self._start, number, work)

    def abort(self, number: int) -> None:
        """Give a generation up; what it still brings does not matter. Idempotent."""
        self._loop.call_soon_threadsafe(self._abort, number)

    def take(self) -> list[Event]:
        """What came since the last call."""
        return [self._taken.popleft() for _ in range(len(self._taken))]

    def close(self) -> None:
        """Give all generations up; end vLLM, and then the thread with the tasks of vLLM's own."""
        self._end_tasks()
        self._llm.shutdown(SHUTDOWN_SECONDS)
        self._end_tasks()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        self._loop.close()

    def _end_tasks(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(2 * CLOSE_SECONDS)

    # --- in the event loop's thread ---

    def _start(self, number: int, work: Work) -> None:
        task = self._loop.create_task(self._run(number, work))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number))

    def _abort(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _run(self, number: int, work: Work) -> None:
        try:
            if work.constraint is not None:
                # Here, where a failure is the request's own, and not in vLLM's step.
                await asyncio.to_thread(compile_constraint, work.constraint)
            params = self._make_params(work.sampling)
            outputs = self._llm.generate(work.prompt, params, str(number), priority=work.priority)
            async for output in outputs:
                self._bring(number, output)
        except Exception as error:
            self._bring(number, error)
        else:
            self._bring(number, None)

    def _bring(self, number: int, event: Output | Exception | None) -> None:
        if not self._fresh:
            # Behind all tasks that the same step of vLLM has made ready.
            self._loop.call_soon(self._hand_over)
        self._fresh.append((number, event))

    def _hand_over(self) -> None:
        self._taken.extend(self._fresh)
        self._fresh.clear()
        self._wake()

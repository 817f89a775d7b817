"""Ends the process when a step hangs, so that the supervisor starts a new engine."""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from ipc.process import EXIT_HUNG

log = logging.getLogger(__name__)

DEFAULT_STEP_SECONDS = 120.0
CHECK_SECONDS = 0.5


class StepTimer:
    """How long the running step takes. `clock` gives seconds, monotonic; the thread that steps
    calls `begin` and `end`, any other may ask."""

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._began: float | None = None

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()

    def end(self) -> None:
        """The step has ended."""
        self._began = None

    @property
    def overdue(self) -> bool:
        """Whether a step runs that has taken more than the limit."""
        began = self._began
        return began is not None and self._clock() - began > self.limit


def watch(timer: StepTimer) -> None:
    """From a thread of its own, end this process with `EXIT_HUNG` once a step is overdue."""
    threading.Thread(target=_watch, args=(timer,), name="watchdog", daemon=True).start()


def _watch(timer: StepTimer) -> None:
    pause = threading.Event()
    while not timer.overdue:
        # A step that hangs with the interpreter's lock held stops this thread too; faulthandler's
        # own needs no lock, and fires if it is not set anew in time.
        faulthandler.dump_traceback_later(timer.limit + 10 * CHECK_SECONDS, exit=True)
        pause.wait(min(CHECK_SECONDS, timer.limit / 4))
    _end(timer.limit)


def _end(limit: float) -> NoReturn:
    log.critical("a step has taken more than %g s; the stacks follow and the engine ends", limit)
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_HUNG)

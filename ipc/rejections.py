"""Counts what was refused and says so in the log, at most once a minute."""

import logging
import time
from collections.abc import Callable

_LOG_EVERY_SECONDS = 60.0


class Rejections:
    """A counter with a log line. `what` names the link; `clock` gives seconds, monotonic."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._what = what
        self._clock = clock
        self._logged_count = 0
        self._next_log = float("-inf")
        self._logger = logging.getLogger(__name__)

    def add(self, reason: object) -> None:
        """Count one refused message; `reason` is shown if this one is logged."""
        self.count += 1
        now = self._clock()
        if now >= self._next_log:
            unlogged = self.count - self._logged_count
            self._logger.warning(
                "%s: %d message(s) rejected, last: %s", self._what, unlogged, reason
            )
            self._logged_count = self.count
            self._next_log = now + _LOG_EVERY_SECONDS

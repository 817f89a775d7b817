"""How far loading is: a bar on a terminal, else a few log lines."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

log = logging.getLogger(__name__)

LOG_SHARE = 0.25


@contextmanager
def loading(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the loading of `total` bytes of weights; the caller tells what is added."""
    if sys.stderr.isatty():
        with _bar(name, total) as advance:
            yield advance
    else:
        yield LogProgress(name, total, time.monotonic)


@contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(f"loading {name}", total=total)
        yield lambda added: progress.advance(task, added)


class LogProgress:
    """A log line at each quarter. `clock` gives seconds, monotonic."""

    def __init__(self, name: str, total: int, clock: Callable[[], float]) -> None:
        self._name = name
        self._total = total
        self._clock = clock
        self._started = clock()
        self._made = 0
        self._next = LOG_SHARE * total

    def __call__(self, added: int) -> None:
        self._made += added
        if self._made < self._next:
            return
        while self._next <= self._made:
            self._next += LOG_SHARE * self._total
        seconds = max(self._clock() - self._started, 1e-3)
        made, total = self._made / 1e9, self._total / 1e9
        log.info("loading %s: %.2f of %.2f GB, %.2f GB/s", self._name, made, total, made / seconds)

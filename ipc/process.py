"""What every child process of a run does: end on SIGTERM, and when its parent is gone."""

import os
import signal
import sys
import threading
from collections.abc import Callable

EXIT_CONFIGURATION = 78
"""Exit status of a process that will not come up however often it is started (EX_CONFIG)."""

WATCH_PARENT = "--watch-parent"
"""Command line flag: standard input is a pipe that the parent holds open while it lives."""


def on_termination(stop: Callable[[], None]) -> None:
    """Call `stop`, in the main thread, at SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def end_with_parent() -> None:
    """Send this process SIGTERM when the parent closes our standard input, be it by dying."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()

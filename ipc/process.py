"""What every child process of a run does: the same options, and an end on SIGTERM or with its
parent."""

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from ipc.security import CurveKey

EXIT_CONFIGURATION = 78
"""Exit status of a process that will not come up however often it is started (EX_CONFIG)."""

EXIT_USAGE = 2
"""Exit status of a process whose options make no sense (argparse's); it is as final."""

EXIT_HUNG = 79
"""Exit status of an engine whose step hung; a new one is to be started."""

WATCH_PARENT = "--watch-parent"


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """The options of every process that listens for frontends."""
    parser.add_argument("--listen", required=True, metavar="ADDRESS", help="ipc:// or tcp://")
    parser.add_argument(
        "--curve-key", type=Path, metavar="FILE", help="key file, needed for tcp://"
    )
    parser.add_argument("--log-level", default="warning", help="default: %(default)s")
    add_parent_option(parser)


def add_parent_option(parser: argparse.ArgumentParser) -> None:
    """The option that ties a process to its parent."""
    parser.add_argument(
        WATCH_PARENT,
        action="store_true",
        help="end when standard input does: it is a pipe that the parent holds while it lives",
    )


def curve_key(options: argparse.Namespace) -> CurveKey | None:
    """The key that `--curve-key` names. Raises SecurityError if that file is not as it must be."""
    return CurveKey.load(options.curve_key) if options.curve_key else None


def log_to_standard_error(name: str, level: str) -> None:
    """Log lines carry the time, the level and the process's name."""
    form = f"%(asctime)s %(levelname)s {name}: %(message)s"
    logging.basicConfig(level=level.upper(), format=form)


def on_termination(stop: Callable[[], None]) -> None:
    """Call `stop`, in the main thread, at SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def end_with_parent() -> None:
    """Send this process SIGTERM when the parent closes our standard input, be it by dying."""

    def watch() -> None:
        # Not sys.stdin: a thread that holds its lock at exit aborts the interpreter.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()

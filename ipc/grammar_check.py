"""Checks grammars in a process of their own, which a schema may exhaust without harm.

llguidance follows references without a bound (700, one within another, overflow 8 MiB of stack),
and the time for patterns that hold at once doubles with each (20 take 1.3 s and 250 MB). What
passes here, within bounds, is fit for the engine too.
"""

import atexit
import logging
import resource
import signal
import subprocess
import sys
from functools import cache
from threading import Lock

import msgspec

from ipc.grammars import GrammarError, check_constraint
from ipc.messages import Constraint, Grammar

_logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""Of CPU time, so that what is refused does not depend on what else the machine does."""
MEMORY_BYTES = 512 * 1024**2
STACK_BYTES = 4 * 1024**2
"""Half of what a thread of the engine has."""
TOO_COMPLEX = "it takes too long, or too much memory, to compile"


class GrammarChecker:
    """One process, started when it is needed and again when a grammar has ended it."""

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def complaint(self, grammar: Grammar) -> str | None:
        """What is wrong with a grammar. Blocks; to be called from any thread."""
        with self._lock:
            answer = self._ask(msgspec.json.encode(grammar))
        return TOO_COMPLEX if answer is None else msgspec.json.decode(answer, type=str | None)

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _ask(self, question: bytes) -> bytes | None:
        """The answer line; None if the process has ended, or had to be ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            return answer
        self._end()
        _logger.warning("a grammar has ended the process that checks it: %s", process.returncode)
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        # Not in the terminal's process group: it ends with its standard input.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "ipc.grammar_check", str(self._seconds)],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


@cache
def checker() -> GrammarChecker:
    """The one of this process."""
    found = GrammarChecker()
    atexit.register(found.close)
    return found


def _answer(question: bytes) -> str | None:
    try:
        check_constraint(Constraint(final=msgspec.json.decode(question, type=Grammar)))
    except GrammarError as error:
        return str(error)
    return None


def main(seconds: float) -> None:
    """Answer each line of standard input, a grammar, with one of what is wrong with it. A first
    line says that there is one who answers. SIGPROF ends what takes more CPU time."""
    for limit, value in (
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
    _say(None)
    for question in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        complaint = _answer(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(complaint)


def _say(complaint: str | None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(complaint) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))

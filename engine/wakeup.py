"""How another thread gets a polling one to look at once, instead of at its next look around."""

import os
from contextlib import suppress


class Wakeup:
    """Anything with a `fileno` can be polled along with sockets; this one is readable once it is
    set, until it is cleared. Set it after the change that it tells of, clear it before looking."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The file descriptor to poll for reading."""
        return self._read

    def set(self) -> None:
        """Wake the other side; from any thread, or from a signal handler."""
        # A pipe that is full is as readable as can be.
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Be unreadable until it is set again."""
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._read)
        os.close(self._write)

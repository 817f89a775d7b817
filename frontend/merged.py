"""Several streams that are one reply: the choices of a chat completion, say."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from frontend.streams import StreamHandle
from ipc.messages import Terminal


class Merge(Protocol):
    """What the API adds to what its streams say, once all have ended well."""

    def end(self, terminals: Sequence[Terminal]) -> bytes:
        """What follows the events of all streams."""

    def whole(self, bodies: Sequence[bytes], terminals: Sequence[Terminal]) -> bytes:
        """The unstreamed reply."""


class MergedStreams:
    """One reply of several streams, to be read as a single StreamHandle is.

    Events come out in the order in which they arrive; the first stream that fails ends them all.
    """

    def __init__(self, handles: Sequence[StreamHandle], merge: Merge, streaming: bool) -> None:
        self.overflowed = asyncio.Event()
        self._changed = asyncio.Event()
        self._handles = handles
        self._merge = merge
        self._streaming = streaming
        for handle in handles:
            handle.overflowed, handle.changed = self.overflowed, self._changed

    @property
    def terminal(self) -> Terminal | None:
        """The end of the reply, once there is one."""
        terminals = [handle.terminal for handle in self._handles if handle.terminal is not None]
        failed = next((terminal for terminal in terminals if terminal.reason == "error"), None)
        if failed is not None or len(terminals) < len(self._handles):
            return failed
        return Terminal("final", 200, sum(terminal.output_tokens for terminal in terminals))

    @property
    def has_bytes(self) -> bool:
        """Whether there is anything to take."""
        terminal = self.terminal
        if terminal is not None and terminal.reason == "error":
            return any(h.has_bytes for h in self._handles if h.terminal is terminal)
        return terminal is not None or (
            self._streaming and any(handle.has_bytes for handle in self._handles)
        )

    @property
    def name(self) -> str:
        """What the log calls it."""
        return ", ".join(handle.name for handle in self._handles)

    async def wait(self) -> None:
        """Wait until there is something to take, or nothing more will come."""
        while not self.has_bytes and self.terminal is None:
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> bytes:
        """All bytes that have come since the last call; once there is an end, the last ones."""
        terminal = self.terminal
        if terminal is not None and terminal.reason == "error":
            return b"".join(h.take() for h in self._handles if h.terminal is terminal)
        taken = [handle.take() for handle in self._handles]
        terminals = [h.terminal for h in self._handles if h.terminal is not None]
        if self._streaming:
            tail = self._merge.end(terminals) if terminal is not None else b""
            return b"".join(taken) + tail
        return self._merge.whole(taken, terminals)

    def close(self) -> None:
        """Release whatever is still held for any of the streams; idempotent."""
        for handle in self._handles:
            handle.close()


def open_all(opens: Sequence[Callable[[], StreamHandle]]) -> list[StreamHandle]:
    """Open all of the streams, or none: then it raises what `Streams.open` does."""
    handles: list[StreamHandle] = []
    try:
        handles.extend(open_one() for open_one in opens)
    except BaseException:
        for handle in handles:
            handle.close()
        raise
    return handles

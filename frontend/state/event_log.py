"""The events of a response that runs in the background, for readers that come when they like."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator

PIECES_A_TURN = 100
"""What a reader unpacks at once, so that one who comes late does not hold up the others."""
_FRAME = re.compile(rb'.*?"sequence_number":(\d+)\}\n\n', re.DOTALL)


class EventLog:
    """Events in, in whole frames; any number of readers. Events are alike, so they are kept
    compressed, to about a twentieth."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(1)
        self._pieces: list[bytes] = []
        self._ended = False
        self._changed = asyncio.Event()

    def append(self, frames: bytes) -> None:
        """Add events, each whole."""
        if frames:
            piece = self._compressor.compress(frames)
            self._pieces.append(piece + self._compressor.flush(zlib.Z_SYNC_FLUSH))
            self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake()

    async def read(self, starting_after: int = -1) -> AsyncIterator[bytes]:
        """The events with a higher number: those that there are, then each as it comes."""
        decompressor = zlib.decompressobj()
        place = 0
        while True:
            changed = self._changed
            while place < len(self._pieces):
                frames = decompressor.decompress(self._pieces[place])
                place += 1
                if place % PIECES_A_TURN == 0:
                    await asyncio.sleep(0)
                if later := b"".join(frames_after(frames, starting_after)):
                    yield later
            if self._ended:
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def frames_after(frames: bytes, number: int) -> Iterator[bytes]:
    """The events with a higher sequence number."""
    for frame in _FRAME.finditer(frames):
        if int(frame[1]) > number:
            yield frame[0]

"""Ends a turn early where the request says so: at a stop string, or after the first call.

Stop strings apply to visible text only (answers and preambles), never to reasoning or to the
arguments of a call. Nothing of a stop string is sent, not even a beginning of it.
"""

from collections.abc import Sequence

from postproc_workers.harmony import EndOfTurn, MessageSink
from postproc_workers.headers import Header, Kind
from postproc_workers.tokens import escape, unescape

_VISIBLE = (Kind.ANSWER, Kind.PREAMBLE)


class StopScanner:
    """Finds the first of `stops` (non-empty strings) in a text that comes in pieces.

    The first is the one that is complete first, and of two that end together the longer one: so
    the outcome depends on the text alone, not on its pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What of the text so far is certainly before any stop string, and the one that came."""
        text = self._held + text
        found = [
            (place + len(stop), place, stop)
            for stop in self._stops
            if (place := text.find(stop)) >= 0
        ]
        if found:
            self._held = ""
            _, place, stop = min(found)
            return text[:place], stop
        keep = max(self._overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The held back end of the text: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """The length of the longest end of `text` that begins `stop`."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if stop.startswith(text[-length:]):
                return length
        return 0


class TurnLimits:
    """Stands before a sink; raises EndOfTurn when a limit is met. `stop_sequence` is the stop
    string that ended the turn."""

    def __init__(self, sink: MessageSink, stops: Sequence[str], parallel_tool_calls: bool) -> None:
        self.stop_sequence: str | None = None
        self._sink = sink
        self._scanner = StopScanner(stops) if stops else None
        self._parallel_tool_calls = parallel_tool_calls
        self._kind = Kind.HIDDEN

    def begin(self, header: Header) -> None:
        self._kind = header.kind
        self._sink.begin(header)

    def text(self, escaped: bytes) -> None:
        if self._scanner is None or self._kind not in _VISIBLE:
            self._sink.text(escaped)
            return
        text, self.stop_sequence = self._scanner.feed(unescape(escaped))
        if text:
            self._sink.text(escape(text))
        if self.stop_sequence is not None:
            raise EndOfTurn

    def end(self, tokens: int, complete: bool) -> None:
        if self._scanner is not None and (held := self._scanner.finish()):
            self._sink.text(escape(held))
        self._sink.end(tokens, complete)
        if self._kind is Kind.CALL and complete and not self._parallel_tool_calls:
            raise EndOfTurn

"""What is said of loading: lines in a log, or a bar on a terminal."""

import io
import logging
from collections.abc import Iterator

import pytest

from engine.progress import LogProgress, loading


class Terminal(io.StringIO):
    """Where a bar can be drawn."""

    def isatty(self) -> bool:
        return True


def test_a_log_has_four_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    times: Iterator[float] = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    told = LogProgress("tiny", 4_000_000_000, lambda: next(times))
    for _ in range(40):
        told(100_000_000)
    assert len(caplog.messages) == 4
    assert caplog.messages[0] == "loading tiny: 1.00 of 4.00 GB, 1.00 GB/s"
    assert caplog.messages[-1] == "loading tiny: 4.00 of 4.00 GB, 1.00 GB/s"


def test_one_large_tensor_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    LogProgress("tiny", 1000, lambda: 0.0)(900)
    assert len(caplog.messages) == 1


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with loading("tiny", 2_000_000_000) as made:
        made(2_000_000_000)
    assert "loading tiny" in terminal.getvalue()
    assert "2.0/2.0 GB" in terminal.getvalue()

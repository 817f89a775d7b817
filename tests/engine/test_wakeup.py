"""A wakeup is readable from its setting to its clearing, however often it is set."""

import select
import threading

from engine.wakeup import Wakeup


def readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_set_and_clear() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup)
    wakeup.clear()
    for _ in range(3):
        wakeup.set()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.close()


def test_setting_never_blocks_or_fails() -> None:
    """Far beyond what a pipe holds."""
    wakeup = Wakeup()
    for _ in range(100_000):
        wakeup.set()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.close()


def test_it_wakes_another_thread() -> None:
    wakeup = Wakeup()
    threading.Timer(0.01, wakeup.set).start()
    assert select.select([wakeup], [], [], 10)[0]
    wakeup.close()

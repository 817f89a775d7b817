"""Ends what vLLM leaves behind: its processes outlive ours when ours is killed, and keep the
device's memory, which the next engine needs.

A process of its own, `python -m engine.vllm.reaper`, as only another one sees a killed one end.
"""

import os
import signal
import subprocess
import sys
import time

LOOK_SECONDS = 0.1


def start() -> None:
    """Have the process group of this process killed once this process has ended, however it did.

    Only where the group is its own, as it is under the supervisor.
    """
    if os.getpgrp() == os.getpid():
        command = [sys.executable, "-m", "engine.vllm.reaper", str(os.getpid())]
        subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  ours


def main(parent: int) -> None:
    """Wait for the end of `parent`, and kill the process group, this process with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))

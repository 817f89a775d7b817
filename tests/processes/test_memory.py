"""The seed of this project: states do not stay, and memory does not grow with the turns served."""

from pathlib import Path

import psutil

from tests.processes.scripts import LONG_TOKENS, Seed
from tests.processes.test_generation import RESPONSES, streamed
from tests.servers import Server, running

LEAK_BYTES = 44 * 1024
"""What one such turn left behind in the servers that this project is to replace."""


def private_bytes(process: psutil.Process) -> int:
    """Memory that is this process's own."""
    found: int = process.memory_full_info().uss
    return found


def test_a_hundred_streamed_turns_leave_no_state(server: Server) -> None:
    for _ in range(100):
        assert streamed(server, RESPONSES, Seed.ANSWER)[-1]["type"] == "response.completed"
    assert not any(server.live().values())


def test_long_turns_leave_no_memory_in_the_worker(scripts: Path) -> None:
    arguments = ["--script", str(scripts), "--served-model-name", "scripted"]
    with running(*arguments, "--num-postprocess-workers", "1") as server:
        worker = server.child("postproc_workers")

        def serve(turns: int) -> None:
            for _ in range(turns):
                final = streamed(server, RESPONSES, Seed.LONG)[-1]["response"]
                assert final["usage"]["output_tokens"] == LONG_TOKENS

        serve(40)
        before = private_bytes(worker)
        serve(200)
        grown = private_bytes(worker) - before
        assert grown < 1024 * 1024, f"{grown / 200:,.0f} bytes a turn (it was {LEAK_BYTES:,})"
        assert not any(server.live().values())

"""The soak of bench/soak.py, short."""

import subprocess
import sys


def test_a_short_soak_breaks_and_leaves_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bench.soak", "--short"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "     0 broken" in run.stdout

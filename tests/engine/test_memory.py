"""What fits into memory, from sizes alone, and how much memory there is by the kernel's files."""

from pathlib import Path

import pytest
import torch

from engine.build import build_core
from engine.config import CheckpointError
from engine.memory import WORKING_BYTES, available_memory, fitting_blocks
from engine.options import EngineOptions

GB = 10**9


def fit(available: int, asked: int | None = None) -> int:
    """For 40 GB of weights and blocks of 1 GB: 16 by default, at least 2."""
    return fitting_blocks(40 * GB, GB, 16, 2, asked, available + WORKING_BYTES)


def test_the_default_cache_where_there_is_room() -> None:
    assert fit(56 * GB) == 16


def test_a_smaller_cache_where_there_is_less_room(caplog: pytest.LogCaptureFixture) -> None:
    assert fit(56 * GB - 1) == 15
    assert fit(42 * GB) == 2
    assert "the KV cache gets 2 blocks (2.0 GB) instead of 16 (16.0 GB)" in caplog.text


def test_too_little_memory_says_how_much_and_what_to_do() -> None:
    with pytest.raises(CheckpointError, match=r"42\.5 GB are needed .*42\.5 GB are avail.*smaller"):
        fit(42 * GB - 1)


def test_the_blocks_asked_for_or_none() -> None:
    assert fit(70 * GB, asked=30) == 30
    assert fit(41 * GB, asked=1) == 1
    with pytest.raises(CheckpointError, match="fewer --blocks"):
        fit(69 * GB, asked=30)


def test_a_small_model_may_have_a_default_below_the_least() -> None:
    assert fitting_blocks(0, GB, 1, 2, None, GB + WORKING_BYTES) == 1


def test_it_is_told_before_anything_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    monkeypatch.setattr("engine.cpu.available_memory", lambda: WORKING_BYTES)
    torch.set_num_threads(1)
    with pytest.raises(CheckpointError, match="too little memory"):
        build_core(tmp_path, EngineOptions("tiny", threads=1))


@pytest.mark.parametrize(("blocks", "size"), [(1, 16), (3, 1)])
def test_a_cache_that_holds_no_sequence_is_refused(
    checkpoint: Path, blocks: int, size: int
) -> None:
    """The checkpoint has two groups of layers."""
    options = EngineOptions("tiny", threads=1, blocks=blocks, block_size=size)
    with pytest.raises(ValueError, match=f"{blocks} blocks holds . tokens .* more --blocks"):
        build_core(checkpoint, options)


def write(root: Path, files: dict[str, str]) -> Path:
    meminfo = {"proc/meminfo": "MemTotal: 64 kB\nMemAvailable:   1000 kB\n"}
    for name, text in (meminfo | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(place: str, limit: str, usage: int, files: tuple[str, str]) -> dict[str, str]:
    stat = "anon 5\ninactive_file 100\nactive_file 20\n"
    return {
        f"{place}/{files[0]}": f"{limit}\n",
        f"{place}/{files[1]}": f"{usage}\n",
        f"{place}/memory.stat": stat,
    }


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = ("memory.max", "memory.current")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1_024_000),
        ({"proc/self/cgroup": "0::/a/b\n"}, 1_024_000),
        ({"proc/self/cgroup": "0::/a/b\n", **group("sys/fs/cgroup/a", "5000", 900, V2)}, 4220),
        ({"proc/self/cgroup": "0::/a/b\n", **group("sys/fs/cgroup/a", "max", 900, V2)}, 1_024_000),
        ({"proc/self/cgroup": "0::/\n", **group("sys/fs/cgroup", "5000", 5200, V2)}, -80),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/docker/x\n2:pids:/y\n",
                **group("sys/fs/cgroup/memory", "3000", 900, V1),
            },
            2220,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n",
                **group("sys/fs/cgroup/memory/x", "9223372036854771712", 900, V1),
            },
            1_024_000,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_memory(write(tmp_path, files)) == expected


def test_this_machine_has_some() -> None:
    assert available_memory() > 0

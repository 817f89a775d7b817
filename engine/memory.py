"""Whether weights and KV cache fit into memory, decided before anything is loaded."""

import logging
import os
from pathlib import Path, PurePosixPath

from engine.config import CheckpointError

log = logging.getLogger(__name__)

GB = 1e9
WORKING_BYTES = 512 * 2**20
"""For what a step computes, and what is read during loading."""
LEAST_CACHE_TOKENS = 4096
"""A smaller KV cache is not chosen by itself: hardly a conversation fits."""


def fitting_blocks(
    weights: int, block_bytes: int, default: int, least: int, asked: int | None, available: int
) -> int:
    """How many blocks the KV cache gets: those asked for, or `default`, or as many as fit.

    `weights`, `block_bytes` and `available` are in bytes. Raises CheckpointError, which says what
    to do, if not even `least` fit, or not those asked for.
    """
    room = available - weights - WORKING_BYTES
    needed = min(default, least) if asked is None else asked
    if needed * block_bytes > room:
        raise CheckpointError(_too_little(weights, needed * block_bytes, available, asked))
    if asked is not None:
        return asked
    blocks = min(default, room // block_bytes)
    if blocks < default:
        log.warning(
            "the KV cache gets %d blocks (%.1f GB) instead of %d (%.1f GB): %.1f GB of memory are "
            "available and the weights take %.1f GB",
            blocks,
            blocks * block_bytes / GB,
            default,
            default * block_bytes / GB,
            available / GB,
            weights / GB,
        )
    return blocks


def _too_little(weights: int, cache: int, available: int, asked: int | None) -> str:
    advice = "serve a smaller model" if asked is None else "give fewer --blocks"
    return (
        f"too little memory: {(weights + cache + WORKING_BYTES) / GB:.1f} GB are needed (weights "
        f"{weights / GB:.1f}, KV cache {cache / GB:.1f}, work {WORKING_BYTES / GB:.1f}), "
        f"{available / GB:.1f} GB are available; free some, raise the container's limit, or "
        f"{advice}"
    )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this process can still take: the kernel's estimate, and the rest of each memory limit
    (control groups, both versions) that the process is under."""
    return min([_machine(root), *_limits(root)])


def _machine(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        # No Linux: what is free, without what could be freed.
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _limits(root: Path) -> list[int]:
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            files, base = ("memory.max", "memory.current"), root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        # Inside a container its own group is mounted as the root, whatever the path says.
        inner = PurePosixPath(path.lstrip("/"))
        for place in {base / inner, *(base / parent for parent in inner.parents), base}:
            found += _rest(place, *files)
    return found


def _rest(group: Path, limit_file: str, usage_file: str) -> list[int]:
    """What a control group has left, if it has a limit. Files that were read are given up under
    pressure and count as free."""
    try:
        limit = (group / limit_file).read_text().strip()
        usage = int((group / usage_file).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return []
    if limit == "max":
        return []
    stat = {name: int(value) for name, value in (line.split() for line in lines)}
    cached = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return [int(limit) - usage + cached]

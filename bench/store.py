"""Writes and reads a second of the store of responses, group commit beside one commit each."""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence

import psutil
from rich.console import Console
from rich.table import Table

from frontend.store import Store, StoredResponse
from frontend.store import database as database_module

TENANT = "bench"
RECORD_BYTES = 4096
CALLERS = 64


def response(name: str, created_at: int) -> StoredResponse:
    return StoredResponse(
        id=f"resp_{name}",
        tenant=TENANT,
        created_at=created_at,
        status="in_progress",
        background=False,
        previous_response_id=None,
        conversation_id=None,
        input=b"[]",
        record=b"",
    )


async def from_callers(work: Callable[[str], Awaitable[object]], names: Sequence[str]) -> float:
    """How much of it is done a second by callers who each wait for theirs."""
    waiting = iter(names)

    async def caller() -> None:
        for name in waiting:
            await work(name)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return len(names) / (time.perf_counter() - start)


async def fill(store: Store, names: Sequence[str], record: bytes) -> float:
    """Responses stored a second: two writes each."""
    now = int(time.time())

    async def whole(name: str) -> None:
        made = response(name, now)
        await store.begin(made)
        await store.finish(TENANT, made.id, "completed", record)

    return await from_callers(whole, names)


def own_memory() -> int:
    found: int = psutil.Process().memory_full_info().uss
    return found


async def measure(url: str, writes: int, kept: int) -> Table:
    record = os.urandom(RECORD_BYTES)
    table = Table("what", "a second", "control", "ratio")
    rates = {}
    for together in (database_module.MAX_TOGETHER, 1):
        database_module.MAX_TOGETHER = together
        store = Store(url, max_age=1e9, max_count=kept)
        names = [f"{together}_{n}" for n in range(writes)]
        rates[together] = 2 * await fill(store, names, record)
        await store.close()
    control = rates.pop(1)
    ((most, grouped),) = rates.items()
    database_module.MAX_TOGETHER = most
    row = (f"{grouped:,.0f}", f"{control:,.0f}", f"{grouped / control:.2f}")
    table.add_row("writes, of group commit and one by one", *row)
    store = Store(url, max_age=1e9, max_count=kept // 10)
    reads = await from_callers(lambda name: store.get(TENANT, f"resp_{name}"), names)
    table.add_row("reads", f"{reads:,.0f}", "", "")
    before = own_memory()
    await fill(store, [f"kept_{n:07}" for n in range(kept)], record)
    filled = own_memory()
    start = time.perf_counter()
    await store.sweep()
    seconds = time.perf_counter() - start
    gone = kept + 2 * writes - kept // 10
    table.add_row(f"deleted by a sweep, of {gone:,}", f"{gone / seconds:,.0f}", "", "")
    await store.close()
    for what, more in (("filling", filled - before), ("the sweep", own_memory() - filled)):
        table.add_row(f"growth of memory by {what}: {more / 2**20:.1f} MiB", "", "0", "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="an empty PostgreSQL database (default: a new SQLite file)")
    parser.add_argument("--writes", type=int, default=2_000, help="responses for each rate")
    parser.add_argument("--kept", type=int, default=100_000, help="responses of the long run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = options.url or f"sqlite:///{directory}/bench.db"
        Console().print(asyncio.run(measure(url, options.writes, options.kept)))


if __name__ == "__main__":
    main()

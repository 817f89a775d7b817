"""Writes of the store a second, committed together beside one by one, and what it grows to."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from frontend.store import Store, StoredResponse, database

TENANT = "bench"
INPUT, RECORD = b"i" * 1_000, b"r" * 3_000
MIB = 1024 * 1024
IN_FLIGHT = 64


def response(number: int) -> StoredResponse:
    begun = RECORD[:500]
    return StoredResponse(
        f"resp_{number:032x}", TENANT, number, "in_progress", False, None, None, INPUT, begun
    )


@asynccontextmanager
async def opened(url: str, max_count: int) -> AsyncIterator[Store]:
    store = Store(url, max_age=1e12, max_count=max_count)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def writes_of_a_transaction(most: int) -> Iterator[None]:
    usual = database.MAX_TOGETHER
    database.MAX_TOGETHER = most
    try:
        yield
    finally:
        database.MAX_TOGETHER = usual


async def keep(store: Store, numbers: Iterator[int]) -> None:
    """One client: responses one after the other, each with its beginning and its end."""
    for number in numbers:
        begun = response(number)
        await store.begin(begun)
        await store.finish(TENANT, begun.id, "completed", RECORD)


async def keep_all(store: Store, numbers: range, clients: int) -> None:
    shared = iter(numbers)
    await asyncio.gather(*[keep(store, shared) for _ in range(clients)])


async def rate(url: str, numbers: range, clients: int) -> float:
    """Writes a second."""
    async with opened(url, max_count=10_000_000) as store:
        start = time.perf_counter()
        await keep_all(store, numbers, clients)
        return 2 * len(numbers) / (time.perf_counter() - start)


def rates(urls: list[str], responses: int, clients: list[int], rounds: int) -> Table:
    """The best of some rounds, in which the two take turns. With one client nothing waits that
    could be committed together: what the ratio is then, other than 1, is noise."""
    table = Table("database", "clients", "one by one /s", "together /s", "ratio")
    usual = database.MAX_TOGETHER
    first = 0
    for url in urls:
        for count in clients:
            best = {1: 0.0, usual: 0.0}
            for turn in range(rounds):
                for most in sorted(best, reverse=turn % 2 == 1):
                    with writes_of_a_transaction(most):
                        numbers = range(first, first + responses)
                        best[most] = max(best[most], asyncio.run(rate(url, numbers, count)))
                    first += responses
            alone, together = best[1], best[usual]
            name = url.partition(":")[0]
            ratio = f"{together / alone:.1f}"
            table.add_row(name, str(count), f"{alone:,.0f}", f"{together:,.0f}", ratio)
    return table


async def growth(path: Path, responses: int, kept: int) -> Table:
    """What a process and its file grow to while `responses` are stored and `kept` stay. A sweep
    runs beside the writes, as in a frontend."""
    table = Table("responses", "own memory MiB", "file MiB", "writes /s", "sweep s", "slowest ms")
    process = psutil.Process()
    step = max(1, responses // 10)
    async with opened(f"sqlite:///{path}", kept) as store:
        for first in range(0, responses, step):
            slowest = 0.0
            start = time.perf_counter()
            writing = asyncio.ensure_future(keep_all(store, range(first, first + step), IN_FLIGHT))
            sweeping = asyncio.ensure_future(timed_sweep(store))
            while not writing.done():
                before = time.perf_counter()
                await store.request_cancel(TENANT, "none")  # a write that does nothing
                slowest = max(slowest, time.perf_counter() - before)
            await writing
            seconds = time.perf_counter() - start
            table.add_row(
                f"{first + step:,}",
                f"{process.memory_full_info().uss / MIB:.0f}",
                f"{path.stat().st_size / MIB:.0f}",
                f"{2 * step / seconds:,.0f}",
                f"{await sweeping:.2f}",
                f"{slowest * 1000:.0f}",
            )
    return table


async def timed_sweep(store: Store) -> float:
    start = time.perf_counter()
    await store.sweep()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=2_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=4, help="the best of so many counts")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--many", type=int, default=100_000, help="responses of the growth")
    parser.add_argument("--kept", type=int, default=20_000, help="how many of them stay")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database to measure as well")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        urls = [f"sqlite:///{directory}/rates.db"]
        if options.postgresql:
            urls.append(options.postgresql)
        console.print(rates(urls, options.responses, options.clients, options.rounds))
        path = Path(directory) / "growth.db"
        console.print(asyncio.run(growth(path, options.many, options.kept)))


if __name__ == "__main__":
    main()

"""Many streams with random endings over real processes while workers are killed.

Ends with what must be 0 (live streams, kept sequences, broken clients) and with how each process's
own memory grew. Exit status 1 if anything is not as it must be.
"""

import argparse
import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from bench.harmony_traces import encoding, turn

BASE_URL = "http://127.0.0.1:{}"
CONCURRENCY = 48
WARM_UP_SHARE = 0.25
"""Memory is compared with what it is after this share of the streams."""
MEMORY_STREAMS = 10_000
"""Memory is judged in runs of at least so many streams."""
SLOPE_BYTES = 200_000
"""Bytes that a process may grow for 1,000 streams: far less than a forgotten state each would be
(44 KiB in the servers that this one is to replace), and more than what malloc keeps to itself."""


def write_scripts(path: Path) -> None:
    """Script 0 is an ordinary turn, 1 a longer one, 2 fails in the middle, 3 never ends."""
    harmony = encoding()
    short, longer = turn(harmony, 120), turn(harmony, 600, seed=1)
    error = {"after": 60, "message": "the executor failed"}
    scripts = [
        {"tokens": short, "tokens_per_step": 4, "interval": 0.002},
        {"tokens": longer, "tokens_per_step": 8, "interval": 0.002},
        {"tokens": short, "tokens_per_step": 4, "interval": 0.002, "error": error},
        {"tokens": short, "interval": 0.01, "then": "repeat"},
    ]
    path.write_bytes(msgspec.json.encode({"scripts": scripts}))


@dataclass
class Outcome:
    """How the streams ended, as their clients saw it."""

    ended: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


async def one_stream(port: int, source: random.Random, outcome: Outcome) -> None:
    """One request with an ending of its own."""
    responses = source.random() < 0.5
    streaming = source.random() < 0.8
    leaves = source.random() < 0.25
    seed = 3 if leaves and source.random() < 0.5 else source.choice((0, 0, 0, 1, 2))
    body: dict[str, object] = {"model": "soak", "seed": seed, "stream": streaming}
    if responses:
        path = "/v1/responses"
        body["input"] = "Hi"
    else:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": "Hi"}]
    if source.random() < 0.1:
        body["stop"] = ["the"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    try:
        if leaves:
            patience = source.expovariate(1 / 0.1)
            await asyncio.wait_for(reader.read(), patience)
            outcome.ended["finished before it left"] += 1
            return
        reply = await reader.read()
    except TimeoutError:
        outcome.ended["left"] += 1
        if source.random() < 0.5:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return
    finally:
        writer.close()
    judge(reply.decode(), seed, responses, streaming, outcome)


def judge(reply: str, seed: int, responses: bool, streaming: bool, outcome: Outcome) -> None:
    """Count how a reply ended; one that is not whole is broken."""
    text = re.sub(r"\r\n[0-9a-f]+\r\n", "", reply.replace("\r\n\r\n", "\r\n0\r\n", 1))
    failed = "the executor failed" in reply
    if reply.startswith("HTTP/1.1 503"):
        outcome.ended["turned away, no worker was up"] += 1
    elif seed == 2 and failed:
        outcome.ended["failed by the executor"] += 1
    elif "has ended two workers" in reply:
        outcome.ended["failed as a suspect of two killed workers"] += 1
    elif streaming and responses:
        numbers = [int(n) for n in re.findall(r'"sequence_number":(\d+)}\n\n', text)]
        if numbers != list(range(len(numbers))) or '"type":"response.completed"' not in text:
            outcome.broken.append(text[-300:])
        else:
            outcome.ended["completed"] += 1
    elif (streaming and "data: [DONE]" in text) or (not streaming and " 200 OK" in text[:20]):
        outcome.ended["completed"] += 1
    else:
        outcome.broken.append(text[-300:])


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(BASE_URL.format(port) + "/metrics") as reply:
        text = reply.read().decode()
    return {k: float(v) for k, v in re.findall(r"^(antiphon\S+) (\S+)$", text, re.MULTILINE)}


def memory(server: psutil.Process) -> dict[str, tuple[int, int]]:
    """Each process's id and own memory in bytes, by what it is."""
    found = {}
    for child in server.children():
        # A worker may be killed at this very moment.
        with suppress(psutil.NoSuchProcess, IndexError):
            words = child.cmdline()
            number = f" {words[words.index('--worker') + 1]}" if "--worker" in words else ""
            found[words[2] + number] = (child.pid, child.memory_full_info().uss)
    return found


async def soak(
    streams: int, workers: int, kill_every: float, port: int, pid: int
) -> tuple[bool, bool]:
    """Run all streams and print what came of them; returns whether every stream ended well and
    nothing is held, and whether a process grew."""
    source, outcome = random.Random(0), Outcome()
    server = psutil.Process(pid)
    limit = asyncio.Semaphore(CONCURRENCY)
    kills = 0
    warm: dict[str, tuple[int, int]] = {}
    left = iter(range(streams))

    async def client(seed: int) -> None:
        own = random.Random(seed)
        for number in left:
            if number == int(streams * WARM_UP_SHARE):
                warm.update(await asyncio.to_thread(memory, server))
            async with limit:
                await one_stream(port, own, outcome)

    async def killer() -> None:
        nonlocal kills
        while True:
            await asyncio.sleep(kill_every)
            with suppress(psutil.NoSuchProcess, IndexError):
                workers = [c for c in server.children() if "postproc_workers" in c.cmdline()]
                source.choice(workers).kill()
                kills += 1

    killing = asyncio.create_task(killer())
    start = time.monotonic()
    await asyncio.gather(*(client(seed) for seed in range(CONCURRENCY)))
    killing.cancel()
    seconds = time.monotonic() - start
    while any(held(port).values()) and time.monotonic() < start + seconds + 20:
        await asyncio.sleep(0.1)
    report(streams, seconds, kills, outcome)
    # In a short run it is malloc that grows.
    grown = streams >= MEMORY_STREAMS and report_memory(
        warm, memory(server), streams * (1 - WARM_UP_SHARE)
    )
    rest = {name: value for name, value in held(port).items() if value}
    moved = metrics(port)["antiphon_frontend_streams_moved_total"]
    print(f"streams moved to another worker: {moved:.0f}; held at the end: {rest or 0}")
    for text in outcome.broken[:3]:
        print("BROKEN", text)
    return not (outcome.broken or rest), grown


def held(port: int) -> dict[str, float]:
    words = ("streams_live", "engine_running", "engine_kept", "engine_waiting")
    return {k: v for k, v in metrics(port).items() if any(word in k for word in words)}


def report(streams: int, seconds: float, kills: int, outcome: Outcome) -> None:
    print(f"{streams:,} streams in {seconds:.0f} s, {kills} workers killed")
    for ending, count in outcome.ended.most_common():
        print(f"  {count:6,} {ending}")
    print(f"  {len(outcome.broken):6,} broken")


def report_memory(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], streams: float
) -> bool:
    """Print each process's growth; whether one that lived through grew more than it may."""
    table = Table("process", "MiB", "bytes per 1,000 streams")
    grown = False
    for name, (pid, bytes_after) in sorted(after.items()):
        slope = None
        if before.get(name, (0, 0))[0] == pid:
            slope = (bytes_after - before[name][1]) / streams * 1000
            grown = grown or slope > SLOPE_BYTES
        shown = "killed in between" if slope is None else f"{slope:,.0f}"
        table.add_row(name, f"{bytes_after / 2**20:.1f}", shown)
    Console().print(table)
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--short", action="store_true", help="600 streams, a kill every 0.5 s")
    options = parser.parse_args()
    if options.short:
        options.streams, options.kill_every = 600, 0.5
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        scripts = Path(directory) / "scripts.json"
        write_scripts(scripts)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "frontend.cli", "serve", "--script", str(scripts)]
        command += ["--served-model-name", "soak", "--port", str(port), "--log-level", "error"]
        command += ["--num-postprocess-workers", str(options.workers)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        while "is ready" not in (line := server.stderr.readline()):
            if not line:
                sys.exit("the server did not start")
        threading.Thread(target=server.stderr.read).start()
        try:
            well, grown = asyncio.run(
                soak(options.streams, options.workers, options.kill_every, port, server.pid)
            )
        finally:
            server.terminate()
            server.wait(60)
    sys.exit(0 if well and not grown else 1)


if __name__ == "__main__":
    main()

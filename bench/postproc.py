"""Tokens per CPU second of a worker, from frame to frame, beside openai-harmony's bare parser."""

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial

from openai_harmony import HarmonyEncoding, Role, StreamableParser
from rich.console import Console
from rich.table import Table

from bench.harmony_traces import encoding, turn
from ipc import codec
from ipc.messages import (
    ChatFormat,
    Finish,
    MessagesFormat,
    Open,
    Owner,
    ResponsesFormat,
    Step,
    Tokens,
)
from postproc_workers.registry import Registry
from postproc_workers.tokens import token_table

OWNER = Owner(0, 1)
FORMATS: dict[str, tuple[str, ResponsesFormat | ChatFormat | MessagesFormat]] = {
    "responses": ("resp_0123456789abcdef0123456789abcdef", ResponsesFormat(b'"store":false')),
    "chat": ("chatcmpl-0123456789abcdef0123456789abcdef", ChatFormat()),
    "messages": ("msg_0123456789abcdef0123456789abcdef", MessagesFormat()),
}


def control(harmony: HarmonyEncoding, trace: list[int], streams: int) -> float:
    """Seconds of CPU for the parser alone; its reads are those that any server needs."""
    start = time.process_time()
    for _ in range(streams):
        parser = StreamableParser(harmony, Role.ASSISTANT)
        for token in trace:
            parser.process(token)
            parser.last_content_delta  # noqa: B018
    return time.process_time() - start


def step_frames(trace: list[int], streams: int) -> list[bytes]:
    """One frame a token, each with all streams, as an engine sends them."""
    last = len(trace) - 1
    return [
        codec.encode(
            Step(
                [
                    Tokens(s, s, place, [token], Finish("stop") if place == last else None)
                    for s in range(streams)
                ]
            )
        )
        for place, token in enumerate(trace)
    ]


def worker(api: str, frames: list[bytes], streams: int) -> float:
    """Seconds of CPU for a worker's registry, from frame to frame."""
    response_id, format_ = FORMATS[api]
    registry = Registry()
    registry.owner_arrived(OWNER)
    for s in range(streams):
        opening = Open(s, s, response_id, "demo", 1, 1, format_, True, ("get_weather",))
        registry.open(OWNER, opening, 1)
    gc.collect()
    gc.freeze()
    start = time.process_time()
    for frame in frames:
        step = codec.frontend_to_worker(frame)
        assert isinstance(step, Step)
        outputs = registry.step(OWNER, step, 1)
        if outputs is not None:
            codec.encode(outputs)
    seconds = time.process_time() - start
    assert registry.live == 0
    assert registry.released["final"] == streams
    return seconds


def best(measure: Callable[[], float], rounds: int) -> float:
    return min(measure() for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1_000, 4_000, 16_000])
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args()
    harmony = encoding()
    token_table()
    table = Table("tokens", "api", "control tok/s", "worker tok/s", "ratio")
    for length in options.lengths:
        trace = turn(harmony, length)
        streams = options.streams
        frames = step_frames(trace, streams)
        total = streams * length
        bare = best(partial(control, harmony, trace, streams), options.rounds)
        for api in FORMATS:
            cpu = best(partial(worker, api, frames, streams), options.rounds)
            table.add_row(
                f"{length:,}",
                api,
                f"{total / bare:,.0f}",
                f"{total / cpu:,.0f}",
                f"{bare / cpu:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()

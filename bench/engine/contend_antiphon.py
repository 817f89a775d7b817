"""Antiphon's engine core, without sockets: messages in, steps out."""

import sys
from itertools import count
from pathlib import Path

from bench.engine.measure import Prompts, report
from engine.build import build_core
from engine.options import EngineOptions
from ipc.messages import GenerationRequest, Owner, Sampling

OWNER = Owner(1, 1)


def main() -> None:
    core = build_core(Path(sys.argv[1]), EngineOptions("bench", threads=int(sys.argv[2])))
    ids = count(1)

    def run(prompts: Prompts, tokens: int) -> list[list[int]]:
        said: dict[int, list[int]] = {}
        sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            stream_id = next(ids)
            said[stream_id] = []
            core.add(OWNER, GenerationRequest(stream_id, stream_id, 0, prompt, sampling))
        while core.wait() is not None:
            for step in core.step().values():
                for part in step.tokens:
                    said[part.stream_id] += part.ids
        for stream_id in said:
            core.cancel(OWNER, stream_id, stream_id)
        return list(said.values())

    report("this checkout", run)


if __name__ == "__main__":
    main()

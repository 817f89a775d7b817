"""llama.cpp's server, in this process through xllamacpp; the model is a GGUF file."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import xllamacpp

from bench.engine.measure import BATCHES, Prompts, report


def main() -> None:
    params: Any = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
    params.n_parallel = max(BATCHES)
    params.n_ctx = 8192
    params.kv_unified = True
    params.n_batch, params.n_ubatch = 2048, 512
    params.cache_ram_mib = 0
    params.verbosity = -1
    server: Any = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(max(BATCHES))

    def complete(prompt: list[int], tokens: int) -> list[int]:
        asked = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0.0,
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        made = server.handle_completions(asked)["usage"]["completion_tokens"]
        if made != tokens:
            raise RuntimeError(f"{tokens} tokens were asked for, {made} came")
        # It tells the text alone, not the tokens.
        return []

    def run(prompts: Prompts, tokens: int) -> list[list[int]]:
        return list(pool.map(lambda prompt: complete(prompt, tokens), prompts))

    report(version("xllamacpp"), run)


if __name__ == "__main__":
    main()

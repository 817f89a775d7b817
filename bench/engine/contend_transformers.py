"""transformers' GptOssForCausalLM and its `generate`."""

import sys
from typing import cast

import torch
import transformers
from transformers import AutoConfig, GptOssForCausalLM

from bench.engine.measure import Prompts, report
from engine.cpu import TINY_HIDDEN_SIZE


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    hidden = AutoConfig.from_pretrained(sys.argv[1]).hidden_size
    dtype = torch.float32 if hidden <= TINY_HIDDEN_SIZE else torch.bfloat16
    model = GptOssForCausalLM.from_pretrained(sys.argv[1], dtype=dtype)

    def run(prompts: Prompts, tokens: int) -> list[list[int]]:
        given = torch.tensor(prompts)
        found = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        return cast("list[list[int]]", found[:, given.shape[1] :].tolist())

    report(transformers.__version__, run)


if __name__ == "__main__":
    main()

"""The demo model writes greedily, token for token, what transformers makes it write; in bf16 its
best token is nearly always the same."""

from typing import cast

import pytest
import torch
from openai_harmony import (
    Conversation,
    HarmonyEncodingName,
    Message,
    Role,
    load_harmony_encoding,
)
from transformers import GptOssForCausalLM

from engine.backend import make_backend
from engine.batch import Slice
from engine.build import build_core
from engine.config import read_config
from engine.core import ModelCore
from engine.demo.expand import demo_checkpoint
from engine.options import EngineOptions
from engine.sequence import END_TOKENS
from tests.engine.builders import make_request
from tests.engine.test_generation import generate

QUESTIONS = ["What is the capital of France?", "Hello!", "Count to five. " * 30]
LIMIT = 48


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    conversations = [
        Conversation.from_messages([Message.from_role_and_content(Role.USER, question)])
        for question in QUESTIONS
    ]
    return [
        encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        for conversation in conversations
    ]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    model = GptOssForCausalLM.from_pretrained(
        demo_checkpoint(), dtype=torch.float32, attn_implementation="eager"
    )
    found = []
    for prompt in prompts:
        tokens = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=LIMIT,
            eos_token_id=sorted(END_TOKENS),
            pad_token_id=199_999,
        )
        found.append(cast("list[int]", tokens[0, len(prompt) :].tolist()))
    return found


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_greedy_tokens_equal_those_of_transformers(
    prompts: list[list[int]], expected: list[list[int]], dtype: str
) -> None:
    """Also with the bf16 head that is the default: its likeliest logits are worked out in fp32."""
    core: ModelCore = build_core(
        demo_checkpoint(), EngineOptions("demo", dtype=dtype, threads=1, blocks=200)
    )
    requests = [
        make_request(number, prompt=prompt, max_tokens=LIMIT, temperature=0.0)
        for number, prompt in enumerate(prompts)
    ]
    assert list(generate(core, requests).values()) == expected


def test_bf16_agrees_on_the_best_token(prompts: list[list[int]], expected: list[list[int]]) -> None:
    """After each token that transformers has written in fp32."""
    directory = demo_checkpoint()
    options = EngineOptions("demo", device="cpu", dtype="bfloat16", threads=1)
    model = make_backend(read_config(directory), options).load(directory, 400, lambda _: None)
    agreed = []
    for number, (prompt, answer) in enumerate(zip(prompts, expected, strict=True)):
        tables = [list(range(first, first + 60)) for first in (120 * number, 120 * number + 60)]
        written = prompt
        position = 0
        for token in answer:
            hidden = model.forward([Slice(written[position:], position, tables)])
            position = len(written)
            agreed.append(model.logits(hidden).argmax().item() == token)
            written = [*written, token]
    assert len(agreed) > 60
    assert sum(agreed) >= 0.98 * len(agreed)

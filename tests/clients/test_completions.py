"""`/v1/completions` by the openai Python client, on the demo model."""

from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.clients.conftest import MODEL
from tests.servers import Server

PROMPT = (
    "<|start|>user<|message|>What is the capital of France?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>"
)
MARKUP: dict[str, Any] = {"special_tokens": True}
"""The demo model knows nothing but Harmony."""


def test_streamed_is_unstreamed(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "echo": True}
    whole = client.completions.create(**asked, extra_body=MARKUP)
    asked["stream_options"] = {"include_usage": True}
    chunks = list(client.completions.create(**asked, stream=True, extra_body=MARKUP))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert text.startswith(PROMPT)
    assert "Paris" in text[len(PROMPT) :]
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 16
    assert {chunk.id for chunk in chunks} != {whole.id}


def test_several_prompts_and_choices(client: OpenAI, server: Server) -> None:
    tokens = server.post("/tokenize", {"prompt": PROMPT, **MARKUP})[1]["tokens"]
    prompts = [tokens, tokens[:-1]]
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompts, "n": 2, "temperature": 0}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in whole.choices]
    assert "Paris" in texts[0]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3] != texts[0]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(tokens) + len(tokens) - 1
    streamed = [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


def test_log_probabilities(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "logprobs": 2}
    [choice] = client.completions.create(**asked, extra_body=MARKUP).choices
    scored = choice.logprobs
    assert scored is not None
    assert scored.tokens is not None
    assert scored.text_offset is not None
    assert scored.top_logprobs is not None
    assert "".join(scored.tokens) == choice.text
    for token, offset in zip(scored.tokens, scored.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)
    assert all(len(top) == 2 for top in scored.top_logprobs)


def test_a_stop_string_and_a_limit(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0}
    [stopped] = client.completions.create(**asked, stop="aris", extra_body=MARKUP).choices
    assert stopped.text.endswith("P")
    assert stopped.finish_reason == "stop"
    [cut] = client.completions.create(**asked, max_tokens=1, extra_body=MARKUP).choices
    assert cut.finish_reason == "length"


def test_text_makes_no_control_token(server: Server) -> None:
    plain = server.post("/tokenize", {"prompt": PROMPT})[1]
    marked = server.post("/tokenize", {"prompt": PROMPT, **MARKUP})[1]
    assert max(plain["tokens"]) < 199_998 < max(marked["tokens"])
    for tokens in (plain["tokens"], marked["tokens"]):
        assert server.post("/detokenize", {"tokens": tokens})[1] == {"prompt": PROMPT}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    rendered = server.post("/tokenize", {**chat, "return_token_strs": True})[1]
    assert rendered["count"] == len(rendered["tokens"]) == len(rendered["token_strs"])
    assert rendered["token_strs"][-2:] == ["<|start|>", "assistant"]
    used = server.post("/v1/chat/completions", {**chat, "max_tokens": 1})[1]["usage"]
    assert used["prompt_tokens"] == rendered["count"]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": [201_088]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 64, "n": 3}, "n"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": " word" * 140_000}, "prompt"),
    ],
)
def test_refusals(client: OpenAI, members: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(**({"model": MODEL, "prompt": "Hi"} | members))
    assert caught.value.param == param

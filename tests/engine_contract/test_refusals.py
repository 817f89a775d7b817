"""Requests that cannot be served end with an error of their own, and nothing else does."""

from typing import Any

import pytest

from tests.engine_contract.engines import CONTEXT_LENGTH
from tests.engine_contract.frontend import Frontend

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "the prompt is empty"),
    ({"prompt": [5, -1]}, "not in the vocabulary"),
    ({"prompt": [5, 300_000]}, "not in the vocabulary"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"logprobs": 21}, "logprobs"),
    ({"stop_token_ids": (300_000,)}, "stop_token_ids"),
    ({"logit_bias": {300_000: 1.0}}, "logit_bias"),
    ({"logit_bias": {5: 101.0}}, "logit_bias"),
    ({"presence_penalty": 3.0}, "presence_penalty"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
]


def test_bad_requests_are_told_why(frontend: Frontend) -> None:
    before = frontend.status().errors
    streams = [frontend.generate(**request) for request, _ in BAD]
    for stream, (request, complaint) in zip(streams, BAD, strict=True):
        said = frontend.hear(stream)
        assert (said.ids, said.end) == ([], "invalid_request"), request
        assert complaint in said.message
    status = frontend.status()
    assert (status.errors - before, status.kept) == (len(BAD), len(BAD))


@pytest.mark.parametrize("length", [CONTEXT_LENGTH, CONTEXT_LENGTH + 1, 10 * CONTEXT_LENGTH])
def test_a_prompt_without_room_for_a_token(frontend: Frontend, length: int) -> None:
    said = frontend.complete([5] * length)
    assert (said.ids, said.end) == ([], "context_length_exceeded")
    assert str(length) in said.message


def test_others_go_on_beside_a_bad_request(frontend: Frontend) -> None:
    good = frontend.generate(max_tokens=30)
    frontend.hear(good, at_least=1)
    assert frontend.complete([]).end == "invalid_request"
    said = frontend.hear(good)
    assert (len(said.ids), said.end) == (30, "length")
    assert len(frontend.complete(max_tokens=5).ids) == 5


def test_rubbish_is_counted_and_ends_nothing(frontend: Frontend) -> None:
    stream = frontend.generate(max_tokens=30)
    before = frontend.status().rejected
    frontend.send_raw(b"rubbish")
    assert frontend.status().rejected == before + 1
    assert len(frontend.hear(stream).ids) == 30

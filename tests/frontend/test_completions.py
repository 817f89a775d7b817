"""From a completion request to its prompts; text to tokens and back; choices as one reply."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding

from frontend.errors import InvalidRequestError
from frontend.merged import MergedStreams, open_all
from frontend.plain_text import decode_tokens, encode_text
from frontend.prepare import Prepared
from frontend.prepare_completions import prepare_completions
from frontend.prompt import PromptRenderer, PromptTooLongError
from frontend.requests.completions import parse_completion
from frontend.routes.completions import ChoicesOfACompletion
from frontend.streams import StreamHandle
from ipc.messages import CompletionFormat, EngineInfo, Finish, Open
from ipc.vocabulary import ENDOFTEXT, FIRST_SPECIAL, SIZE, special_name
from postproc_workers.testkit.strategies import encode
from tests.frontend.local_system import LocalSystem, settle
from tests.postproc_workers.event_rules import check_text_completion, read_text_stream
from tests.postproc_workers.turns import opening

MARKUP = "<|start|>user<|message|>Hi<|end|>"
PROFILE = settings(max_examples=100, deadline=None, derandomize=True, database=None)
WORDS = st.lists(
    st.sampled_from(
        [
            "word",
            " ",
            "it's",
            "12345",
            "\uff0c",
            "。",
            "é中",
            "\n",
            "--",
            "a_b",
            "don\u2019t",
            "'ll",
        ]
    )
    | st.text(max_size=4),
    max_size=60,
).map("".join)


def prepared(engine: EngineInfo, renderer: PromptRenderer, **members: Any) -> list[Prepared]:
    body = msgspec.json.encode({"model": engine.model, **members})
    return asyncio.run(prepare_completions(parse_completion(body), engine, renderer))


@given(text=WORDS, size=st.integers(2, 40))
@PROFILE
def test_parts_are_cut_between_tokens(renderer: PromptRenderer, text: str, size: int) -> None:
    parts = list(renderer.encode_parts(text, size=size))
    pieces = [renderer._encoding.decode_utf8(part) for part in parts]
    assert "".join(pieces) == text
    if all(len(piece) < 2 * size for piece in pieces):
        assert [token for part in parts for token in part] == renderer.encode(text)


@given(text=WORDS)
@PROFILE
def test_text_survives_its_tokens(renderer: PromptRenderer, text: str) -> None:
    tokens = asyncio.run(encode_text(renderer, text))
    assert all(token < FIRST_SPECIAL for token in tokens)
    assert asyncio.run(decode_tokens(tokens)) == text


def test_special_tokens_are_recognised_when_that_is_asked(
    renderer: PromptRenderer, harmony: HarmonyEncoding
) -> None:
    text = MARKUP + "<|reserved_201087|><|nothing|><|endoftext|>"
    tokens = asyncio.run(encode_text(renderer, text, special=True))
    assert tokens == harmony.encode(text, allowed_special="all")
    assert asyncio.run(decode_tokens(tokens)) == text
    plain = asyncio.run(encode_text(renderer, text))
    assert max(plain) < FIRST_SPECIAL


def test_special_tokens_have_the_names_of_the_vocabulary(harmony: HarmonyEncoding) -> None:
    names = [special_name(token) for token in range(FIRST_SPECIAL, SIZE)]
    assert names == [harmony.decode([token]) for token in range(FIRST_SPECIAL, SIZE)]


def test_others_have_their_turn_while_a_text_is_encoded(renderer: PromptRenderer) -> None:
    async def turns() -> int:
        task = asyncio.create_task(encode_text(renderer, "word " * 100_000))
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        assert len(await task) == 100_001
        return count

    assert asyncio.run(turns()) > 20


def test_counting_stops_at_the_limit(renderer: PromptRenderer) -> None:
    with pytest.raises(PromptTooLongError):
        asyncio.run(encode_text(renderer, "word " * 10_000, limit=100))


def test_all_forms_of_a_prompt(engine: EngineInfo, renderer: PromptRenderer) -> None:
    make = partial(prepared, engine, renderer)
    [text] = make(prompt="Hi there")
    [ids] = make(prompt=text.prompt)
    assert text.prompt == ids.prompt == renderer.encode("Hi there")
    assert [one.prompt for one in make(prompt=["Hi there", "x"])] == [
        text.prompt,
        renderer.encode("x"),
    ]
    assert [one.prompt for one in make(prompt=[[1, 2], [3]])] == [[1, 2], [3]]
    for empty in ({}, {"prompt": None}, {"prompt": ""}):
        assert [one.prompt for one in make(**empty)] == [[ENDOFTEXT]]


def test_the_parameters(engine: EngineInfo, renderer: PromptRenderer) -> None:
    make = partial(prepared, engine, renderer)
    [default] = make(prompt="Hi")
    assert default.sampling.max_tokens == 16
    assert default.sampling.logprobs is None
    assert default.format == CompletionFormat()
    [asked] = make(prompt="Hi", echo=True, max_tokens=10**9, stream=True, n=3, best_of=3, user="u")
    assert asked.sampling.max_tokens == engine.context_length - 1
    assert asked.format == CompletionFormat(echo="Hi")
    assert (asked.choices, asked.streaming) == (3, True)
    [echoed] = make(prompt=[*renderer.encode("Hi"), ENDOFTEXT], echo=True)
    assert echoed.format == CompletionFormat(echo="Hi<|endoftext|>")


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_value"),
        ({"echo": True, "logprobs": 0}, "logprobs", "unsupported_value"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"prompt": [201_088]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": {}}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 65}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 64, "n": 3}, "n", "invalid_value"),
        ({"prompt": " word" * 4096}, "prompt", "context_length_exceeded"),
        ({"prompt": [1] * 4096}, "prompt", "context_length_exceeded"),
        ({"prompt": " word" * 100_000}, "prompt", "context_length_exceeded"),
    ],
)
def test_refusals(
    engine: EngineInfo, renderer: PromptRenderer, members: Any, param: str, code: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepared(engine, renderer, **members)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize("streaming", [True, False])
def test_prompts_times_choices_are_one_reply(streaming: bool) -> None:
    answers = ["Paris.", "Rome.", "Bern", " is"]

    async def test() -> dict[str, Any]:
        system = LocalSystem(workers=2)

        def opens(choice: int) -> Callable[[], StreamHandle]:
            def make(stream_id: int, lease: int) -> Open:
                form = CompletionFormat(include_usage=True, part=choice)
                made = opening(form, streaming=streaming)
                return msgspec.structs.replace(made, stream_id=stream_id, lease=lease)

            return lambda: system.open(make)

        handles = open_all([opens(choice) for choice in range(4)])
        merge = ChoicesOfACompletion([17, 5], handles[0].opening)
        reply = MergedStreams(handles, merge, streaming)
        ids = list(system.engine.sequences)
        for place in (2, 0, 3, 1):  # the order of their ends is not that of the choices
            system.step({ids[place]: encode(answers[place])}, Finish("length"))
            await settle()
        assert reply.terminal is not None
        body = reply.take()
        reply.close()
        assert system.held == {}
        return read_text_stream(body) if streaming else dict(json.loads(body))

    found = asyncio.run(test())
    check_text_completion(found)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in found["choices"]] == answers
    tokens = sum(len(encode(answer)) for answer in answers)
    assert found["usage"] == {
        "prompt_tokens": 22,
        "completion_tokens": tokens,
        "total_tokens": 22 + tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }

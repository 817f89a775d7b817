"""Walks the tables of docs/api.md: every parameter and event of each API is in one, and does what
it says there. What is supported changes what is generated or told, what is refused is an error that
names it, what is ignored changes nothing but what a response repeats."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types import completion_create_params
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from frontend.errors import ApiError
from frontend.prepare import Prepared, prepare_chat, prepare_messages, prepare_responses
from frontend.prepare_completions import prepare_completions
from frontend.prompt import PromptRenderer
from frontend.requests.chat import ChatRequest, parse_chat
from frontend.requests.completions import CompletionRequest, parse_completion
from frontend.requests.messages import MessagesRequest, parse_messages
from frontend.requests.responses import ResponsesRequest, parse_responses
from ipc.messages import EngineInfo, Finish, ResponsesFormat
from postproc_workers.encoders import Failure
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.event_rules import read_responses_stream
from tests.postproc_workers.turns import RESPONSES, opening, post_process

DOCS = (Path(__file__).parent.parent.parent / "docs/api.md").read_text()
TODAY = date(2026, 12, 1)
MODEL = "gpt-oss-20b"
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
CHAT_FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
JSON_FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA}

Body = dict[str, Any]
Prepare = Callable[[bytes, EngineInfo, PromptRenderer], Prepared]


def section(title: str) -> str:
    """The text under a heading of the docs."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def rows(title: str) -> Iterator[tuple[str, str]]:
    """The names in a table and what it says of each."""
    for names, status in re.findall(r"^\| (`.*?`) \| ([a-z ]+) \|", section(title), re.MULTILINE):
        for name in re.findall(r"`(.+?)`", names):
            yield name, status


COMMON_SAMPLES: Body = {
    "model": MODEL,
    "temperature": 0.5,
    "top_p": 0.5,
    "stream": True,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["END"],
    "min_tokens": 1,
    "ignore_eos": True,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.0},
    "priority": 3,
    "cache_salt": "salt",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
    "moderation": {},
    "metadata": {"a": "b"},
}
OPENAI_SAMPLES: Body = COMMON_SAMPLES | {
    "parallel_tool_calls": False,
    "top_logprobs": 2,
    "store": False,
    "stream_options": {"include_obfuscation": True},
}
RESPONSES_SAMPLES: Body = OPENAI_SAMPLES | {
    "input": "Hello",
    "instructions": "Be brief.",
    "tools": [FUNCTION],
    "tool_choice": "required",
    "reasoning.effort": "high",
    "reasoning.summary": "auto",
    "include": ["reasoning.encrypted_content"],
    "text.format": JSON_FORMAT,
    "text.verbosity": "low",
    "max_output_tokens": 5,
    "truncation": "auto",
    "background": True,
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "max_tool_calls": 1,
    "context_management": [{"type": "compaction", "compact_threshold": 10}],
    "access_programs": {},
    "background_options": {},
    "image": {},
}
CHAT_SAMPLES: Body = OPENAI_SAMPLES | {
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": [CHAT_FUNCTION],
    "tool_choice": "required",
    "reasoning_effort": "high",
    "max_completion_tokens": 5,
    "max_tokens": 6,
    "n": 2,
    "logprobs": True,
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "audio": {},
    "functions": [],
    "function_call": "none",
    "web_search_options": {},
    "modalities": ["audio"],
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
}
MESSAGES_SAMPLES: Body = COMMON_SAMPLES | {
    "messages": [{"role": "user", "content": "Hello"}],
    "system": "Be brief.",
    "cache_control": {"type": "ephemeral"},
    "max_tokens": 5,
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "thinking": {"type": "disabled"},
    "output_config.effort": "low",
    "output_config.format": {"type": "json_schema", "schema": SCHEMA},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "stop_sequences": ["END"],
    "user_profile_id": "u",
    "workspace_id": "w",
    "context_management": {"edits": []},
    "diagnostics": {},
    "betas": ["b"],
    "inference_geo": "us",
    "speed": "fast",
    "mcp_servers": [{"url": "x"}],
    "container": "c",
}


COMPLETIONS_SAMPLES: Body = COMMON_SAMPLES | {
    "prompt": "Hello",
    "special_tokens": True,
    "max_tokens": 5,
    "n": 2,
    "best_of": 2,
    "echo": True,
    "logprobs": 3,
    "stream_options": {"include_usage": True},
    "suffix": "x",
}


class Api:
    """One API: its body at the least, what goes with some parameters, and how it is prepared."""

    def __init__(
        self,
        least: Body,
        needs: dict[str, Body],
        samples: Body,
        prepare: Prepare,
        known: set[str],
    ) -> None:
        self.least = least
        self.needs = needs
        self.samples = samples
        self.prepare = prepare
        self.known = known

    def without(self, name: str) -> Body:
        """The body that a parameter is added to."""
        return self.least | self.needs.get(name, {})

    def body(self, name: str) -> Body:
        """A body with the parameter."""
        member, _, inner = name.partition(".")
        value = self.samples[name]
        return self.without(name) | {member: {inner: value} if inner else value}


def responses(body: bytes, engine: EngineInfo, renderer: PromptRenderer) -> Prepared:
    request = parse_responses(body)
    return prepare_responses(request, engine, renderer, TODAY, stored=request.store is not False)


def chat(body: bytes, engine: EngineInfo, renderer: PromptRenderer) -> Prepared:
    return prepare_chat(parse_chat(body), engine, renderer, TODAY)


def completions(body: bytes, engine: EngineInfo, renderer: PromptRenderer) -> Prepared:
    [prepared] = asyncio.run(prepare_completions(parse_completion(body), engine, renderer))
    return prepared


def messages(body: bytes, engine: EngineInfo, renderer: PromptRenderer) -> Prepared:
    return prepare_messages(parse_messages(body), engine, renderer, TODAY)


APIS = {
    "/v1/responses": Api(
        {"model": MODEL, "input": "Hi"},
        {
            "tool_choice": {"tools": [FUNCTION]},
            # Only a conversation that is too long is cut; see test_prepare.
            "truncation": {"input": [{"role": "user", "content": "word " * 1500}] * 3},
        },
        RESPONSES_SAMPLES,
        responses,
        set(ResponseCreateParamsBase.__annotations__) | set(ResponsesRequest.model_fields),
    ),
    "/v1/chat/completions": Api(
        {"model": MODEL, "messages": [USER]},
        {
            "tool_choice": {"tools": [CHAT_FUNCTION]},
            "top_logprobs": {"logprobs": True},
            "stream_options": {"stream": True},
        },
        CHAT_SAMPLES,
        chat,
        set(ChatParams.__annotations__) | set(ChatRequest.model_fields),
    ),
    "/v1/completions": Api(
        {"model": MODEL, "prompt": "Hi"},
        {
            "special_tokens": {"prompt": "<|end|>"},
            "stream_options": {"stream": True},
        },
        COMPLETIONS_SAMPLES,
        completions,
        set(completion_create_params.CompletionCreateParamsBase.__annotations__)
        | set(CompletionRequest.model_fields),
    ),
    "/v1/messages": Api(
        {"model": MODEL, "messages": [USER], "max_tokens": 100},
        {"tool_choice": {"tools": MESSAGES_SAMPLES["tools"]}},
        MESSAGES_SAMPLES,
        messages,
        # Chat's `stop` is called `stop_sequences` there.
        (set(MessageCreateParamsBase.__annotations__) | set(MessagesRequest.model_fields))
        - {"stop"},
    ),
}
ROWS = [(api, name, status) for api in APIS for name, status in rows(f"Parameters of {api}")]


@pytest.mark.parametrize("api", APIS)
def test_every_parameter_is_in_the_table_once(api: str) -> None:
    names = [name for row_api, name, _ in ROWS if row_api == api]
    assert len(names) == len(set(names))
    assert {name.partition(".")[0] for name in names} >= APIS[api].known
    assert set(names) <= set(APIS[api].samples)


@pytest.mark.parametrize(("api", "name", "status"), ROWS)
def test_a_parameter_does_what_the_table_says(
    api: str, name: str, status: str, engine: EngineInfo, renderer: PromptRenderer
) -> None:
    tested = APIS[api]

    def prepared(body: Body) -> Prepared:
        return tested.prepare(msgspec.json.encode(body), engine, renderer)

    match status:
        case "refused":
            with pytest.raises(ApiError) as caught:
                prepared(tested.body(name))
            assert (caught.value.status, caught.value.param) == (400, _at(name, tested))
        case "ignored":
            assert _generated(prepared(tested.body(name))) == _generated(
                prepared(tested.without(name))
            )
        case "supported" if name == "model":
            with pytest.raises(ApiError) as caught:
                prepared(tested.without(name) | {"model": "another"})
            assert caught.value.status == 404
        case "supported" if name == "truncation":
            with pytest.raises(ApiError):
                prepared(tested.without(name))
            assert prepared(tested.body(name)).prompt
        case "supported":
            assert prepared(tested.body(name)) != prepared(tested.without(name))
        case _:
            raise AssertionError(f"{name} is {status!r}")


def _at(name: str, api: Api) -> str:
    return f"{name}[0]" if name == "modalities" else name


def _generated(prepared: Prepared) -> Prepared:
    """What is generated, and told but for the repetition of the request."""
    if isinstance(prepared.format, ResponsesFormat):
        form = msgspec.structs.replace(prepared.format, echo=b"")
        return replace(prepared, format=form)
    return prepared


# --- events ------------------------------------------------------------------------------------

TURN = encode(
    "<|channel|>analysis<|message|>Hm.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{}"
    "<|call|><|start|>assistant<|channel|>commentary to=functions.patch<|message|>x<|call|>"
    "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
)


def sent() -> set[str]:
    """The types of all events that are ever sent: of a turn with everything in it, in all ends."""
    form = msgspec.structs.replace(RESPONSES, summary=True, queued=True)
    opened = opening(form, custom=("patch",))
    endings = (Finish("stop"), Finish("length"), Failure(500, "server_error", "server_error", "x"))
    bodies = [post_process(opened, [TURN], ending, scored=True) for ending in endings]
    return {event["type"] for body in bodies for event in read_responses_stream(body).events}


def test_every_event_of_the_responses_api_is_in_the_table() -> None:
    table = dict(rows("Events of a streamed response"))
    assert {name for name, status in table.items() if status == "sent"} == sent()
    others = tuple(name for name, status in table.items() if status == "not sent")
    union = get_args(get_args(ResponseStreamEvent)[0])
    for event in union:
        [kind] = get_args(event.model_fields["type"].annotation)
        if kind not in table:
            assert kind.startswith(tuple(f"{other}." for other in others)), kind
            assert kind not in sent()

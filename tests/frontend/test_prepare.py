"""From a request's JSON to the prompt, sampling and echo that are sent on."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response
from openai_harmony import HarmonyEncoding

from frontend.errors import ApiError, InvalidRequestError, NotFoundError
from frontend.prepare import Prepared, prepare_chat, prepare_responses, responses_echo
from frontend.prompt import PromptRenderer
from frontend.requests.chat import parse_chat
from frontend.requests.responses import parse_responses
from ipc.messages import ChatFormat, EngineInfo, ResponsesFormat, Sampling
from tests.frontend.conftest import TODAY

CODEX = Path(__file__).parent / "data" / "codex_request.json"
MODEL = "gpt-oss-20b"
USER = {"role": "user", "content": "Hi"}
EVERY_MEMBER = {
    *("background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls"),
    *("metadata", "parallel_tool_calls", "presence_penalty", "previous_response_id"),
    *("prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store"),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
}


class Edge:
    """Prepares requests that are given as members of their JSON."""

    def __init__(self, engine: EngineInfo, renderer: PromptRenderer) -> None:
        self.engine = engine
        self.renderer = renderer

    def responses(self, **members: Any) -> Prepared:
        body = msgspec.json.encode({"model": MODEL, "input": "Hi", **members})
        return prepare_responses(parse_responses(body), self.engine, self.renderer, TODAY)

    def chat(self, **members: Any) -> Prepared:
        body = msgspec.json.encode({"model": MODEL, "messages": [USER], **members})
        return prepare_chat(parse_chat(body), self.engine, self.renderer, TODAY)


@pytest.fixture
def edge(engine: EngineInfo, renderer: PromptRenderer) -> Edge:
    return Edge(engine, renderer)


def echo(**members: Any) -> dict[str, Any]:
    body = msgspec.json.encode({"model": MODEL, "input": "Hi", **members})
    found: dict[str, Any] = json.loads(b"{" + responses_echo(parse_responses(body)) + b"}")
    return found


def test_a_short_request_of_each_api_gives_one_prompt(edge: Edge) -> None:
    chat, responses = edge.chat(), edge.responses()
    assert chat.prompt == responses.prompt
    assert chat.format == ChatFormat(include_usage=False)
    assert isinstance(responses.format, ResponsesFormat)
    for prepared in (chat, responses):
        assert prepared.model == MODEL
        assert prepared.sampling == Sampling(max_tokens=4096 - len(chat.prompt))
        assert not prepared.streaming
        assert prepared.parallel_tool_calls
        assert (prepared.tools, prepared.stop) == ((), ())


def test_all_parameters_are_carried_over(edge: Edge) -> None:
    shared = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "seed": 3,
        "stop": ["END", "\n"],
        "ignore_eos": True,
        "min_tokens": 32,
        "stream": True,
        "parallel_tool_calls": False,
    }
    function = {"name": "f"}
    responses = edge.responses(
        **shared, max_output_tokens=32, tools=[{"type": "function", **function}]
    )
    chat = edge.chat(
        **shared,
        max_completion_tokens=32,
        max_tokens=5,
        tools=[{"type": "function", "function": function}],
        stream_options={"include_usage": True},
    )
    assert chat.format == ChatFormat(include_usage=True)
    for prepared in (chat, responses):
        assert prepared.sampling == Sampling(
            max_tokens=32,
            temperature=0,
            top_p=0.5,
            top_k=7,
            seed=3,
            ignore_eos=True,
            min_tokens=32,
        )
        assert prepared.streaming
        assert not prepared.parallel_tool_calls
        assert (prepared.tools, prepared.stop) == (("f",), ("END", "\n"))
        msgspec.msgpack.encode(prepared.sampling)


@pytest.mark.parametrize("top_k", [-1, 0, 201_088, 2**31 - 1])
def test_filters_that_let_all_pass_are_switched_off(edge: Edge, top_k: int) -> None:
    sampling = edge.chat(top_k=top_k, top_p=1).sampling
    assert (sampling.top_k, sampling.top_p) == (None, None)


def test_limits(edge: Edge) -> None:
    left = 4096 - len(edge.chat().prompt)
    assert edge.chat(max_tokens=5).sampling.max_tokens == 5
    assert edge.chat(max_tokens=2**70).sampling.max_tokens == left
    assert edge.chat(min_tokens=2**70).sampling.min_tokens == left
    with pytest.raises(InvalidRequestError) as caught:
        edge.chat(min_tokens=6, max_tokens=5)
    assert caught.value.param == "min_tokens"


def test_the_context_is_filled_to_its_last_token(edge: Edge) -> None:
    free = edge.responses(input="").sampling.max_tokens
    assert edge.responses(input=" word" * (free - 1)).sampling.max_tokens == 1
    for words, told in ((free, "4096"), (5 * free, "more than 4096")):
        with pytest.raises(InvalidRequestError) as caught:
            edge.responses(input=" word" * words)
        error = caught.value
        assert (error.status, error.code) == (400, "context_length_exceeded")
        assert error.param == "input"
        assert "4096 tokens" in error.message
        assert f"resulted in {told} tokens" in error.message
    with pytest.raises(InvalidRequestError) as caught:
        edge.chat(messages=[{"role": "user", "content": " word" * 5000}])
    assert caught.value.param == "messages"


def test_an_unknown_model_is_a_404(edge: Edge) -> None:
    for prepare in (edge.chat, edge.responses):
        with pytest.raises(NotFoundError) as caught:
            prepare(model="gpt-9")
        assert caught.value.code == "model_not_found"


def test_a_warm_up_of_codex(edge: Edge) -> None:
    assert edge.responses(input="", max_output_tokens=1).sampling.max_tokens == 1


def test_tool_choice_none_offers_nothing(edge: Edge) -> None:
    tools = [{"type": "function", "name": "f"}]
    prepared = edge.responses(tools=tools, tool_choice="none")
    assert prepared.tools == ()
    assert prepared.prompt == edge.responses().prompt


def test_identity_stays_under_a_system_message(edge: Edge, harmony: HarmonyEncoding) -> None:
    """Case 23."""
    text = harmony.decode(edge.chat(messages=[{"role": "system", "content": "Be brief."}]).prompt)
    assert "You are ChatGPT, a large language model trained by OpenAI." in text
    assert "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>" in text


@pytest.mark.parametrize(
    ("effort", "said"), [("minimal", "low"), ("none", "low"), ("high", "high")]
)
def test_effort(edge: Edge, harmony: HarmonyEncoding, effort: str, said: str) -> None:
    """Case 18."""
    prompt = edge.responses(reasoning={"effort": effort}).prompt
    assert f"Reasoning: {said}\n" in harmony.decode(prompt)
    assert echo(reasoning={"effort": effort})["reasoning"] == {"effort": effort, "summary": None}


def test_the_request_of_codex(edge: Edge, harmony: HarmonyEncoding) -> None:
    body = json.loads(CODEX.read_text())["body"]
    prepared = edge.responses(**body)
    assert prepared.streaming
    assert prepared.tools == (
        "exec_command",
        "write_stdin",
        "request_user_input",
        "view_image",
        *(f"multi_agent_v1.{name}_agent" for name in ("close", "resume")),
        "multi_agent_v1.send_input",
        *(f"multi_agent_v1.{name}_agent" for name in ("spawn", "wait")),
        "get_goal",
        "create_goal",
        "update_goal",
    )
    text = harmony.decode(prepared.prompt)
    assert text.endswith("<|start|>user<|message|>Say hello<|end|><|start|>assistant")
    assert text.count("<|start|>developer") == 1
    assert 'status: "complete" | "blocked" | "paused"' in text
    assert "namespace multi_agent_v1 {" in text
    assert "type spawn_agent = (_: {" in text
    assert echo(**body)["tools"] == body["tools"]


def test_a_replayed_turn_of_codex(edge: Edge, harmony: HarmonyEncoding) -> None:
    """Case 15, with all the members that Codex sends back."""
    prompt = edge.responses(
        input=[
            {"type": "message", "id": "msg_1", **USER},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {
                "type": "function_call",
                "id": "fc_1",
                "name": "exec_command",
                "arguments": '{"cmd":"ls"}',
                "call_id": "call_1",
            },
            {
                "type": "function_call_output",
                "id": "fco_1",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "README.md"}],
            },
        ]
    ).prompt
    assert harmony.decode(prompt).endswith(
        "<|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant to=functions.exec_command<|channel|>commentary <|constrain|>json"
        '<|message|>{"cmd":"ls"}<|call|>'
        "<|start|>functions.exec_command to=assistant<|channel|>commentary<|message|>README.md"
        "<|end|><|start|>assistant"
    )


# --- echo --------------------------------------------------------------------------------------


def resource(members: dict[str, Any]) -> Response:
    """The response object as a worker completes it, checked against the SDK's type."""
    own = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "output": [],
        "usage": None,
    }
    assert not own.keys() & members.keys()
    return Response.model_validate({**own, **members})


def test_echo_of_a_bare_request() -> None:
    members = echo()
    assert members.keys() == EVERY_MEMBER
    resource(members)
    assert members["store"] is False
    assert members["tools"] == []
    assert members["tool_choice"] == "auto"
    assert members["metadata"] == {}
    assert members["reasoning"] == {"effort": "medium", "summary": None}
    assert members["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (members["temperature"], members["top_p"], members["top_logprobs"]) == (1.0, 1.0, 0)


def test_echo_repeats_the_request() -> None:
    sent = {
        "instructions": 'Say "hi"\n<|end|>',
        "max_output_tokens": 5,
        "max_tool_calls": 2,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "p",
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "safety_identifier": "s",
        "temperature": 0.0,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "none",
        "top_p": 0.5,
        "user": "u",
    }
    members = echo(**sent)
    assert {name: members[name] for name in sent} == sent
    assert members.keys() == EVERY_MEMBER
    resource(members)


def test_echo_tells_what_has_no_effect() -> None:
    members = echo(store=True, service_tier="flex")
    assert members["store"] is False  # where nothing is stored
    assert members["service_tier"] == "default"


def test_echo_fills_in_functions_and_keeps_other_tools() -> None:
    other = {"type": "web_search", "external_web_access": True}
    members = echo(tools=[{"type": "function", "name": "f"}, other])
    assert members["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False},
        other,
    ]
    resource(members)


def test_nothing_but_api_errors_for_a_bad_call_history(edge: Edge) -> None:
    """Case 25."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": []}
    assert edge.chat(messages=[USER, answer, result]).prompt
    with pytest.raises(ApiError) as caught:
        edge.chat(messages=[USER, answer, {**result, "tool_call_id": "c2"}])
    assert (caught.value.status, caught.value.param) == (400, "messages[2].tool_call_id")


def test_the_earliest_turns_are_left_out_if_that_is_asked(
    edge: Edge, harmony: HarmonyEncoding
) -> None:
    turns = [{"role": "user", "content": f"Turn {n}. " + "word " * 500} for n in range(20)]
    with pytest.raises(InvalidRequestError) as caught:
        edge.responses(input=turns)
    assert caught.value.code == "context_length_exceeded"
    prompt = edge.responses(input=turns, instructions="Be brief.", truncation="auto").prompt
    text = harmony.decode(prompt)
    assert len(prompt) < edge.engine.context_length
    assert "Be brief." in text
    kept = [n for n in range(20) if f"Turn {n}." in text]
    assert kept == list(range(kept[0], 20))
    assert len(kept) == 7


def test_no_result_is_left_without_its_call(edge: Edge, harmony: HarmonyEncoding) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "x " * 2500}
    result = {"type": "function_call_output", "call_id": "c", "output": "RESULT " + "y " * 1000}
    last = {"role": "user", "content": "Last. " + "z " * 900}
    prompt = edge.responses(input=[call, result, last], truncation="auto").prompt
    text = harmony.decode(prompt)
    assert "Last." in text
    assert "RESULT" not in text


def test_one_turn_that_is_too_long_cannot_be_left_out(edge: Edge) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        edge.responses(input="word " * 5000, truncation="auto")
    assert caught.value.code == "context_length_exceeded"


def test_logprobs_and_choices_are_asked_for(edge: Edge) -> None:
    include = ["message.output_text.logprobs"]
    assert edge.responses().sampling.logprobs is None
    assert edge.responses(include=include).sampling.logprobs == 0
    assert edge.responses(top_logprobs=3).sampling.logprobs == 3
    assert edge.chat().sampling.logprobs is None
    assert edge.chat(logprobs=True).sampling.logprobs == 0
    assert edge.chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert (edge.chat().choices, edge.chat(n=3).choices) == (1, 3)

"""The openai Python client against the real server on the demo model."""

import asyncio
import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import (
    FunctionToolParam,
    Response,
    ResponseFunctionToolCall,
    ResponseInputParam,
    ResponseTextConfigParam,
)

from tests.clients.conftest import MODEL, MakeAsyncClient
from tests.servers import Server

QUESTION = "What is the capital of France?"
WEATHER = "What is the weather in Paris right now? Use the get_weather tool."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "City name"}},
    "required": ["city"],
    "additionalProperties": False,
}
RESPONSES_TOOL: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "parameters": PARAMETERS,
    "strict": True,
}
RESULT = json.dumps({"temperature": 21, "sky": "sunny"})


def warm(client: OpenAI) -> None:
    """Let the question's prompt be cached, so that both turns of a comparison find it so."""
    client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=1)


def test_a_responses_turn_streamed_equals_unstreamed(client: OpenAI) -> None:
    warm(client)
    whole = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text
    assert "Paris" in whole.output_text
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert final.usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens > 0


def test_a_chat_turn_streamed_equals_unstreamed(client: OpenAI) -> None:
    warm(client)
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    with client.chat.completions.stream(
        model=MODEL, messages=messages, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    message = whole.choices[0].message
    assert final.choices[0].message.content == message.content
    assert "Paris" in (message.content or "")
    assert final.usage == whole.usage
    assert message.model_extra is not None
    assert message.model_extra["reasoning"]
    assert whole.choices[0].finish_reason == "stop"


def call_of(response: Response) -> ResponseFunctionToolCall:
    calls = [item for item in response.output if item.type == "function_call"]
    assert len(calls) == 1, response.output
    return calls[0]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_function_call_round_trip_with_responses(client: OpenAI, streamed: bool) -> None:
    history: ResponseInputParam = [{"role": "user", "content": WEATHER}]

    def turn() -> Response:
        tools = [RESPONSES_TOOL]
        if not streamed:
            return client.responses.create(model=MODEL, input=history, tools=tools, temperature=0)
        with client.responses.stream(
            model=MODEL, input=history, tools=tools, temperature=0
        ) as stream:
            arguments = [
                e.delta for e in stream if e.type == "response.function_call_arguments.delta"
            ]
            final = stream.get_final_response()
        assert "".join(arguments) == "".join(
            item.arguments for item in final.output if item.type == "function_call"
        )
        return final

    first = turn()
    call = call_of(first)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    history += [item.to_dict() for item in first.output]  # type: ignore[misc]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    second = turn()
    assert second.status == "completed"
    assert second.output_text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_function_call_round_trip_with_chat(client: OpenAI, streamed: bool) -> None:
    function = {name: value for name, value in RESPONSES_TOOL.items() if name != "type"}
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    options: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}

    def turn() -> Any:
        if not streamed:
            return client.chat.completions.create(
                model=MODEL, messages=messages, temperature=0, **options
            ).choices[0]
        with client.chat.completions.stream(
            model=MODEL, messages=messages, temperature=0, **options
        ) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion().choices[0]

    first = turn()
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages.append(first.message.to_dict())
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    second = turn()
    assert second.finish_reason == "stop"
    assert second.message.content


def test_thirty_two_streams_at_once(make_async_client: MakeAsyncClient) -> None:
    """Each says what it says alone, whichever worker and batch it is in."""
    questions = [f"What is {a} + {b}?" for a in range(8) for b in range(4)]

    async def ask(client: Any, question: str) -> str:
        async with client.responses.stream(model=MODEL, input=question, temperature=0) as stream:
            final: Response = await stream.get_final_response()
        assert final.status == "completed"
        return final.output_text

    async def ask_all(at_once: bool) -> list[str]:
        async with make_async_client() as client:
            if at_once:
                return list(await asyncio.gather(*(ask(client, q) for q in questions)))
            return [await ask(client, question) for question in questions[:4]]

    together = asyncio.run(ask_all(at_once=True))
    assert all(together)
    assert together[:4] == asyncio.run(ask_all(at_once=False))


def test_a_client_that_leaves(make_async_client: MakeAsyncClient, server: Server) -> None:
    async def leave() -> None:
        async with make_async_client() as client:
            stream = await client.responses.create(
                model=MODEL,
                input="Tell me a story.",
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for event in stream:
                if event.type == "response.reasoning_text.delta":
                    break
            await stream.close()

    released = 'antiphon_worker_streams_released_total{reason="abort",worker='
    aborted = sum(v for k, v in server.metrics().items() if k.startswith(released))
    asyncio.run(leave())
    server.wait_until_idle()
    assert sum(v for k, v in server.metrics().items() if k.startswith(released)) == aborted + 1


def test_a_limit_makes_it_incomplete(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Count to 20.", max_output_tokens=16)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 16


def test_ignoring_the_models_end_goes_on_to_the_limit(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_completion_tokens=150,
        seed=1,
        extra_body={"ignore_eos": True},
    )
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 150
    assert completion.choices[0].finish_reason == "length"


def test_a_seed_repeats_a_sample(client: OpenAI) -> None:
    def sample(seed: int) -> str | None:
        return (
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Tell me something."}],
                seed=seed,
                temperature=2,
                max_completion_tokens=30,
            )
            .choices[0]
            .to_json()
        )

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_models_and_mistakes(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(BadRequestError, match="temperature"):
        client.responses.create(model=MODEL, input="Hi", temperature=3)


ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 9_999_999},
        "size": {"enum": ["small", "large"]},
    },
    "required": ["city", "population", "size"],
    "additionalProperties": False,
}


ANSWER_FORMAT: ResponseTextConfigParam = {
    "format": {"type": "json_schema", "name": "city", "schema": ANSWER_SCHEMA}
}


def check_answer(text: str | None) -> None:
    answer = json.loads(text or "")
    assert list(answer) == ["city", "population", "size"]
    assert isinstance(answer["population"], int)
    assert answer["size"] in ("small", "large")


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_by_a_schema(client: OpenAI, temperature: float) -> None:
    sampling: dict[str, Any] = {"temperature": temperature, "extra_body": {"seed": 7}}
    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        text=ANSWER_FORMAT,
        **sampling,
    )
    assert response.status == "completed"
    check_answer(response.output_text)
    assert response.output[0].type == "reasoning"
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": ANSWER_SCHEMA, "strict": True},
        },
        **sampling,
    ) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == response.output_text


def test_any_json_object(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello in JSON."}],
        response_format={"type": "json_object"},
        temperature=0,
        max_completion_tokens=200,
    )
    choice = completion.choices[0]
    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_call_that_is_forced(client: OpenAI, seed: int) -> None:
    """Also where the model would rather answer."""
    other: FunctionToolParam = {
        "type": "function",
        "name": "add",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "strict": True,
    }
    response = client.responses.create(
        model=MODEL,
        input="Hello!",
        tools=[RESPONSES_TOOL, other],
        tool_choice={"type": "function", "name": "add"},
        extra_body={"seed": seed},
    )
    assert (call_of(response).name, call_of(response).arguments) == ("add", "{}")
    required = client.responses.create(
        model=MODEL,
        input="Hello!",
        tools=[other],
        tool_choice="required",
        extra_body={"seed": seed},
    )
    assert call_of(required).name == "add"


def test_a_schema_that_cannot_be_followed(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(
            model=MODEL,
            input="Hi",
            text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "strange"}}},
        )
    assert caught.value.param == "text.format.schema"


def test_a_prompt_that_was_seen_is_cached(client: OpenAI) -> None:
    prompt = "Here is a long list of words to remember: " + "apple pear plum " * 40
    first, again = (client.responses.create(model=MODEL, input=prompt) for _ in range(2))
    assert first.usage is not None
    assert again.usage is not None
    assert first.usage.input_tokens == again.usage.input_tokens
    cached = again.usage.input_tokens_details.cached_tokens
    assert again.usage.input_tokens - 16 <= cached < again.usage.input_tokens


EXTREME: list[dict[str, Any]] = [
    {"ignore_eos": True, "max_completion_tokens": 120},
    {"min_tokens": 90, "max_completion_tokens": 120},
    {"logit_bias": {"200002": -100, "200005": -100, "200008": -100, "90": -100, "92": -100}},
    {"temperature": 2, "top_k": 1},
    {"stop": ["no such text"]},
]


@pytest.mark.parametrize("extreme", EXTREME, ids=lambda extreme: next(iter(extreme)))
def test_an_answer_by_a_schema_whatever_the_sampling(
    client: OpenAI, extreme: dict[str, Any]
) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": ANSWER_SCHEMA, "strict": True},
        },
        extra_body={"seed": 3, **extreme},
    )
    check_answer(completion.choices[0].message.content)


def test_an_answer_by_a_schema_that_is_cut(client: OpenAI) -> None:
    """By a limit of a token, and by a stop string."""
    response = client.responses.create(
        model=MODEL, input=QUESTION, max_output_tokens=1, text=ANSWER_FORMAT
    )
    assert response.status == "incomplete"
    stopped = client.responses.create(
        model=MODEL, input=QUESTION, text=ANSWER_FORMAT, extra_body={"stop": '"popul'}
    )
    assert stopped.status == "completed"
    assert stopped.output_text.startswith('{"city":')
    assert "popul" not in stopped.output_text


def test_a_strict_function_that_need_not_be_called(client: OpenAI) -> None:
    """Two functions, and a format: it is one of the calls or the answer, each by its schema."""
    strict: FunctionToolParam = {
        "type": "function",
        "name": "f-1_",
        "parameters": ANSWER_SCHEMA,
        "strict": True,
    }
    for seed in range(4):
        response = client.responses.create(
            model=MODEL,
            input=QUESTION,
            tools=[RESPONSES_TOOL, strict],
            text=ANSWER_FORMAT,
            extra_body={"seed": seed, "ignore_eos": True},
            max_output_tokens=150,
        )
        last = response.output[-1]
        if last.type == "function_call":
            assert last.name in ("f-1_", RESPONSES_TOOL["name"])
            arguments = json.loads(last.arguments)
            if last.name == "f-1_":
                check_answer(json.dumps(arguments))
        else:
            check_answer(response.output_text)
        assert [item.type for item in response.output].count("function_call") <= 1

"""The anthropic Python client against the real server on the demo model."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam, ToolResultBlockParam
from pydantic import BaseModel

from tests.clients.conftest import MODEL
from tests.servers import Server

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello!"}]
WEATHER = "What is the weather in Paris right now? Use the get_weather tool."
TOOL: ToolParam = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "City name"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def told(message: Message) -> dict[str, Any]:
    """A message without its ids."""
    found = message.to_dict()
    for part in (found, *found["content"]):  # type: ignore[misc]
        part.pop("id", None)
    return found


def test_a_turn_streamed_equals_unstreamed(client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": QUESTION}
    client.messages.create(**asked | {"max_tokens": 1})  # from now on the prompt is cached
    whole = client.messages.create(**asked, extra_body=GREEDY)
    with client.messages.stream(**asked, extra_body=GREEDY) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "Paris" in streamed
    assert streamed == text_of(whole)
    assert told(final) == told(whole)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    usage = whole.usage
    assert usage.cache_read_input_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert usage.output_tokens_details is not None
    assert 0 < usage.output_tokens_details.thinking_tokens < usage.output_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(client: Anthropic, streamed: bool) -> None:
    history: list[MessageParam] = [{"role": "user", "content": WEATHER}]

    def turn() -> Message:
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": history}
        asked |= {"tools": [TOOL], "extra_body": GREEDY}
        if not streamed:
            message: Message = client.messages.create(**asked)
            return message
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    first = turn()
    assert first.stop_reason == "tool_use"
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result: ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": '{"temperature": 21, "sky": "sunny"}'}],
    }
    history.append({"role": "assistant", "content": first.content})
    history.append({"role": "user", "content": [result]})
    second = turn()
    assert second.stop_reason == "end_turn"
    assert text_of(second)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_is_forced(client: Anthropic, choice: Any) -> None:
    """Also where the model would rather answer."""
    tool: ToolParam = {
        "name": "get_weather",
        "input_schema": {"type": "object", "additionalProperties": False},
        "strict": True,
    }
    message = client.messages.create(
        model=MODEL,
        max_tokens=500,
        messages=HELLO,
        tools=[tool],
        tool_choice=choice,
        extra_body={"seed": 1},
    )
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input, message.stop_reason) == ("get_weather", {}, "tool_use")


class City(BaseModel):
    capital: bool


def test_an_answer_by_a_schema(client: Anthropic) -> None:
    message = client.messages.parse(
        model=MODEL, max_tokens=500, messages=QUESTION, output_format=City, extra_body=GREEDY
    )
    assert isinstance(message.parsed_output, City)


def test_what_is_shown_of_the_reasoning(client: Anthropic) -> None:
    def kinds(thinking: Any) -> list[str]:
        message = client.messages.create(
            model=MODEL, max_tokens=500, messages=QUESTION, thinking=thinking, extra_body=GREEDY
        )
        assert not any(block.thinking for block in message.content if block.type == "thinking")
        return [block.type for block in message.content]

    assert kinds({"type": "disabled"}) == ["text"]
    assert kinds({"type": "adaptive", "display": "omitted"}) == ["thinking", "text"]


def test_limits(client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "extra_body": GREEDY}
    assert client.messages.create(**asked, max_tokens=5).stop_reason == "max_tokens"
    stopped = client.messages.create(**asked, max_tokens=500, stop_sequences=["aris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "aris")
    assert text_of(stopped).endswith("P")
    # The client wants to stream what may be so long, unless it is told how long to wait.
    most = client.messages.create(**asked, max_tokens=200_000, timeout=60)
    assert most.stop_reason == "end_turn"


def test_mistakes(client: Anthropic, server: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": QUESTION}
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**asked | {"model": "other"})
    assert caught.value.request_id
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    long: list[MessageParam] = [{"role": "user", "content": "word " * 300_000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+"):
        client.messages.create(**asked | {"messages": long})
    answer: MessageParam = {"role": "assistant", "content": "The answer is ("}
    with pytest.raises(anthropic.BadRequestError, match="does not continue"):
        client.messages.create(**asked | {"messages": [*QUESTION, answer]})


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.type, model.lifecycle) == (MODEL, "model", "active")
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_many_at_once(server: Server) -> None:
    async def ask(client: AsyncAnthropic, question: str) -> str:
        async with client.messages.stream(
            model=MODEL,
            max_tokens=500,
            messages=[{"role": "user", "content": question}],
            extra_body=GREEDY,
        ) as stream:
            return text_of(await stream.get_final_message())

    async def ask_all() -> None:
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            questions = [f"What is {a} + {b}?" for a in range(4) for b in range(4)]
            together = await asyncio.gather(*(ask(client, q) for q in questions))
            assert all(together)
            assert together[0] == await ask(client, questions[0])

    asyncio.run(ask_all())


def test_a_client_that_leaves(server: Server) -> None:
    async def leave() -> None:
        async with (
            AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
            client.messages.stream(
                model=MODEL,
                max_tokens=100_000,
                messages=[{"role": "user", "content": "Tell me a story."}],
                extra_body={"ignore_eos": True},
            ) as stream,
        ):
            async for event in stream:
                if event.type == "content_block_delta":
                    break

    released = 'antiphon_worker_streams_released_total{reason="abort",worker='
    aborted = sum(v for k, v in server.metrics().items() if k.startswith(released))
    asyncio.run(leave())
    server.wait_until_idle()
    assert sum(v for k, v in server.metrics().items() if k.startswith(released)) == aborted + 1

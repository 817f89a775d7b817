"""OpenAI's Agents SDK, with either of its models, against the scripted engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import (
    Agent,
    AgentsException,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import APIError, AsyncOpenAI
from pydantic import BaseModel

from tests.clients import scripts
from tests.clients.conftest import MODEL
from tests.servers import Server

set_tracing_disabled(True)

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
each_model = pytest.mark.parametrize("kind", MODELS)


class City(BaseModel):
    city: str
    population: int


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    assert city == "Paris"
    return scripts.WEATHER_RESULT


@asynccontextmanager
async def agent(server: Server, kind: str, **options: Any) -> AsyncIterator[Agent]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model: Model = MODELS[kind](model=MODEL, openai_client=client)
        settings = ModelSettings(include_usage=True)
        yield Agent(name="a", model=model, model_settings=settings, **options)


@each_model
def test_a_streamed_tool_loop(scripted: Server, kind: str) -> None:
    async def run() -> None:
        async with agent(scripted, kind, tools=[get_weather]) as asked:
            result = Runner.run_streamed(asked, scripts.WEATHER)
            raw = [
                event.data.type
                async for event in result.stream_events()
                if event.type == "raw_response_event"
            ]
        assert raw.count("response.created") == raw.count("response.completed") == 2
        assert "response.function_call_arguments.delta" in raw
        assert [item.type for item in result.new_items] == [
            "reasoning_item",
            "message_output_item",
            "tool_call_item",
            "tool_call_output_item",
            "reasoning_item",
            "message_output_item",
        ]
        assert result.final_output == scripts.WEATHER_ANSWER
        usage = result.context_wrapper.usage
        assert usage.requests == 2
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0

    asyncio.run(run())


@each_model
def test_an_output_type(scripted: Server, kind: str) -> None:
    async def run() -> None:
        async with agent(scripted, kind, output_type=City) as asked:
            result = await Runner.run(asked, scripts.CITY)
        assert result.final_output == City(city="Paris", population=2_100_000)

    asyncio.run(run())


@each_model
def test_an_error_in_mid_stream(scripted: Server, kind: str) -> None:
    async def run() -> None:
        async with agent(scripted, kind) as asked:
            result = Runner.run_streamed(asked, scripts.FAILING)
            async for _ in result.stream_events():
                pass

    with pytest.raises((AgentsException, APIError), match=scripts.FAILURE):
        asyncio.run(run())

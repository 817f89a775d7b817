"""LangChain's ChatOpenAI, on either API, against the scripted engine."""

from collections.abc import Iterable

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import APIError
from pydantic import BaseModel, SecretStr

from tests.clients import scripts
from tests.clients.conftest import MODEL
from tests.servers import Server

each_api = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


class City(BaseModel):
    city: str
    population: int


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    assert city == "Paris"
    return scripts.WEATHER_RESULT


def chat(server: Server, responses: bool) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{server.url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        use_responses_api=responses,
        stream_usage=True,
    )


def joined(pieces: Iterable[AIMessage]) -> AIMessageChunk:
    whole, *chunks = [piece for piece in pieces if isinstance(piece, AIMessageChunk)]
    for chunk in chunks:
        whole += chunk
    return whole


@each_api
def test_an_answer_streamed_equals_unstreamed(scripted: Server, responses: bool) -> None:
    model = chat(scripted, responses)
    whole = model.invoke(scripts.HELLO)
    streamed = joined(model.stream(scripts.HELLO))
    assert whole.text == streamed.text == scripts.GREETING
    assert whole.usage_metadata == streamed.usage_metadata
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0


@each_api
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(scripted: Server, responses: bool, streamed: bool) -> None:
    model = chat(scripted, responses).bind_tools([get_weather])
    history: list[BaseMessage] = [HumanMessage(scripts.WEATHER)]

    def turn() -> AIMessage:
        return joined(model.stream(history)) if streamed else model.invoke(history)

    first = turn()
    assert first.text == scripts.PREAMBLE
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    history += [first, get_weather.invoke(call)]
    second = turn()
    assert second.text == scripts.WEATHER_ANSWER
    assert not second.tool_calls


@each_api
def test_structured_output(scripted: Server, responses: bool) -> None:
    model = chat(scripted, responses).with_structured_output(City, method="json_schema")
    assert model.invoke(scripts.CITY) == City(city="Paris", population=2_100_000)


@each_api
def test_an_error_in_mid_stream(scripted: Server, responses: bool) -> None:
    with pytest.raises((APIError, ValueError), match=scripts.FAILURE):
        list(chat(scripted, responses).stream(scripts.FAILING))

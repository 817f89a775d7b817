"""What is kept of responses, as the openai client uses it: on the demo model."""

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response

from tests.clients.conftest import MODEL

QUESTION = "What is the capital of France?"


def ask(client: OpenAI, **members: Any) -> Response:
    asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0}
    found = client.responses.create(**(asked | members))
    assert isinstance(found, Response)
    return found


def ended(client: OpenAI, response: Response) -> Response:
    """A response in the background, once its stream has ended."""
    for event in client.responses.retrieve(response.id, stream=True):
        last = event
    found: Response = last.response  # type: ignore[union-attr]
    return found


def test_streamed_retrieved_and_replayed_are_one(client: OpenAI) -> None:
    """Case 10."""
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        events = list(stream)
        final = stream.get_final_response()
    retrieved = client.responses.retrieve(final.id)
    assert retrieved.output_text == final.output_text
    assert [item.to_dict()["id"] for item in retrieved.output] == [
        item.to_dict()["id"] for item in final.output
    ]
    replayed = list(client.responses.retrieve(final.id, stream=True))
    assert [event.type for event in replayed] == [event.type for event in events]
    assert replayed[-1].response.to_dict() == retrieved.to_dict()  # type: ignore[union-attr]
    assert [event.sequence_number for event in replayed] == list(range(len(events)))
    later = list(client.responses.retrieve(final.id, stream=True, starting_after=5))
    assert [event.sequence_number for event in later] == list(range(6, len(events)))
    whole = ask(client)
    assert client.responses.retrieve(whole.id).to_dict() == whole.to_dict()


def test_a_deleted_response_is_gone(client: OpenAI) -> None:
    response = ask(client, metadata={"k": "v"})
    assert client.responses.retrieve(response.id).metadata == {"k": "v"}
    client.responses.delete(response.id)
    for call in (
        lambda: client.responses.retrieve(response.id),
        lambda: client.responses.delete(response.id),
        lambda: list(client.responses.retrieve(response.id, stream=True)),
        lambda: client.responses.input_items.list(response.id),
        lambda: client.responses.cancel(response.id),
    ):
        with pytest.raises(NotFoundError) as caught:
            call()
        assert caught.value.body["param"] == "response_id"  # type: ignore[index]


def test_one_response_goes_on_in_two_ways(client: OpenAI) -> None:
    """Case 16."""
    first = ask(client, input="My name is Ada.")
    second, third = (
        ask(client, input=text, previous_response_id=first.id) for text in ("One.", "Two.")
    )
    assert second.previous_response_id == third.previous_response_id == first.id
    alone = client.responses.input_tokens.count(model=MODEL, input="One.").input_tokens
    assert second.usage is not None
    assert third.usage is not None
    assert second.usage.input_tokens == third.usage.input_tokens > alone
    counted = client.responses.input_tokens.count(
        model=MODEL, input="One.", previous_response_id=first.id
    )
    assert counted.input_tokens == second.usage.input_tokens
    fourth = ask(client, input="Three.", previous_response_id=second.id)
    assert fourth.usage is not None
    assert fourth.usage.input_tokens > second.usage.input_tokens


@pytest.mark.parametrize("stored", [False, None])
def test_what_is_not_there_is_not_gone_on_from(client: OpenAI, stored: bool | None) -> None:
    previous = "resp_" + "0" * 32 if stored is None else ask(client, store=False).id
    with pytest.raises(BadRequestError) as caught:
        ask(client, previous_response_id=previous)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def test_an_ancestor_that_was_deleted_is_named(client: OpenAI) -> None:
    first = ask(client)
    second = ask(client, previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(BadRequestError, match=first.id):
        ask(client, previous_response_id=second.id)


def test_the_input_is_listed_a_page_at_a_time(client: OpenAI) -> None:
    texts = [f"message {number}" for number in range(5)]
    response = ask(client, input=[{"role": "user", "content": text} for text in texts])
    found = list(client.responses.input_items.list(response.id, order="asc", limit=2))
    assert [item.content[0].text for item in found] == texts  # type: ignore[union-attr, index]
    newest = client.responses.input_items.list(response.id, limit=2)
    assert [item.id for item in newest.data] == [found[4].id, found[3].id]
    assert newest.has_more
    with pytest.raises(BadRequestError) as caught:
        client.responses.input_items.list(response.id, after="msg_0")
    assert caught.value.param == "after"
    with pytest.raises(BadRequestError) as caught:
        client.responses.input_items.list(response.id, limit=101)
    assert caught.value.param == "limit"


def test_items_are_referred_to(client: OpenAI) -> None:
    first = ask(client)
    [given] = client.responses.input_items.list(first.id).data
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    said += [item.to_dict() for item in first.output]
    referring: list[Any] = [{"type": "item_reference", "id": given.id}]
    referring += [{"type": "item_reference", "id": item.id} for item in first.output]
    more: list[Any] = [{"role": "user", "content": "And of Spain?"}]
    one, two = (ask(client, input=items + more) for items in (said, referring))
    assert one.usage is not None
    assert two.usage is not None
    assert one.usage.input_tokens == two.usage.input_tokens
    counted = client.responses.input_tokens.count(model=MODEL, input=[*referring, *more])
    assert counted.input_tokens == two.usage.input_tokens
    listed = client.responses.input_items.list(two.id, order="asc").data
    assert [item.id for item in listed[:-1]] == [given.id, *(item.id for item in first.output)]
    for missing in ("rs_" + "0" * 32 + "00", "anything"):
        with pytest.raises(BadRequestError) as caught:
            ask(client, input=[{"type": "item_reference", "id": missing}])
        assert caught.value.param == "input[0].id"


def test_a_response_in_the_background(client: OpenAI) -> None:
    response = ask(client, background=True)
    assert response.background
    assert response.status in ("queued", "in_progress")
    final = ended(client, response)
    assert final.status == "completed"
    assert "Paris" in final.output_text
    assert client.responses.retrieve(response.id).to_dict() == final.to_dict()


def test_a_stream_in_the_background_is_gone_on_with(client: OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input=QUESTION, background=True, stream=True)
    first = [next(stream) for _ in range(4)]
    stream.close()
    response_id = first[0].response.id  # type: ignore[union-attr]
    rest = list(
        client.responses.retrieve(
            response_id, stream=True, starting_after=first[-1].sequence_number
        )
    )
    numbers = [event.sequence_number for event in [*first, *rest]]
    assert numbers == list(range(len(numbers)))
    kinds = [event.type for event in first]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert rest[-1].type == "response.completed"
    with client.responses.stream(response_id=response_id, starting_after=2) as helper:
        assert helper.get_final_response().status == "completed"


def test_a_response_in_the_background_is_cancelled(client: OpenAI) -> None:
    endless: dict[str, Any] = {"background": True, "extra_body": {"ignore_eos": True}}
    response = ask(client, **endless)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(response.id).to_dict() == cancelled.to_dict()
    assert client.responses.cancel(response.id).to_dict() == cancelled.to_dict()
    deleted = ask(client, **endless)
    client.responses.delete(deleted.id)  # and nothing of it runs on: see `nothing_left`
    with pytest.raises(BadRequestError):
        client.responses.cancel(ask(client).id)


def test_a_conversation(client: OpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": "My name is Ada."}]
    conversation = client.conversations.create(items=said, metadata={"topic": "names"})
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "names"}
    response = ask(client, input="Hello.", conversation=conversation.id)
    assert response.conversation is not None
    assert response.conversation.id == conversation.id
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in items] == [
        "message",
        "message",
        *(item.type for item in response.output),
    ]
    assert [item.id for item in items[2:]] == [item.id for item in response.output]
    again = ask(client, input="Hello.", conversation={"id": conversation.id})
    assert response.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens > response.usage.input_tokens
    first = client.conversations.items.retrieve(items[0].id or "", conversation_id=conversation.id)
    assert first.to_dict() == items[0].to_dict()
    client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    [added] = client.conversations.items.create(conversation.id, items=said).data
    left = [item.id for item in client.conversations.items.list(conversation.id)]
    assert items[0].id not in left
    assert left[0] == added.id
    client.conversations.update(conversation.id, metadata={"a": "b"})
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    client.conversations.delete(conversation.id)
    for call in (
        lambda: client.conversations.retrieve(conversation.id),
        lambda: ask(client, conversation=conversation.id),
        lambda: client.conversations.items.list(conversation.id),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_sealed_reasoning_comes_back(client: OpenAI) -> None:
    response = ask(client, store=False, include=["reasoning.encrypted_content"])
    reasoning = response.output[0].to_dict()
    sealed = {key: value for key, value in reasoning.items() if key != "content"}
    assert sealed["encrypted_content"]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}

    def count(item: dict[str, object]) -> int:
        items: list[Any] = [{"role": "user", "content": "Hi"}, item, call, result]
        return client.responses.input_tokens.count(model=MODEL, input=items).input_tokens

    counts = list(map(count, (reasoning, sealed, sealed | {"encrypted_content": "foreign"})))
    assert counts[0] == counts[1] > counts[2]


def test_a_conversation_is_compacted(client: OpenAI) -> None:
    said: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "Hello!"},
    ]
    raw = client.responses.with_raw_response.compact(model=MODEL, input=said)
    compacted = json.loads(raw.text)
    assert compacted["object"] == "response.compaction"
    assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
    assert compacted["usage"]["output_tokens"] > 0
    assert raw.parse().output[-1].type == "compaction"
    going_on: list[Any] = compacted["output"]
    response = ask(client, input=[*going_on, {"role": "user", "content": "Hello!"}])
    assert response.status in ("completed", "incomplete")
    going_on[-1]["encrypted_content"] = "foreign"
    with pytest.raises(BadRequestError) as caught:
        ask(client, input=going_on)
    assert caught.value.code == "invalid_encrypted_content"


def test_a_warm_up_with_nothing_to_say_is_answered(client: OpenAI) -> None:
    assert ask(client, input="", max_output_tokens=1).status == "incomplete"

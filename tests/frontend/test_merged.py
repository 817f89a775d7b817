"""Several choices of one chat completion: read as one reply, and nothing of them stays."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from frontend.merged import MergedStreams, open_all
from frontend.routes.chat import ChoicesOfAChat
from frontend.streams import StreamHandle, TooManyStreamsError
from ipc.messages import ChatFormat, ErrorResponse, Finish, Open
from postproc_workers.testkit.strategies import encode
from tests.frontend.local_system import LocalSystem, settle
from tests.postproc_workers.event_rules import DONE, check_completion, frames, read_chat_stream
from tests.postproc_workers.turns import opening

ANSWERS = ("Paris.", "It is Paris.", "The city of Paris.")
STOP = Finish("stop")


def tokens(answer: str) -> list[int]:
    return encode(f"<|channel|>final<|message|>{answer}<|return|>")


def merged(system: LocalSystem, *, streaming: bool) -> MergedStreams:
    def opens(choice: int) -> Callable[[], StreamHandle]:
        def make(stream_id: int, lease: int) -> Open:
            made = opening(ChatFormat(include_usage=True, part=choice), streaming=streaming)
            return msgspec.structs.replace(made, stream_id=stream_id, lease=lease)

        return lambda: system.open(make)

    handles = open_all([opens(choice) for choice in range(len(ANSWERS))])
    return MergedStreams(handles, ChoicesOfAChat(handles[0].opening), streaming)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


async def read(reply: MergedStreams) -> bytes:
    """All that a client is sent: what has come, as it comes, or the whole."""
    body, over = b"", False
    while not over:
        await reply.wait()
        over = reply.terminal is not None
        body += reply.take()
    return body


def test_streamed_choices_come_as_one_stream() -> None:
    async def test() -> None:
        system = LocalSystem(workers=2)
        reply = merged(system, streaming=True)
        reading = asyncio.create_task(read(reply))
        await settle()
        ids = list(system.engine.sequences)
        for place, answer in enumerate(ANSWERS):  # each ends in a step of its own
            system.step({ids[place]: tokens(answer)}, STOP)
            await settle()
        body = await reading
        chunks = [json.loads(data) for _, data in frames(body) if data != DONE]
        assert body.count(b"data: [DONE]") == 1
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == sum(len(tokens(a)) for a in ANSWERS)
        assert chunks[-1]["usage"]["prompt_tokens"] == 17
        for index, answer in enumerate(ANSWERS):
            own = [chunk for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
            for chunk in own:
                assert chunk.pop("usage") is None
            alone = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in own)
            chat = read_chat_stream(alone + b"data: [DONE]\n\n")
            assert (chat.message["content"], chat.finish_reason) == (answer, "stop")
        reply.close()
        assert system.held == {}

    run(test)


def test_unstreamed_choices_come_as_one_completion() -> None:
    async def test() -> None:
        system = LocalSystem()
        reply = merged(system, streaming=False)
        reading = asyncio.create_task(read(reply))
        await settle()
        ids = list(system.engine.sequences)
        for place in (2, 0, 1):  # the order of their ends is not that of the choices
            system.step({ids[place]: tokens(ANSWERS[place])}, STOP)
            await settle()
        completion = json.loads(await reading)
        choices = completion["choices"]
        for choice in choices:
            check_completion(completion | {"choices": [choice]})
        assert [choice["message"]["content"] for choice in choices] == list(ANSWERS)
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        reply.close()
        assert system.held == {}

    run(test)


@pytest.mark.parametrize("streaming", [True, False])
def test_the_first_that_fails_ends_all(streaming: bool) -> None:
    async def test() -> None:
        system = LocalSystem()
        reply = merged(system, streaming=streaming)
        reading = asyncio.create_task(read(reply))
        await settle()
        ids = list(system.engine.sequences)
        lease = system.engine.sequences[ids[1]].lease
        system.step({ids[0]: tokens("Paris")[:-1]})
        system.step({}, errors=[ErrorResponse(ids[1], lease, "internal", "broken")])
        body = await reading
        assert reply.terminal is not None
        assert (reply.terminal.reason, reply.terminal.status) == ("error", 500)
        told = [data for _, data in frames(body)][-2] if streaming else body.decode()
        assert json.loads(told)["error"]["message"] == "broken"
        assert body.count(b"broken") == 1
        reply.close()
        await settle()
        assert system.held == {}

    run(test)


def test_where_one_cannot_be_opened_none_is() -> None:
    async def test() -> None:
        system = LocalSystem()
        system.streams._max_streams = 2
        with pytest.raises(TooManyStreamsError):
            merged(system, streaming=True)
        await settle()
        assert system.held == {}

    run(test)

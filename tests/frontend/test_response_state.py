"""Responses that outlive their requests, on real registries and a real store; the test is the
engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from frontend.errors import ApiError, ServerError
from frontend.requests.responses import parse_responses
from frontend.state.responses import ResponseState, begun_response
from frontend.store import Store, StoredResponse, StoreError
from frontend.streams import StreamHandle
from ipc.messages import ErrorResponse, Finish, Open
from postproc_workers.sealing import make_key
from postproc_workers.testkit.strategies import encode
from tests.frontend.local_system import LocalSystem, settle
from tests.postproc_workers.event_rules import read_responses_stream
from tests.postproc_workers.turns import RESPONSES, opening

TOKENS = encode("<|channel|>final<|message|>Hello there.<|return|>")
TENANT = "t"


class Fixture:
    """A response that is about to run, stored in a file."""

    def __init__(self, path: Path, request: bytes = b"") -> None:
        self.system = LocalSystem()
        self.clock = 1000.0
        self.store = Store(
            f"sqlite:///{path}", max_age=1e9, max_count=1000, clock=lambda: self.clock
        )
        self.state = ResponseState(self.store, self.system.streams, make_key())
        request = request or b'{"model":"m","input":"Hi","background":true}'
        template = replace(opening(replace(RESPONSES, queued=True)), keep=True)
        self.begun = begun_response(TENANT, template, parse_responses(request), [])
        self.template = template

    def open(self) -> StreamHandle:
        def make_open(stream_id: int, lease: int) -> Open:
            return replace(self.template, stream_id=stream_id, lease=lease)

        return self.system.open(make_open)

    async def stored(self) -> StoredResponse:
        return await self.state.find(TENANT, self.begun.id)

    async def body(self) -> dict[str, object]:
        found: dict[str, object] = self.state.response(await self.stored())
        return found

    async def until_ended(self) -> None:
        running = self.state.running(TENANT, self.begun.id)
        if running is not None:
            await running.done.wait()


def run(tmp_path: Path, test: Callable[[Fixture], Awaitable[None]]) -> None:
    async def main() -> None:
        fixture = Fixture(tmp_path / "store.db")
        await test(fixture)
        await fixture.state.close()
        assert fixture.system.held == {}

    asyncio.run(main())


def test_a_response_in_the_background_needs_no_reader(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        await fixture.state.run(fixture.begun, fixture.open())
        assert (await fixture.body())["status"] == "in_progress"
        [stream] = fixture.system.engine.sequences
        fixture.system.step({stream: TOKENS[:3]})
        fixture.system.step({stream: TOKENS[3:]}, Finish("stop"))
        await fixture.until_ended()
        body = await fixture.body()
        assert body["status"] == "completed"
        assert fixture.state.in_background == 0

    run(tmp_path, test)


def test_readers_come_and_go_and_see_one_stream(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        running = await fixture.state.run(fixture.begun, fixture.open())

        async def read(after: int) -> bytes:
            return b"".join([piece async for piece in running.log.read(after)])

        early = asyncio.create_task(read(-1))
        leaving = asyncio.create_task(read(-1))
        await settle()
        [stream] = fixture.system.engine.sequences
        fixture.system.step({stream: TOKENS[:5]})
        await settle()
        leaving.cancel()
        late = asyncio.create_task(read(2))
        await settle()
        fixture.system.step({stream: TOKENS[5:]}, Finish("stop"))
        whole = await early
        events = read_responses_stream(whole).events
        assert await late == whole[whole.index(b"event: response.output_item.added") :]
        assert events[4]["sequence_number"] == 4
        stored = await fixture.stored()
        assert fixture.state.body(stored, streaming=True) == whole

    run(tmp_path, test)


def test_one_that_is_cancelled_keeps_what_it_has_said(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        await fixture.state.run(fixture.begun, fixture.open())
        [stream] = fixture.system.engine.sequences
        fixture.system.step({stream: TOKENS[:-2]})
        await settle()
        cancelled = await fixture.state.cancel(TENANT, fixture.begun.id)
        assert cancelled.status == "cancelled"
        body = fixture.state.response(cancelled)
        assert body["error"] is None
        [item] = body["output"]
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Hello there")

    run(tmp_path, test)


def test_one_is_cancelled_by_another_server(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        other = ResponseState(
            Store(f"sqlite:///{tmp_path / 'store.db'}", max_age=1e9, max_count=1000),
            LocalSystem().streams,
            make_key(),
        )
        await fixture.state.run(fixture.begun, fixture.open())
        # The clock of the other is the real one: for it, this lease has run out long ago.
        assert (await other.find(TENANT, fixture.begun.id)).status == "failed"
        await fixture.store.request_cancel(TENANT, fixture.begun.id)
        fixture.state.tick()
        await fixture.until_ended()
        assert (await fixture.stored()).status == "cancelled"
        assert (await other.find(TENANT, fixture.begun.id)).status == "cancelled"
        await other.close()

    run(tmp_path, test)


def test_an_engine_error_is_kept(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        await fixture.state.run(fixture.begun, fixture.open())
        [(stream, request)] = fixture.system.engine.sequences.items()
        fixture.system.step({}, errors=[ErrorResponse(stream, request.lease, "internal", "broken")])
        await fixture.until_ended()
        body = await fixture.body()
        assert (body["status"], body["error"]) == (
            "failed",
            {"code": "server_error", "message": "broken"},
        )

    run(tmp_path, test)


def test_one_whose_server_died_has_failed(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        await fixture.store.begin(fixture.begun)
        fixture.clock += 10
        await fixture.store.renew()
        fixture.clock += 15
        assert (await fixture.stored()).status == "in_progress"
        fixture.clock += 10
        body = await fixture.body()
        assert body["status"] == "failed"
        assert "stopped" in json.dumps(body["error"])

    run(tmp_path, test)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_client_that_leaves_leaves_a_cancelled_response(tmp_path: Path, moment: str) -> None:
    async def test(fixture: Fixture) -> None:
        handle = fixture.open()
        on_end = fixture.state.begin_soon(fixture.begun)
        if moment == "after":
            await settle()
        handle.close()
        await on_end(None)
        assert (await fixture.body())["status"] == "cancelled"

    run(tmp_path, test)


def test_who_waits_for_the_end_to_be_stored_may_be_cancelled(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        handle = fixture.open()
        on_end = fixture.state.begin_soon(fixture.begun)
        [stream] = fixture.system.engine.sequences
        fixture.system.step({stream: TOKENS}, Finish("stop"))
        await settle()
        waiting = asyncio.ensure_future(on_end(handle.terminal))
        await asyncio.sleep(0)
        waiting.cancel()
        handle.close()
        await asyncio.wait(list(fixture.state._tasks))
        assert (await fixture.stored()).status == "completed"

    run(tmp_path, test)


def test_a_store_that_fails_fails_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    async def test(fixture: Fixture) -> None:
        handle = fixture.open()
        monkeypatch.setattr(fixture.store, "begin", fail)
        monkeypatch.setattr(fixture.store, "finish", fail)
        on_end = fixture.state.begin_soon(fixture.begun)
        await on_end(None)
        handle.close()
        assert fixture.state.errors == 2
        with pytest.raises(ServerError, match="the disk is full"):
            await fixture.state.run(fixture.begun, fixture.open())

    run(tmp_path, test)


def test_nothing_is_another_tenants(tmp_path: Path) -> None:
    async def test(fixture: Fixture) -> None:
        await fixture.state.run(fixture.begun, fixture.open())
        [stream] = fixture.system.engine.sequences
        fixture.system.step({stream: TOKENS}, Finish("stop"))
        await fixture.until_ended()
        state, asked = fixture.state, fixture.begun.id
        assert state.running("other", asked) is None
        for call in (
            state.find("other", asked),
            state.cancel("other", asked),
            state.delete("other", asked),
            state.history("other", asked, None),
        ):
            with pytest.raises(ApiError):
                await call
        assert await state.history(TENANT, asked, None)

    run(tmp_path, test)

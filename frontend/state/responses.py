"""Responses that outlive their requests: their history, their records, the background."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace

import msgspec

from frontend.errors import InvalidRequestError, NotFoundError, ServerError
from frontend.generation_response import OnEnd
from frontend.requests.fields import JsonObject
from frontend.requests.responses import Item, ItemReference, ResponsesRequest
from frontend.state.event_log import EventLog
from frontend.state.items import response_of
from frontend.store import Store, StoredResponse, StoreError
from frontend.streams import StreamHandle, Streams
from ipc.codec import record_of
from ipc.messages import Ending, Open, Record, Terminal
from postproc_workers.encoders import CANCELLED, server_error
from postproc_workers.record import make_record
from postproc_workers.replay import replay
from postproc_workers.sealing import Kind as SealedKind
from postproc_workers.sealing import unseal

_logger = logging.getLogger(__name__)

MAX_CHAIN = 10_000
"""Responses that one can go back to."""
RENEW_SECONDS = 5
SWEEP_SECONDS = 60
CLOSE_SECONDS = 5.0
INTERRUPTED = "the server stopped before the response had ended"
ENDED = ("completed", "incomplete", "failed", CANCELLED)


@dataclass(frozen=True, slots=True)
class Running:
    """A response in the background; `done` is set when its end is in the store."""

    handle: StreamHandle
    log: EventLog
    done: asyncio.Event


class ResponseState:
    """The responses of one frontend and its store. Each is its tenant's alone.

    `seal_key` opens and closes what clients keep for the server.
    """

    def __init__(self, store: Store | None, streams: Streams, seal_key: bytes) -> None:
        self.seal_key = seal_key
        self.errors = 0
        """Ends of responses that could not be stored."""
        self._store = store
        self._streams = streams
        self._running: dict[tuple[str, str], Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        self._ticking: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        """The store. Raises InvalidRequestError if this server keeps nothing."""
        return self._store_for(None)

    def _store_for(self, param: str | None) -> Store:
        """The same for a parameter, which the error names."""
        if self._store is None:
            raise InvalidRequestError(
                "This server stores nothing (it was started with --store none).",
                code="unsupported_value",
                param=param,
            )
        return self._store

    @property
    def in_background(self) -> int:
        """How many responses run in the background."""
        return len(self._running)

    def keeps(self, request: ResponsesRequest) -> bool:
        """Whether the response to a request is stored. Raises InvalidRequestError where it has to
        be and cannot."""
        if request.background:
            return self._store_for("background") is not None
        return self._store is not None and request.store is not False

    def unseal(self, tenant: str, kind: SealedKind, sealed: str) -> str | None:
        """What was sealed for a tenant; None for anything else."""
        return unseal(self.seal_key, kind, tenant, sealed)

    # What a request goes on from.

    async def history(
        self, tenant: str, previous_response_id: str | None, conversation_id: str | None
    ) -> list[JsonObject]:
        """The items that a request continues. Raises InvalidRequestError or NotFoundError."""
        if previous_response_id is not None:
            store = self._store_for("previous_response_id")
            chain = await store.chain(tenant, previous_response_id, MAX_CHAIN)
            self._check_chain(chain, previous_response_id)
            return await asyncio.to_thread(self._items, chain)
        if conversation_id is not None:
            return await self._conversation_items(tenant, conversation_id)
        return []

    async def resolved(
        self, tenant: str, items: Sequence[Item], given: Sequence[JsonObject]
    ) -> list[JsonObject]:
        """The `given` input, whose `items` these are, with those that it only refers to. Raises
        InvalidRequestError for a reference to nothing."""
        found: list[JsonObject] = []
        for place, (item, raw) in enumerate(zip(items, given, strict=True)):
            if isinstance(item, ItemReference):
                found.append(await self._item(tenant, item.id, f"input[{place}].id"))
            else:
                found.append(raw)
        return found

    def _check_chain(self, chain: Sequence[StoredResponse], asked: str) -> None:
        missing = chain[0].previous_response_id if chain else asked
        if missing is not None:
            raise InvalidRequestError(
                f"Previous response with id '{missing}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        if chain[-1].status not in ENDED:
            raise InvalidRequestError(
                f"Previous response with id '{asked}' has not ended yet.",
                code="previous_response_not_ended",
                param="previous_response_id",
            )

    def _items(self, chain: Sequence[StoredResponse]) -> list[JsonObject]:
        items: list[JsonObject] = []
        for stored in chain:
            items += msgspec.json.decode(stored.input)
            items += self.response(stored)["output"]
        return items

    async def _conversation_items(self, tenant: str, conversation_id: str) -> list[JsonObject]:
        store = self._store_for("conversation")
        found = await store.conversation_items(tenant, conversation_id)
        if found is None:
            raise conversation_not_found(conversation_id)
        return [msgspec.json.decode(item) for item in found]

    async def _item(self, tenant: str, item_id: str, param: str) -> JsonObject:
        response_id = response_of(item_id)
        store = self._store_for(param)
        stored = await store.get(tenant, response_id) if response_id else None
        if stored is not None:
            for item in await asyncio.to_thread(self._items, [stored]):
                if item["id"] == item_id:
                    return item
        raise InvalidRequestError(f"Item with id '{item_id}' not found.", param=param)

    # What there is of a response.

    async def find(self, tenant: str, response_id: str) -> StoredResponse:
        """A stored response. Raises NotFoundError."""
        stored = await self.store.get(tenant, response_id)
        if stored is None:
            raise response_not_found(response_id)
        return stored

    def response(self, stored: StoredResponse) -> JsonObject:
        """The response object. Takes time; to be called in a thread."""
        found: JsonObject = msgspec.json.decode(self.body(stored))
        return found

    def body(self, stored: StoredResponse, *, streaming: bool = False) -> bytes:
        """The response object as JSON text, or all of its events. Takes time; to be called in a
        thread."""
        record = _ended(stored)
        return replay(record, streaming=streaming, seal_key=self.seal_key)

    def running(self, tenant: str, response_id: str) -> Running | None:
        """A response that runs in the background of this frontend."""
        return self._running.get((tenant, response_id))

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response; one that runs is cancelled. Raises NotFoundError."""
        running = self.running(tenant, response_id)
        if running is not None:
            self._streams.cancel(running.handle)
        if not await self.store.delete(tenant, response_id):
            raise response_not_found(response_id)

    async def cancel(self, tenant: str, response_id: str) -> StoredResponse:
        """Cancel a response in the background, wherever it runs; the response afterwards. Raises
        NotFoundError, or InvalidRequestError if it is not one in the background."""
        stored = await self.find(tenant, response_id)
        if not stored.background:
            raise InvalidRequestError(
                "Cannot cancel a response that was not created with background=true.",
                param="response_id",
            )
        if stored.status in ENDED:
            return stored
        running = self.running(tenant, response_id)
        if running is not None:
            self._streams.cancel(running.handle)
            await running.done.wait()
        else:
            await self.store.request_cancel(tenant, response_id)
        return await self.find(tenant, response_id)

    # How a response gets there.

    async def run(self, begun: StoredResponse, handle: StreamHandle) -> Running:
        """Store a response that begins, and let it run in the background. Raises ServerError, and
        then closes its stream."""
        try:
            await self.store.begin(begun)
        except StoreError as error:
            handle.close()
            raise ServerError(f"The response cannot be stored: {error}.") from error
        running = Running(handle, EventLog(), asyncio.Event())
        self._running[begun.tenant, begun.id] = running
        self._spawn(self._run(begun, running))
        return running

    async def _run(self, begun: StoredResponse, running: Running) -> None:
        handle = running.handle
        try:
            while True:
                await handle.wait()
                terminal = handle.terminal
                if terminal is not None:
                    # Whoever reads the last event finds the response ended.
                    await self.end(begun, terminal)
                running.log.append(handle.take())
                if terminal is not None:
                    return
        finally:
            handle.close()
            running.log.end()
            running.done.set()
            del self._running[begun.tenant, begun.id]

    def begin_soon(self, begun: StoredResponse) -> OnEnd:
        """Store a response that begins, without anybody waiting; what is returned stores its
        end."""
        beginning = self._spawn(self._begin(begun))

        async def end(terminal: Terminal | None) -> None:
            await beginning
            await self.end(begun, terminal)

        async def on_end(terminal: Terminal | None) -> None:
            # It is stored though the client's leaving cancels whoever waits for that.
            await asyncio.shield(self._spawn(end(terminal)))

        return on_end

    async def _begin(self, begun: StoredResponse) -> None:
        try:
            await self.store.begin(begun)
        except StoreError:
            self._lost(begun)

    def _lost(self, stored: StoredResponse) -> None:
        """The client has its answer in any case."""
        self.errors += 1
        _logger.exception("response %s is not stored", stored.id)

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What is to be done from time to time.

    def tick(self) -> None:
        """To be called every second: keep what runs alive in the store, and look who is to be
        cancelled."""
        self._ticks += 1
        if self._store is not None and (self._ticking is None or self._ticking.done()):
            self._ticking = self._spawn(self._watched(self._tick(self._ticks)))
        # A sweep may take longer than a lease lasts.
        idle = self._sweeping is None or self._sweeping.done()
        if self._store is not None and self._ticks % SWEEP_SECONDS == 1 and idle:
            self._sweeping = self._spawn(self._watched(self._store.sweep()))

    async def _tick(self, number: int) -> None:
        if number % RENEW_SECONDS == 0:
            await self.store.renew()
        if self._running:
            for tenant, response_id in await self.store.cancellations():
                running = self.running(tenant, response_id)
                if running is not None:
                    self._streams.cancel(running.handle)

    async def _watched(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except StoreError as error:
            self.errors += 1
            _logger.error("the store does not answer: %s", error)

    async def close(self) -> None:
        """Let what is under way be stored, and close the store. No stream runs any longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        if self._store is not None:
            await self._store.close()

    async def end(self, stored: StoredResponse, terminal: Terminal | None) -> None:
        """Store the end of a response; None: its client has left."""
        record = terminal.record if terminal is not None else b""
        if not record:
            assert stored.record is not None
            failure = (499, "invalid_request_error", CANCELLED, "the client has left")
            ending = Ending(int(time.time()), failure=failure)
            record = make_record(record_of(stored.record).opening, [], ending)
        ended = replace(stored, status=status_of(record_of(record)), record=record)
        try:
            await self._finish(ended)
        except StoreError:
            self._lost(stored)

    async def _finish(self, ended: StoredResponse) -> None:
        assert ended.record is not None
        await self.store.finish(ended.tenant, ended.id, ended.status, ended.record)
        if ended.conversation_id is not None and ended.status in ("completed", "incomplete"):
            items = await asyncio.to_thread(self._items, [ended])
            await self.store.add_items(
                ended.tenant,
                ended.conversation_id,
                [(item["id"], msgspec.json.encode(item)) for item in items],
            )


def begun_response(
    tenant: str, opening: Open, request: ResponsesRequest, items: Sequence[JsonObject]
) -> StoredResponse:
    """A response that begins, as it is stored."""
    return StoredResponse(
        id=opening.response_id,
        tenant=tenant,
        created_at=opening.created,
        status="in_progress",
        background=request.background is True,
        previous_response_id=request.previous_response_id,
        conversation_id=request.conversation_id,
        input=msgspec.json.encode(items),
        record=make_record(opening, [], None),
    )


def status_of(record: Record) -> str:
    """The status of a response whose record this is."""
    ending = record.ending
    if ending is None:
        return "in_progress"
    if ending.failure is not None:
        return CANCELLED if ending.failure[2] == CANCELLED else "failed"
    return "incomplete" if ending.cut else "completed"


def _ended(stored: StoredResponse) -> Record:
    """The record of a response; of one that died with its server, one that says so."""
    assert stored.record is not None
    record = record_of(stored.record)
    if record.ending is None and stored.status in ENDED:
        failure = (*server_error(INTERRUPTED),)
        return msgspec.structs.replace(record, ending=Ending(stored.created_at, failure=failure))
    return record


def response_not_found(response_id: str) -> NotFoundError:
    """The error for a response that is not there, or not this tenant's."""
    return NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")


def conversation_not_found(conversation_id: str) -> NotFoundError:
    """The error for a conversation that is not there, or not this tenant's."""
    return NotFoundError(
        f"Conversation with id '{conversation_id}' not found.", param="conversation"
    )

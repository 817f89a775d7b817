"""Responses and conversations in a database. Every call names its tenant, and finds nothing of
another's.

A response that runs belongs to the process that began it, and is kept alive by it: one whose
process has died reads as failed when its lease has run out.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    false,
    func,
    insert,
    literal,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from frontend.store.database import Database, StoreError
from frontend.store.schema import conversation_items, conversations, responses

LEASE_SECONDS = 20.0
BATCH = 500
"""Rows that one transaction deletes: others wait no longer than for that."""
VACUUM_PAGES = 1000
MAX_ID = 256
"""Characters."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response. `input` is a JSON array of the items of its own request, `record` what its
    output is made of; `created_at` is in unix seconds. While it runs, `status` is in_progress."""

    id: str
    tenant: str
    created_at: int
    status: str
    background: bool
    previous_response_id: str | None
    conversation_id: str | None
    input: bytes
    record: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation; `metadata` is a JSON object."""

    id: str
    created_at: int
    metadata: bytes


_COLUMNS = [responses.c[name] for name in StoredResponse.__slots__]
Items = Sequence[tuple[str, bytes]]
"""Items of a conversation: id, and JSON text."""


class Store:
    """An open store. Everything raises StoreError if the database fails.

    Responses are kept for `max_age` seconds, and `max_count` of them; so are conversations, by
    when they were last added to. `clock` gives unix seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        max_age: float,
        max_count: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = Database(url)
        self._owner = secrets.token_hex(16)
        self._max_age = max_age
        self._max_count = max_count
        self._clock = clock

    async def close(self) -> None:
        """Finish what is under way, and let go of the database."""
        await self._database.close()

    # --- responses ---

    async def begin(self, response: StoredResponse) -> None:
        """Store a response that begins, as this process's."""
        _check_ids(response.id)
        row = {name: getattr(response, name) for name in StoredResponse.__slots__}
        row |= {"owner": self._owner, "alive_until": self._lease(), "cancel_requested": False}
        await self._database.write(lambda connection: connection.execute(insert(responses), row))

    async def finish(self, tenant: str, response_id: str, status: str, record: bytes) -> None:
        """Store the end of a response, once; nothing if it has been deleted."""
        work = (
            update(responses)
            .where(_is(responses, tenant, response_id), responses.c.alive_until.is_not(None))
            .values(status=status, record=record, alive_until=None)
        )
        await self._database.write(lambda connection: connection.execute(work))

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """A response, or None."""
        found = select(*_COLUMNS, responses.c.alive_until).where(
            _is(responses, tenant, response_id)
        )
        row = await self._database.read(lambda connection: connection.execute(found).first())
        return None if row is None else self._response(row)

    async def chain(self, tenant: str, response_id: str, limit: int) -> list[StoredResponse]:
        """A response and those that it goes back to, the oldest first, `limit` at most."""
        columns = [*_COLUMNS, responses.c.alive_until]
        first = select(*columns, literal(1).label("depth")).where(
            _is(responses, tenant, response_id)
        )
        found = first.cte("chain", recursive=True)
        found = found.union_all(
            select(*columns, found.c.depth + 1).where(
                responses.c.tenant == found.c.tenant,
                responses.c.id == found.c.previous_response_id,
                found.c.depth < limit,
            )
        )
        ordered = select(found).order_by(found.c.depth.desc())
        rows = await self._database.read(lambda connection: connection.execute(ordered).all())
        return [self._response(row) for row in rows]

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response; whether there was one."""
        work = delete(responses).where(_is(responses, tenant, response_id))
        return await self._database.write(lambda connection: _changed(connection, work))

    async def request_cancel(self, tenant: str, response_id: str) -> None:
        """Ask whichever process runs a response to end it."""
        work = (
            update(responses)
            .where(_is(responses, tenant, response_id), responses.c.alive_until.is_not(None))
            .values(cancel_requested=True)
        )
        await self._database.write(lambda connection: connection.execute(work))

    async def cancellations(self) -> list[tuple[str, str]]:
        """Tenants and ids of this process's running responses that are to be cancelled."""
        found = select(responses.c.tenant, responses.c.id).where(
            responses.c.alive_until.is_not(None),
            responses.c.owner == self._owner,
            responses.c.cancel_requested,
        )
        rows = await self._database.read(lambda connection: connection.execute(found).all())
        return [(row.tenant, row.id) for row in rows]

    async def renew(self) -> None:
        """Say that this process lives, and all that it runs. To be called well within
        `LEASE_SECONDS`."""
        work = (
            update(responses)
            .where(responses.c.alive_until.is_not(None), responses.c.owner == self._owner)
            .values(alive_until=self._lease())
        )
        await self._database.write(lambda connection: connection.execute(work))

    async def sweep(self) -> None:
        """Note what has died, and delete what is too old or too much."""
        now = self._clock()
        died = (
            update(responses)
            .where(responses.c.alive_until < now)
            .values(status="failed", alive_until=None)
        )
        await self._database.write(lambda connection: connection.execute(died))
        for table in (responses, conversations):
            while await self._database.write(partial(self._delete_old, table=table, now=now)):
                pass
        if self._database.is_sqlite:
            while await self._database.write(give_back_pages):
                pass

    def _delete_old(self, connection: Connection, table: Table, now: float) -> bool:
        """Delete a batch of what is too old or too much; whether there may be more."""
        ended: ColumnElement[bool] = true()
        age = "used_at"
        if table is responses:
            ended, age = responses.c.alive_until.is_(None), "created_at"
        total = connection.execute(select(func.count()).select_from(table)).scalar_one()
        excess = min(max(0, total - self._max_count), BATCH)
        aged = and_(ended, table.c[age] < now - self._max_age)
        deleted = connection.execute(delete(table).where(oldest(table, age, aged))).rowcount
        if deleted < excess:
            work = delete(table).where(oldest(table, age, ended, excess - deleted))
            deleted += connection.execute(work).rowcount
        return deleted >= BATCH

    def _response(self, row: Any) -> StoredResponse:
        found = StoredResponse(*row[: len(_COLUMNS)])
        died = row.alive_until is not None and row.alive_until < self._clock()
        return replace(found, status="failed") if died else found

    def _lease(self) -> float:
        return self._clock() + LEASE_SECONDS

    # --- conversations ---

    async def create_conversation(
        self, tenant: str, conversation_id: str, metadata: bytes, items: Items = ()
    ) -> StoredConversation:
        """A new conversation."""
        _check_ids(conversation_id, *(item_id for item_id, _ in items))
        now = int(self._clock())
        row = {"tenant": tenant, "id": conversation_id, "created_at": now, "used_at": now}

        def work(connection: Connection) -> None:
            connection.execute(insert(conversations), row | {"metadata": metadata})
            _append(connection, tenant, conversation_id, items)

        await self._database.write(work)
        return StoredConversation(conversation_id, now, metadata)

    async def get_conversation(
        self, tenant: str, conversation_id: str
    ) -> StoredConversation | None:
        """A conversation, or None."""
        columns = [conversations.c[name] for name in StoredConversation.__slots__]
        found = select(*columns).where(_is(conversations, tenant, conversation_id))
        row = await self._database.read(lambda connection: connection.execute(found).first())
        return None if row is None else StoredConversation(*row)

    async def set_metadata(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Replace a conversation's metadata; whether there is one."""
        work = (
            update(conversations)
            .where(_is(conversations, tenant, conversation_id))
            .values(metadata=metadata)
        )
        return await self._database.write(lambda connection: _changed(connection, work))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation with its items; whether there was one."""
        work = delete(conversations).where(_is(conversations, tenant, conversation_id))
        return await self._database.write(lambda connection: _changed(connection, work))

    async def add_items(self, tenant: str, conversation_id: str, items: Items) -> bool:
        """Append items; whether there is such a conversation. One whose id is there already is
        not added again."""
        _check_ids(*(item_id for item_id, _ in items))
        used = (
            update(conversations)
            .where(_is(conversations, tenant, conversation_id))
            .values(used_at=int(self._clock()))
        )

        def work(connection: Connection) -> bool:
            if not _changed(connection, used):
                return False
            _append(connection, tenant, conversation_id, items)
            return True

        return await self._database.write(work)

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[bytes] | None:
        """All items in order, each as JSON text; None if there is no such conversation."""
        if await self.get_conversation(tenant, conversation_id) is None:
            return None
        items = conversation_items
        found = (
            select(items.c.item)
            .where(items.c.tenant == tenant, items.c.conversation_id == conversation_id)
            .order_by(items.c.position)
        )
        rows = await self._database.read(
            lambda connection: connection.execute(found).scalars().all()
        )
        return list(rows)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """Delete an item of a conversation; whether there was one."""
        items = conversation_items
        work = delete(items).where(
            _is(items, tenant, item_id), items.c.conversation_id == conversation_id
        )
        return await self._database.write(lambda connection: _changed(connection, work))


def is_id(text: str) -> bool:
    """Whether something can be stored under an id: PostgreSQL knows no NUL, and has a limit."""
    return len(text) <= MAX_ID and text.isprintable()


def _check_ids(*ids: str) -> None:
    for each in ids:
        if not is_id(each):
            raise StoreError(f"{each[:MAX_ID]!r} is no id")


def _is(table: Any, tenant: str, row_id: str) -> ColumnElement[bool]:
    if not is_id(row_id):
        return false()
    return and_(table.c.tenant == tenant, table.c.id == row_id)


def _changed(connection: Connection, work: Any) -> bool:
    changed: int = connection.execute(work).rowcount
    return changed > 0


def oldest(
    table: Any, age: str, condition: ColumnElement[bool], count: int = BATCH
) -> ColumnElement[bool]:
    """Whether a row is among the `count` oldest of those that meet a condition."""
    keys = (table.c.tenant, table.c.id)
    found = (
        select(*keys)
        .where(condition)
        .order_by(table.c[age], table.c.id, table.c.tenant)
        .limit(count)
    )
    return tuple_(*keys).in_(found)


def _append(connection: Connection, tenant: str, conversation_id: str, items: Items) -> None:
    table = conversation_items
    here = and_(table.c.tenant == tenant, table.c.conversation_id == conversation_id)
    last = connection.execute(select(func.max(table.c.position)).where(here)).scalar()
    place = {"tenant": tenant, "conversation_id": conversation_id}
    first = 0 if last is None else last + 1
    rows = [
        place | {"id": item_id, "item": item, "position": first + n}
        for n, (item_id, item) in enumerate(items)
    ]
    if rows:
        new = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
        keys = [table.c.tenant, table.c.conversation_id, table.c.id]
        connection.execute(new.on_conflict_do_nothing(index_elements=keys), rows)


def give_back_pages(connection: Connection) -> bool:
    """Give a batch of free pages of a SQLite file back; whether there are more that it can."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        driver.execute("BEGIN IMMEDIATE")
    before = _free_pages(driver)
    for _ in range(min(before, VACUUM_PAGES)):
        # Python's sqlite3 takes but one step of this statement, which is one page.
        driver.execute("PRAGMA incremental_vacuum(1)")
    return 0 < _free_pages(driver) < before


def _free_pages(driver: Any) -> int:
    free: int = driver.execute("PRAGMA freelist_count").fetchone()[0]
    return free

"""Any order of calls: a store says what a plain dictionary would."""

import asyncio
import tempfile
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from frontend.store import Store, StoredResponse
from frontend.store.store import LEASE_SECONDS
from tests.postgres import PostgresServer
from tests.store.conftest import NOW, response

MAX_AGE, MAX_COUNT = 200, 4
tenants = st.sampled_from(["acme", "zeta"])
names = st.sampled_from([f"{n}" for n in range(6)])
conversation_ids = st.sampled_from(["conv_a", "conv_b"])
owners = st.sampled_from([0, 1])
Key = tuple[str, str]


@dataclass
class Entry:
    """A response of the model; `alive_until` is None when it has ended."""

    stored: StoredResponse
    owner: int
    alive_until: float | None
    cancelled: bool = False


@dataclass
class Conversation:
    """A conversation of the model."""

    used_at: int
    metadata: bytes = b"{}"
    items: dict[str, bytes] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """Two stores on one database against dictionaries."""

    make_url: "staticmethod[[], str]"

    def __init__(self) -> None:
        super().__init__()
        self.now: float = NOW
        self.runner = asyncio.Runner()
        url = self.make_url()
        self.stores = [self.open(url), self.open(url)]
        self.responses: dict[Key, Entry] = {}
        self.conversations: dict[Key, Conversation] = {}

    def open(self, url: str) -> Store:
        return Store(url, max_age=MAX_AGE, max_count=MAX_COUNT, clock=lambda: self.now)

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()

    @rule(owner=owners, tenant=tenants, name=names, previous=st.none() | names)
    def begin(self, owner: int, tenant: str, name: str, previous: str | None) -> None:
        made = response(name, tenant, previous, created_at=int(self.now))
        key = tenant, made.id
        # As in life, a response goes back to one that was there before.
        cyclic = key in self.responses or previous == name
        if not cyclic and (previous is None or (tenant, f"resp_{previous}") in self.responses):
            self.runner.run(self.stores[owner].begin(made))
            self.responses[key] = Entry(made, owner, self.now + LEASE_SECONDS)

    @rule(
        owner=owners,
        tenant=tenants,
        name=names,
        status=st.sampled_from(["completed", "failed", "cancelled"]),
    )
    def finish(self, owner: int, tenant: str, name: str, status: str) -> None:
        key = tenant, f"resp_{name}"
        self.runner.run(self.stores[owner].finish(*key, status, b"record"))
        entry = self.responses.get(key)
        if entry is not None and entry.alive_until is not None:
            entry.stored = replace(entry.stored, status=status, record=b"record")
            entry.alive_until = None

    @rule(owner=owners, tenant=tenants, name=names)
    def delete(self, owner: int, tenant: str, name: str) -> None:
        key = tenant, f"resp_{name}"
        deleted = self.runner.run(self.stores[owner].delete(*key))
        assert deleted == (self.responses.pop(key, None) is not None)

    @rule(owner=owners, tenant=tenants, name=names)
    def request_cancel(self, owner: int, tenant: str, name: str) -> None:
        key = tenant, f"resp_{name}"
        self.runner.run(self.stores[owner].request_cancel(*key))
        entry = self.responses.get(key)
        if entry is not None and entry.alive_until is not None:
            entry.cancelled = True

    @rule(seconds=st.sampled_from([1, LEASE_SECONDS / 2, LEASE_SECONDS + 1, MAX_AGE / 2]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(owner=owners)
    def renew(self, owner: int) -> None:
        self.runner.run(self.stores[owner].renew())
        for entry in self.responses.values():
            if entry.owner == owner and entry.alive_until is not None:
                entry.alive_until = self.now + LEASE_SECONDS

    @rule(owner=owners)
    def sweep(self, owner: int) -> None:
        self.runner.run(self.stores[owner].sweep())
        for entry in self.responses.values():
            if entry.alive_until is not None and entry.alive_until < self.now:
                entry.stored = replace(entry.stored, status="failed")
                entry.alive_until = None
        for key, conversation in list(self.conversations.items()):
            if conversation.used_at < self.now - MAX_AGE:
                del self.conversations[key]
        ended = [e.stored for e in self.responses.values() if e.alive_until is None]
        ended.sort(key=lambda stored: (stored.created_at, stored.id, stored.tenant))
        for stored in ended:
            if stored.created_at < self.now - MAX_AGE or len(self.responses) > MAX_COUNT:
                del self.responses[stored.tenant, stored.id]

    @rule(tenant=tenants, conversation_id=conversation_ids)
    def create(self, tenant: str, conversation_id: str) -> None:
        key = tenant, conversation_id
        if key not in self.conversations:
            items = [("msg_0", b"0")]
            self.runner.run(self.stores[0].create_conversation(*key, b"{}", items))
            self.conversations[key] = Conversation(int(self.now), items=dict(items))

    @rule(
        owner=owners,
        tenant=tenants,
        conversation_id=conversation_ids,
        items=st.lists(
            st.tuples(st.sampled_from(["msg_0", "msg_1", "msg_2"]), st.binary()), max_size=4
        ),
    )
    def add_items(
        self, owner: int, tenant: str, conversation_id: str, items: list[tuple[str, bytes]]
    ) -> None:
        key = tenant, conversation_id
        added = self.runner.run(self.stores[owner].add_items(*key, items))
        assert added == (key in self.conversations)
        if added:
            self.conversations[key].used_at = int(self.now)
            for item_id, item in items:
                self.conversations[key].items.setdefault(item_id, item)

    @rule(
        tenant=tenants, conversation_id=conversation_ids, item=st.sampled_from(["msg_0", "msg_1"])
    )
    def delete_item(self, tenant: str, conversation_id: str, item: str) -> None:
        found = self.conversations.get((tenant, conversation_id))
        deleted = self.runner.run(self.stores[0].delete_item(tenant, conversation_id, item))
        assert deleted == (found is not None and found.items.pop(item, None) is not None)

    @rule(tenant=tenants, conversation_id=conversation_ids)
    def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        key = tenant, conversation_id
        deleted = self.runner.run(self.stores[1].delete_conversation(*key))
        assert deleted == (self.conversations.pop(key, None) is not None)

    @rule(tenant=tenants, conversation_id=conversation_ids, metadata=st.binary())
    def set_metadata(self, tenant: str, conversation_id: str, metadata: bytes) -> None:
        key = tenant, conversation_id
        there = self.runner.run(self.stores[1].set_metadata(*key, metadata))
        assert there == (key in self.conversations)
        if there:
            self.conversations[key].metadata = metadata

    @rule(tenant=tenants, name=names, limit=st.integers(1, 4))
    def chain(self, tenant: str, name: str, limit: int) -> None:
        expected: list[StoredResponse] = []
        key = tenant, f"resp_{name}"
        while (entry := self.responses.get(key)) is not None and len(expected) < limit:
            expected.insert(0, self.told(entry))
            key = tenant, entry.stored.previous_response_id or ""
        assert self.runner.run(self.stores[0].chain(tenant, f"resp_{name}", limit)) == expected

    def told(self, entry: Entry) -> StoredResponse:
        died = entry.alive_until is not None and entry.alive_until < self.now
        return replace(entry.stored, status="failed") if died else entry.stored

    @invariant()
    def both_say_what_the_model_says(self) -> None:
        self.runner.run(self.compare())

    async def compare(self) -> None:
        for owner, store in enumerate(self.stores):
            for tenant in ("acme", "zeta"):
                for name in range(6):
                    entry = self.responses.get((tenant, f"resp_{name}"))
                    expected = None if entry is None else self.told(entry)
                    assert await store.get(tenant, f"resp_{name}") == expected
                for conversation_id in ("conv_a", "conv_b"):
                    known = self.conversations.get((tenant, conversation_id))
                    items = await store.conversation_items(tenant, conversation_id)
                    assert items == (None if known is None else list(known.items.values()))
                    found = await store.get_conversation(tenant, conversation_id)
                    assert (found and found.metadata) == (known and known.metadata)
            cancelled = {
                key
                for key, entry in self.responses.items()
                if entry.cancelled and entry.alive_until is not None and entry.owner == owner
            }
            assert set(await store.cancellations()) == cancelled


def test_on_sqlite() -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = iter(range(1_000_000))

        class Machine(StoreMachine):
            make_url = staticmethod(lambda: f"sqlite:///{directory}/{next(files)}.db")

        run_state_machine_as_test(
            Machine, settings=settings(max_examples=15, stateful_step_count=30)
        )


def test_on_postgresql(postgres: PostgresServer) -> None:
    class Machine(StoreMachine):
        make_url = staticmethod(postgres.new_database)

    run_state_machine_as_test(Machine, settings=settings(max_examples=4, stateful_step_count=30))

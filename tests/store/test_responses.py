"""What a store keeps of responses, on either database."""

import asyncio
from dataclasses import replace

import pytest

from frontend.store import Store, StoredResponse
from frontend.store.store import BATCH, LEASE_SECONDS
from tests.store.conftest import NOW, Stores, response


async def put(store: Store, *found: StoredResponse, status: str = "completed") -> None:
    """Store responses that have ended."""
    for each in found:
        await store.begin(each)
        await store.finish(each.tenant, each.id, status, b"record")


async def names(store: Store, *asked: str, tenant: str = "acme") -> list[str]:
    """Which of some responses are there."""
    found = await asyncio.gather(*(store.get(tenant, f"resp_{name}") for name in asked))
    return [name for name, each in zip(asked, found, strict=True) if each is not None]


def test_a_response_from_begin_to_delete(stores: Stores) -> None:
    begun = replace(response("1", previous="0"), conversation_id="conv_1", input=b'["\x00\xff"]')

    async def scenario() -> None:
        store = stores.open()
        assert await store.get("acme", "resp_1") is None
        await store.begin(begun)
        assert await store.get("acme", "resp_1") == begun
        await store.finish("acme", "resp_1", "incomplete", b"\x00record")
        ended = replace(begun, status="incomplete", record=b"\x00record")
        assert await store.get("acme", "resp_1") == ended
        assert await stores.open().get("acme", "resp_1") == ended
        assert await store.delete("acme", "resp_1")
        assert await store.get("acme", "resp_1") is None
        assert not await store.delete("acme", "resp_1")

    stores.run(scenario)


def test_a_response_ends_once(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await put(store, response("1"))
        await store.finish("acme", "resp_1", "failed", b"later")
        found = await store.get("acme", "resp_1")
        assert found is not None
        assert (found.status, found.record) == ("completed", b"record")

    stores.run(scenario)


def test_the_end_of_a_deleted_response_brings_nothing_back(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        assert await store.delete("acme", "resp_1")
        await store.finish("acme", "resp_1", "completed", b"record")
        assert await store.get("acme", "resp_1") is None

    stores.run(scenario)


def test_tenants_have_the_same_ids_and_nothing_of_each_other(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        for tenant in ("acme", "zeta"):
            await store.begin(response("1", tenant))
            await store.begin(response("2", tenant, previous="1"))
        await store.begin(response("3", "zeta"))
        await store.finish("acme", "resp_1", "completed", b"acme's")
        await store.request_cancel("zeta", "resp_2")
        assert await store.cancellations() == [("zeta", "resp_2")]
        other = await store.get("zeta", "resp_1")
        assert other is not None
        assert other.status == "in_progress"
        assert await store.chain("zeta", "resp_2", 9) == [
            response("1", "zeta"),
            response("2", "zeta", previous="1"),
        ]
        assert not await store.delete("acme", "resp_3")
        await store.finish("acme", "resp_3", "completed", b"acme's")
        assert await store.delete("acme", "resp_1")
        assert await names(store, "1", "2", "3", tenant="zeta") == ["1", "2", "3"]
        assert await store.chain("acme", "resp_3", 9) == []

    stores.run(scenario)


@pytest.mark.parametrize("strange", ["\x00", "a\x00b", "\ud800", "", "'; --", "x" * 100_000, "é%"])
def test_an_id_of_any_kind_is_looked_up(stores: Stores, strange: str) -> None:
    """Clients may ask for whatever they like; nothing is there under it."""

    async def scenario() -> None:
        store = stores.open()
        assert await store.get("acme", strange) is None
        assert await store.chain("acme", strange, 9) == []
        assert not await store.delete("acme", strange)
        await store.request_cancel("acme", strange)
        assert await store.get_conversation("acme", strange) is None
        assert await store.conversation_items("acme", strange) is None
        assert not await store.set_metadata("acme", strange, b"{}")
        assert not await store.add_items("acme", strange, [("msg_1", b"{}")])
        assert not await store.delete_item("acme", strange, strange)
        assert not await store.delete_conversation("acme", strange)

    stores.run(scenario)


# --- chains ---


def test_a_chain_is_told_from_its_beginning(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await put(store, response("0"))
        for n in range(1, 6):
            await put(store, response(str(n), previous=str(n - 1)))
        await put(store, response("fork", previous="2"))

        async def chain(name: str, limit: int) -> list[str]:
            return [each.id[5:] for each in await store.chain("acme", f"resp_{name}", limit)]

        assert await chain("5", 9) == ["0", "1", "2", "3", "4", "5"]
        assert await chain("5", 6) == ["0", "1", "2", "3", "4", "5"]
        assert await chain("5", 3) == ["3", "4", "5"]
        assert await chain("5", 1) == ["5"]
        assert await chain("fork", 9) == ["0", "1", "2", "fork"]
        assert await chain("0", 9) == ["0"]
        await store.delete("acme", "resp_1")
        assert await chain("5", 9) == ["2", "3", "4", "5"]
        assert await chain("fork", 9) == ["2", "fork"]

    stores.run(scenario)


def test_a_chain_tells_which_response_has_died(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await put(store, response("0"))
        await store.begin(response("1", previous="0"))
        stores.now += LEASE_SECONDS + 1
        found = await store.chain("acme", "resp_1", 9)
        assert [each.status for each in found] == ["completed", "failed"]

    stores.run(scenario)


# --- cancelling ---


def test_a_cancellation_is_seen_by_who_runs_the_response(stores: Stores) -> None:
    async def scenario() -> None:
        one, other = stores.open(), stores.open()
        await one.begin(response("1"))
        await one.begin(response("2"))
        await other.begin(response("3"))
        await other.request_cancel("acme", "resp_1")
        assert await other.cancellations() == []
        assert await one.cancellations() == [("acme", "resp_1")]
        await one.request_cancel("acme", "resp_3")
        assert await other.cancellations() == [("acme", "resp_3")]
        await one.finish("acme", "resp_1", "cancelled", b"record")
        assert await one.cancellations() == []
        await other.request_cancel("acme", "resp_1")
        assert await one.cancellations() == []

    stores.run(scenario)


# --- leases ---


def test_what_a_dead_process_ran_has_failed_when_its_lease_ends(stores: Stores) -> None:
    async def scenario() -> None:
        dead, alive = stores.open(), stores.open()
        await dead.begin(response("1"))
        await alive.begin(response("2"))
        stores.now += LEASE_SECONDS - 1
        await alive.renew()
        assert await statuses(alive) == ["in_progress", "in_progress"]
        await alive.sweep()
        assert await statuses(alive) == ["in_progress", "in_progress"]
        stores.now += 2
        assert await statuses(alive) == ["failed", "in_progress"]
        await alive.sweep()
        stores.now -= 2  # what the database has, whatever the clock says
        assert await statuses(alive) == ["failed", "in_progress"]

    async def statuses(store: Store) -> list[str]:
        found = [await store.get("acme", f"resp_{n}") for n in (1, 2)]
        return [each.status for each in found if each is not None]

    stores.run(scenario)


def test_a_process_that_renews_lives(stores: Stores) -> None:
    async def scenario() -> None:
        store, other = stores.open(), stores.open()
        await store.begin(response("1"))
        for _ in range(10):
            stores.now += LEASE_SECONDS / 2
            await store.renew()
            await other.sweep()
        await store.finish("acme", "resp_1", "completed", b"record")
        stores.now += 10 * LEASE_SECONDS
        await other.sweep()
        found = await other.get("acme", "resp_1")
        assert found is not None
        assert found.status == "completed"

    stores.run(scenario)


def test_one_that_was_held_dead_stays_so(stores: Stores) -> None:
    """What its readers have been told is not taken back by a process that comes to."""

    async def scenario() -> None:
        slow, other = stores.open(), stores.open()
        await slow.begin(response("1"))
        stores.now += LEASE_SECONDS + 1
        await other.sweep()
        await slow.renew()
        await slow.finish("acme", "resp_1", "completed", b"record")
        found = await other.get("acme", "resp_1")
        assert found is not None
        assert (found.status, found.record) == ("failed", b"begun")

    stores.run(scenario)


def test_one_that_comes_to_before_anybody_swept_lives_on(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.begin(response("1"))
        stores.now += LEASE_SECONDS + 1
        await store.renew()
        await store.sweep()
        found = await store.get("acme", "resp_1")
        assert found is not None
        assert found.status == "in_progress"

    stores.run(scenario)


# --- retention ---


def test_what_is_too_old_goes(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open(max_age=100)
        await put(store, response("old"), response("young", created_at=NOW + 50))
        await store.begin(response("running"))
        for tenant in ("acme", "zeta"):
            await store.create_conversation(tenant, "conv_old", b"{}", [("msg_1", b"{}")])
            await store.create_conversation(tenant, "conv_used", b"{}")
        stores.now += 90
        await store.renew()
        await store.add_items("acme", "conv_used", [("msg_1", b"{}")])
        await store.sweep()
        assert await names(store, "old", "young", "running") == ["old", "young", "running"]
        stores.now += 11
        await store.sweep()
        assert await names(store, "old", "young", "running") == ["young", "running"]
        assert await store.get_conversation("acme", "conv_used") is not None
        for tenant, name in (("acme", "old"), ("zeta", "old"), ("zeta", "used")):
            assert await store.conversation_items(tenant, f"conv_{name}") is None
        stores.now += 100
        await store.sweep()  # the one that ran has died: it is noted, and goes as well
        assert await names(store, "old", "young", "running") == []

    stores.run(scenario)


def test_what_is_too_much_goes_the_oldest_first(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open(max_count=3)
        for n in (3, 1, 2, 5, 4):
            tenant = "acme" if n % 2 else "zeta"
            await put(store, response(str(n), tenant, created_at=NOW + n))
        await store.sweep()
        assert await names(store, "1", "3", "5") == ["3", "5"]
        assert await names(store, "2", "4", tenant="zeta") == ["4"]
        await store.begin(response("0", created_at=NOW))
        await store.sweep()
        assert await names(store, "0", "3", "5") == ["0", "5"]

    stores.run(scenario)


def test_the_conversations_used_last_are_kept(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open(max_count=3)
        for n in range(6):
            await store.create_conversation("acme", f"conv_{n}", b"{}", [("msg_1", b"{}")])
            stores.now += 1
        assert await store.add_items("acme", "conv_1", [("msg_2", b"{}")])
        await store.sweep()
        found = [await store.conversation_items("acme", f"conv_{n}") for n in range(6)]
        assert found == [None, [b"{}", b"{}"], None, None, [b"{}"], [b"{}"]]

    stores.run(scenario)


def test_more_than_a_batch_goes_in_one_sweep(stores: Stores) -> None:
    count = 2 * BATCH + 3

    async def scenario() -> None:
        store = stores.open(max_age=100, max_count=10)
        await asyncio.gather(*(put(store, response(f"{n:04}")) for n in range(count)))
        numbers = [f"conv_{n}" for n in range(count)]
        items = [("msg_1", b"{}")]
        await asyncio.gather(
            *(store.create_conversation("acme", each, b"{}", items) for each in numbers)
        )
        await store.sweep()
        kept = await names(store, *(f"{n:04}" for n in range(count)))
        assert kept == [f"{n:04}" for n in range(count - 10, count)]
        stores.now += 101
        await store.sweep()
        assert await names(store, *kept) == []
        left = await asyncio.gather(*(store.get_conversation("acme", each) for each in numbers))
        assert not any(left)

    stores.run(scenario)

"""What a store keeps of conversations, on either database."""

import asyncio

import pytest

from frontend.store import StoreError
from tests.store.conftest import Stores


def items(*numbers: int) -> list[tuple[str, bytes]]:
    return [(f"msg_{n}", b'{"n":%d}' % n) for n in numbers]


def test_items_are_kept_in_order_and_once(stores: Stores) -> None:
    async def scenario() -> None:
        store, other = stores.open(), stores.open()
        made = await store.create_conversation("acme", "conv_1", b'{"a":"b"}', items(5, 1))
        assert await store.get_conversation("acme", "conv_1") == made
        assert (made.id, made.created_at, made.metadata) == (
            "conv_1",
            int(stores.now),
            b'{"a":"b"}',
        )
        assert await store.add_items("acme", "conv_1", [])
        assert await store.add_items("acme", "conv_1", items(9, 3, 9))
        assert await other.add_items("acme", "conv_1", [("msg_1", b"another"), *items(2)])
        assert await listed(5, 1, 9, 3, 2)
        assert await store.delete_item("acme", "conv_1", "msg_2")
        assert not await store.delete_item("acme", "conv_1", "msg_2")
        assert await store.delete_item("acme", "conv_1", "msg_9")
        assert await store.add_items("acme", "conv_1", items(9, 8))
        assert await listed(5, 1, 3, 9, 8)

    async def listed(*numbers: int) -> bool:
        found = await stores.open().conversation_items("acme", "conv_1")
        return found == [text for _, text in items(*numbers)]

    stores.run(scenario)


def test_many_at_once_append_to_one_conversation(stores: Stores) -> None:
    async def scenario() -> None:
        both = [stores.open(), stores.open()]
        await both[0].create_conversation("acme", "conv_1", b"{}")
        added = await asyncio.gather(
            *(both[n % 2].add_items("acme", "conv_1", items(2 * n, 2 * n + 1)) for n in range(50))
        )
        assert all(added)
        found = await both[0].conversation_items("acme", "conv_1")
        assert found is not None
        pairs = [(found[n], found[n + 1]) for n in range(0, 100, 2)]
        assert sorted(pairs) == sorted(
            (items(2 * n)[0][1], items(2 * n + 1)[0][1]) for n in range(50)
        )

    stores.run(scenario)


def test_a_conversation_goes_with_its_items(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b"{}", items(1, 2))
        assert await store.delete_conversation("acme", "conv_1")
        assert not await store.delete_conversation("acme", "conv_1")
        assert await store.conversation_items("acme", "conv_1") is None
        assert not await store.add_items("acme", "conv_1", items(3))
        assert not await store.set_metadata("acme", "conv_1", b"{}")
        await store.create_conversation("acme", "conv_1", b"{}")
        assert await store.conversation_items("acme", "conv_1") == []

    stores.run(scenario)


def test_metadata_is_replaced(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b'{"a":"b"}', items(1))
        assert await store.set_metadata("acme", "conv_1", b'{"c":"d"}')
        found = await store.get_conversation("acme", "conv_1")
        assert found is not None
        assert found.metadata == b'{"c":"d"}'
        assert await store.conversation_items("acme", "conv_1") == [items(1)[0][1]]

    stores.run(scenario)


def test_another_tenants_is_not_found(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b"{}", items(1))
        assert await store.get_conversation("zeta", "conv_1") is None
        assert await store.conversation_items("zeta", "conv_1") is None
        assert not await store.add_items("zeta", "conv_1", items(2))
        assert not await store.set_metadata("zeta", "conv_1", b"")
        assert not await store.delete_item("zeta", "conv_1", "msg_1")
        assert not await store.delete_conversation("zeta", "conv_1")
        await store.create_conversation("zeta", "conv_1", b"{}", items(7))
        assert await store.conversation_items("acme", "conv_1") == [items(1)[0][1]]
        assert await store.conversation_items("zeta", "conv_1") == [items(7)[0][1]]

    stores.run(scenario)


def test_one_id_is_not_given_twice(stores: Stores) -> None:
    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b"{}", items(1))
        with pytest.raises(StoreError):
            await store.create_conversation("acme", "conv_1", b"{}", items(2))
        assert await store.conversation_items("acme", "conv_1") == [items(1)[0][1]]

    stores.run(scenario)


@pytest.mark.parametrize("strange", ["a\x00b", "\ud800", "x" * 100_000])
def test_an_item_whose_id_is_no_key_costs_no_other_its_place(stores: Stores, strange: str) -> None:
    """The id is refused on either database, and nothing is half done."""

    async def scenario() -> None:
        store = stores.open()
        await store.create_conversation("acme", "conv_1", b"{}", items(1))
        with pytest.raises(StoreError):
            await store.add_items("acme", "conv_1", [*items(2), (strange, b"{}")])
        assert await store.conversation_items("acme", "conv_1") == [items(1)[0][1]]

    stores.run(scenario)

"""What is done for the store from time to time."""

import asyncio

from frontend.state.responses import RENEW_SECONDS, SWEEP_SECONDS, ResponseState
from frontend.store import Store, StoreError
from postproc_workers.sealing import make_key
from tests.frontend.local_system import LocalSystem, settle


class NotedStore(Store):
    """Notes what it is asked; `held` is how long a sweep lasts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.away = False

    async def renew(self) -> None:
        self.asked.append("renew")
        if self.away:
            raise StoreError("away")

    async def sweep(self) -> None:
        self.asked.append("sweep")
        await self.held.wait()
        if self.away:
            raise StoreError("away")

    async def close(self) -> None:
        self.asked.append("close")


def test_leases_are_renewed_while_a_sweep_lasts() -> None:
    async def scenario() -> None:
        store = NotedStore()
        state = ResponseState(store, LocalSystem().streams, make_key())
        for _ in range(SWEEP_SECONDS + 1):
            state.tick()
            await settle()
        assert store.asked.count("sweep") == 1
        assert store.asked.count("renew") == SWEEP_SECONDS // RENEW_SECONDS
        store.held.set()
        await settle()
        for _ in range(SWEEP_SECONDS):
            state.tick()
            await settle()
        assert store.asked.count("sweep") == 2
        await state.close()
        assert store.asked[-1] == "close"

    asyncio.run(scenario())


def test_a_store_that_is_away_is_counted_and_asked_again() -> None:
    async def scenario() -> None:
        store = NotedStore()
        store.away = True
        store.held.set()
        state = ResponseState(store, LocalSystem().streams, make_key())
        for _ in range(2 * RENEW_SECONDS):
            state.tick()
            await settle()
        assert store.asked == ["sweep", "renew", "renew"]
        assert state.errors == 3

    asyncio.run(scenario())

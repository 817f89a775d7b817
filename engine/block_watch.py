"""Who wants to know which blocks are cached, for routing requests to the engine that has them.

Only the blocks of full attention are told: a prefix without them is of no use, and those of
sliding layers matter only where a prefix ends.
"""

from engine.prefix_cache import PrefixCache
from ipc.messages import BlockEvents, Owner

TOLD_GROUP = 0
"""Full attention comes first in a cache layout."""


class BlockWatch:
    """The changes of a cache, for every owner that has asked."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._next: dict[Owner, int] = {}
        self._new: list[Owner] = []

    def watch(self, owner: Owner) -> None:
        """Tell an owner all that is cached, and every change from now on."""
        self._cache.recording = True
        self._new.append(owner)

    def forget(self, owner: Owner) -> None:
        """Tell an owner nothing more."""
        self._next.pop(owner, None)
        self._new = [other for other in self._new if other != owner]
        if not self._next and not self._new:
            self._cache.recording = False
            self._cache.take_events()

    def take(self) -> dict[Owner, BlockEvents]:
        """What each owner must be told since the last call."""
        told: dict[Owner, BlockEvents] = {}
        events = self._cache.take_events()
        changes = {name: stored for (group, name), stored in events if group == TOLD_GROUP}
        if changes:
            stored = [name for name, is_stored in changes.items() if is_stored]
            removed = [name for name, is_stored in changes.items() if not is_stored]
            for owner, number in self._next.items():
                told[owner] = BlockEvents(number, stored, removed)
                self._next[owner] += 1
        for owner in self._new:
            known = [name for group, name in self._cache.known() if group == TOLD_GROUP]
            told[owner] = BlockEvents(0, known, [])
            self._next[owner] = 1
        self._new = []
        return told

"""A bounded memory: what was used last stays."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `max_entries` entries that together weigh at most `max_weight`; the one not used for longest goes."""

    def __init__(self, max_entries: int, max_weight: int) -> None:
        self._max_entries = max_entries
        self._max_weight = max_weight
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """What weighs more than all may together is not kept."""
        if key in self._entries:
            self._weight -= self._entries.pop(key)[1]
        if weight > self._max_weight:
            return
        self._entries[key] = (value, weight)
        self._weight += weight
        while len(self._entries) > self._max_entries or self._weight > self._max_weight:
            _, (_, gone) = self._entries.popitem(last=False)
            self._weight -= gone

"""The attempts that this process has claimed, so that reports on them need not read them first.

What is remembered can be stale. Whoever goes by it either knows that nobody else has written since, or writes only to a
row that still has that attempt, live: as long as it has, what decides where the rollout goes (its configuration, how
often it has failed) does not change.
"""

from outrider.store.rows import Current

REMEMBERED = 50_000


class Held:
    """Live attempts by id, the latest so many."""

    def __init__(self) -> None:
        self._currents: dict[str, Current] = {}

    def remember(self, current: Current) -> None:
        self._currents[current.attempt_id] = current
        if len(self._currents) > REMEMBERED:
            del self._currents[next(iter(self._currents))]

    def forget(self, attempt_id: str) -> None:
        self._currents.pop(attempt_id, None)

    def clear(self) -> None:
        self._currents.clear()

    def find(self, rollout_id: str, attempt_id: str) -> Current | None:
        current = self._currents.get(attempt_id)
        return current if current is not None and current.rollout_id == rollout_id else None

"""How many rollouts there are of each mode and status, put together from what the databases keep.

Invariants:
- What was enqueued and what has ended only grows, so a database adds it up now and then, and counts what came since.
- What is live is as many as there are leases, and what waits again is few: both are counted by their indexes.
- What is left of all that was enqueued waits for the first time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from outrider.core.status import FINAL, Mode, RolloutStatus
from outrider.store.rows import MODE, ROLLOUT_STATUS
from outrider.store.steps import RolloutQuery

ENQUEUED = "enqueued"
"""Stands in place of a status for all rollouts that ever were."""


class Counts:
    """Numbers of rollouts, of one tag or of all, at one moment."""

    def __init__(self, numbers: Mapping[tuple[Mode, RolloutStatus], int]) -> None:
        self._numbers = {key: n for key, n in numbers.items() if n}

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[str, str, int]]) -> "Counts":
        """From modes, statuses and numbers, where what was enqueued contains all others."""
        numbers: Counter[tuple[Mode, RolloutStatus]] = Counter()
        for mode, status, n in parts:
            waits = MODE[mode], RolloutStatus.QUEUING
            if status == ENQUEUED:
                numbers[waits] += n
            else:
                numbers[waits] -= n
                numbers[MODE[mode], ROLLOUT_STATUS[status]] += n
        return cls(numbers)

    def by_status(self) -> dict[RolloutStatus, int]:
        """For every status."""
        return {
            status: sum(n for (_, counted), n in self._numbers.items() if counted is status) for status in RolloutStatus
        }

    def kinds(self, query: RolloutQuery) -> list[tuple[Mode, RolloutStatus]]:
        """Those that the query asks for and of which there are any."""
        statuses = frozenset(RolloutStatus if query.statuses is None else query.statuses)
        if query.sort_by == "ended_at":
            statuses &= FINAL
        return sorted(
            (mode, status) for mode, status in self._numbers if query.mode in (None, mode) and status in statuses
        )

    def total(self, query: RolloutQuery) -> int:
        """Of what the query asks for, if it chooses neither by group nor by id."""
        return sum(self._numbers[kind] for kind in self.kinds(query))

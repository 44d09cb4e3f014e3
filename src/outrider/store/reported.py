"""The ends of attempts that were reported in this process and are not counted in the store yet.

Held as plain texts and numbers, which the garbage collector passes over: reports are many.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Self

from outrider.core.attempt import Attempt
from outrider.core.status import AttemptStatus
from outrider.store.steps import WorkerNote

MAX_REMEMBERED = 4096
"""How many counted attempts are remembered; a report is repeated within seconds, if at all."""


class Reported:
    """The workers of attempts, by the attempts' ids: an end that is reported again counts once.

    The attempts that were counted last are remembered, so that a late repetition does not count either.
    """

    def __init__(self, counted: Mapping[str, None] = MappingProxyType({})) -> None:
        self._succeeded: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._ended_at: dict[str, float] = {}
        self._counted = counted

    def __len__(self) -> int:
        return len(self._succeeded) + len(self._failed)

    def counted(self) -> dict[str, None]:
        """The attempts to remember once all of these are counted."""
        known = {**self._counted, **dict.fromkeys(self._succeeded), **dict.fromkeys(self._failed)}
        return dict.fromkeys(islice(known, max(0, len(known) - MAX_REMEMBERED), None))

    def add(self, attempt: Attempt) -> None:
        """Count an attempt that has ended. One that was handed back is none of its worker's doing."""
        if attempt.attempt_id in self._counted:
            return
        if attempt.status is AttemptStatus.SUCCEEDED:
            self._succeeded[attempt.attempt_id] = attempt.worker_id
        elif attempt.status is not AttemptStatus.CANCELLED:
            self._failed[attempt.attempt_id] = attempt.worker_id
        else:
            return
        if attempt.ended_at is not None:
            self._ended_at[attempt.worker_id] = attempt.ended_at.timestamp()

    def followed_by(self, later: Self) -> Self:
        """Both together."""
        self._succeeded |= later._succeeded
        self._failed |= later._failed
        self._ended_at |= later._ended_at
        return self

    def notes(self) -> tuple[WorkerNote, ...]:
        succeeded, failed = Counter(self._succeeded.values()), Counter(self._failed.values())
        return tuple(
            WorkerNote(worker_id=name, n_succeeded=succeeded[name], n_failed=failed[name], ended_at=ended_at)
            for name, ended_at in sorted(self._ended_at.items())
        )

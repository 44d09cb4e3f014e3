"""The store in this process's memory: for tests and small runs that nobody resumes. What it holds ends with it."""

from collections.abc import Callable
from typing import TypeVar

from outrider.core.attempt import Attempt, Failure, LostLease
from outrider.core.clock import Clock
from outrider.core.event import RecordedEvent
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.worker import Worker
from outrider.store.bell import Bell
from outrider.store.leased import LeasedStore
from outrider.store.memory.steps import MemorySteps
from outrider.store.protocol import Resources, Statistics
from outrider.store.steps import Claim, EventQuery, NewRollout, Report, RolloutQuery
from outrider.store.usable import Usable

R = TypeVar("R")


class MemoryStore(LeasedStore):
    """The engine without a database. A step never pauses, so a caller that is cancelled has no claim under way."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock, Bell(clock))
        self._usable = Usable()
        self._steps = MemorySteps(clock)

    async def _connect(self) -> None: ...

    async def _disconnect(self) -> None:
        self._usable.closed = True
        self._steps = MemorySteps(self._clock)

    def _do(self, operation: Callable[[MemorySteps], R]) -> R:
        self._usable.check()
        steps = self._steps
        result = operation(steps)
        for topic in steps.topics:
            self._bell.ring_here(topic)
        steps.topics.clear()
        return result

    async def _enqueue(self, new: tuple[NewRollout, ...]) -> tuple[Rollout, ...]:
        return self._do(lambda steps: steps.enqueue(new))

    async def _claim(self, claim: Claim) -> tuple[AttemptedRollout, ...]:
        return self._do(lambda steps: steps.claim(claim))

    async def _start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        return self._do(lambda steps: steps.start(new, worker_id))

    async def _report(self, report: Report) -> Attempt:
        return self._do(lambda steps: steps.report(report))

    async def _append(self, report: Report) -> int:
        return self._do(lambda steps: steps.append(report))

    async def _renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        return self._do(lambda steps: steps.renew(worker_id, attempt_ids))

    async def _revoke(self, worker_id: str, failure: Failure) -> tuple[str, ...]:
        return self._do(lambda steps: steps.revoke(worker_id, failure))

    async def _cancel(self, rollout_ids: tuple[str, ...]) -> tuple[str, ...]:
        return self._do(lambda steps: steps.cancel(rollout_ids))

    async def _expire(self) -> float | None:
        return self._do(MemorySteps.expire)

    async def _finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
        return self._do(lambda steps: steps.finished(cursor, limit))

    async def _feed_end(self) -> int:
        return self._do(MemorySteps.feed_end)

    async def _query_rollouts(self, query: RolloutQuery) -> Page[Rollout]:
        return self._do(lambda steps: steps.rollouts(query))

    async def _query_attempts(self, rollout_id: str) -> tuple[Attempt, ...]:
        return self._do(lambda steps: steps.attempts(rollout_id))

    async def _query_workers(self) -> tuple[Worker, ...]:
        return self._do(MemorySteps.workers)

    async def _query_events(self, query: EventQuery) -> Page[RecordedEvent]:
        return self._do(lambda steps: steps.events(query))

    async def _put_resources(self, data: bytes) -> Resources:
        return self._do(lambda steps: steps.put_resources(data))

    async def _latest_resources(self) -> Resources | None:
        return self._do(MemorySteps.latest_resources)

    async def _statistics(self) -> Statistics:
        return self._do(MemorySteps.statistics)

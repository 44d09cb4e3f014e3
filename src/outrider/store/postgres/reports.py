"""Reports on attempts: fenced writes, for all callers of this process that report at the same time.

Invariants:
- A report is worked out on the rollout as it was read or claimed, and written only if that is still so; else the
  rollout is read again. So no row is locked while this process thinks.
- A report that is refused leaves nothing behind and harms no other in its batch.
- Events come with their report or not at all: a batch that has any is one transaction.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

from outrider.core.attempt import Attempt
from outrider.core.errors import LeaseLost, OutriderError, StoreUnavailable, UnknownId
from outrider.core.lifecycle import ATTEMPT_AFTER, Signal
from outrider.core.status import AttemptStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link
from outrider.store.postgres.held import Held
from outrider.store.postgres.links import Links
from outrider.store.postgres.moves import Ending, end, moved, topics_of
from outrider.store.postgres.queries import SQL
from outrider.store.postgres.workers import Workers, ended_attempts
from outrider.store.rows import Current
from outrider.store.steps import Report

Reported: TypeAlias = tuple[Attempt, int]
"""The attempt after a report, and how many events it has if it is live."""

Outcomes: TypeAlias = dict[str, Reported | OutriderError]
"""By rollout id."""

Pairs: TypeAlias = Sequence[tuple[Current, Report]]

ROUNDS = 20
"""How often rollouts that change under a report are read again."""


class Reports:
    """Carries out reports."""

    def __init__(self, links: Links, clock: DatabaseClock, bell: PostgresBell, workers: Workers, held: Held) -> None:
        self._links = links
        self._clock = clock
        self._bell = bell
        self._workers = workers
        self._held = held

    async def carry_out(self, reports: Sequence[Report]) -> list[Reported | OutriderError]:
        """What came of each report; no two of them are of the same rollout."""
        topics: set[Topic] = set()
        if any(report.events for report in reports):
            outcomes = await self._links.transact(lambda link: self._step(link, reports, topics))
        else:
            outcomes = await self._links.run(lambda link, _: self._step(link, reports, topics))
        self._bell.ring_all_here(topics)
        return [outcomes[report.rollout_id] for report in reports]

    async def _step(self, link: Link, reports: Sequence[Report], topics: set[Topic]) -> Outcomes:
        outcomes: Outcomes = {}
        todo: Sequence[Report] = reports
        for _ in range(ROUNDS):
            currents = await self._currents(link, todo)
            known = [(currents[report.rollout_id], report) for report in todo if report.rollout_id in currents]
            held = [pair for pair in known if pair[0].held_by(pair[1].attempt_id)]
            lost = [report for current, report in known if not current.held_by(report.attempt_id)]
            unknown = [report for report in todo if report.rollout_id not in currents]
            outcomes |= {report.rollout_id: UnknownId("rollout", report.rollout_id) for report in unknown}
            outcomes |= await self._refuse(link, lost)
            outcomes |= await self._set_live(link, [pair for pair in held if _keeps_lease(pair[1])])
            outcomes |= await self._set_ended(link, [pair for pair in held if not _keeps_lease(pair[1])], topics)
            await self._workers.see(link, _new_holders(pair for pair in held if pair[0].rollout_id in outcomes))
            todo = [report for report in todo if report.rollout_id not in outcomes]
            if not todo:
                return outcomes
            for report in todo:
                self._held.forget(report.attempt_id)
        raise StoreUnavailable(f"rollout {todo[0].rollout_id} changed {ROUNDS} times during one report; try again")

    async def _currents(self, link: Link, reports: Sequence[Report]) -> dict[str, Current]:
        """The rollouts by id, as this process remembers them or else as they are."""
        remembered = [self._held.find(report.rollout_id, report.attempt_id) for report in reports]
        currents = {current.rollout_id: current for current in remembered if current is not None}
        missing = [report.rollout_id for report in reports if report.rollout_id not in currents]
        if missing:
            found = (Current(*row) for row in await link.fetch(SQL["current"], missing))
            currents |= {current.rollout_id: current for current in found}
        return currents

    async def _set_live(self, link: Link, pairs: Pairs) -> Outcomes:
        if not pairs:
            return {}
        by_seq = {current.seq: (current, report) for current, report in pairs}
        columns = [
            (
                current.seq,
                current.n_attempts,
                None if report.signal is None else AttemptStatus.RUNNING,
                report.worker_id,
                report.first_index,
                len(report.events),
            )
            for current, report in pairs
        ]
        outcomes: Outcomes = {}
        events = []
        for row in await link.fetch(SQL["set_live"], *map(list, zip(*columns, strict=True))):
            seq, status, worker_id, heartbeat_at, expires_at, first, n_events = row
            current, report = by_seq[seq]
            current = current._replace(
                status=status, worker_id=worker_id, heartbeat_at=heartbeat_at, expires_at=expires_at
            )
            events.append(rows.event_rows(current, first, report.events))
            outcomes[current.rollout_id] = rows.live_attempt(current), n_events
            self._held.remember(current)
        await _insert_events(link, chain.from_iterable(events))
        return outcomes

    async def _set_ended(self, link: Link, pairs: Pairs, topics: set[Topic]) -> Outcomes:
        endings = [_ending(current, report) for current, report in pairs]
        topics |= topics_of(endings)
        now = self._clock.now()
        ended = await end(link, self._bell, endings, now)
        outcomes: Outcomes = {}
        events = []
        for (current, report), ending in zip(pairs, endings, strict=True):
            if (done := ended.get(current.seq)) is not None:
                events.append(rows.event_rows(current, done.next_event, report.events))
                outcomes[current.rollout_id] = done.attempt(ending, now), 0
                self._held.forget(current.attempt_id)
        await _insert_events(link, chain.from_iterable(events))
        return outcomes

    @staticmethod
    async def _refuse(link: Link, reports: Sequence[Report]) -> Outcomes:
        """Reports of attempts without a lease: accepted if it is the one that ended the attempt, sent again."""
        ended = await ended_attempts(link, [report.attempt_id for report in reports])
        outcomes: Outcomes = {}
        for report in reports:
            row = ended.get(report.attempt_id)
            if row is not None and row[0] != report.rollout_id:
                row = None
            if row is not None and report.signal is not None:
                attempt = rows.attempt_of(row[0], row[1:])
                if (attempt.status, attempt.reward) == (ATTEMPT_AFTER[report.signal], report.reward):
                    outcomes[report.rollout_id] = attempt, 0
                    continue
            reason = "no such attempt" if row is None else str(row[4])
            outcomes[report.rollout_id] = LeaseLost(report.rollout_id, report.attempt_id, reason)
        return outcomes


def _keeps_lease(report: Report) -> bool:
    return report.signal is None or report.signal is Signal.RUN


def _new_holders(pairs: Iterable[tuple[Current, Report]]) -> list[str]:
    """Workers that have reported on an attempt which somebody else had claimed."""
    named = ((current.worker_id, report.worker_id) for current, report in pairs)
    return [name for holder, name in named if name is not None and name != holder]


def _ending(current: Current, report: Report) -> Ending:
    assert report.signal is not None
    move = moved(current, report.signal)
    return Ending(current, move, report.worker_id, report.reward, report.failure, report.first_index)


async def _insert_events(link: Link, events: Iterable[tuple[Any, ...]]) -> None:
    columns = [list(column) for column in zip(*events, strict=True)]
    if columns:
        await link.execute(SQL["insert_events"], *columns)

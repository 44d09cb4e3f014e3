"""Reports on attempts: fenced writes, for all callers of this process that report at the same time.

Invariants:
- A report is worked out on the rollout as it was read or claimed, and written only if that is still so; else the
  rollout is read again. So no row is locked while this process thinks.
- A report that is refused leaves nothing behind and harms no other in its batch.
- Events and metadata come with their report or not at all: a batch that has any is one transaction.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

from msgspec.structs import replace

from outrider.core.attempt import Attempt
from outrider.core.errors import LeaseLost, OutriderError, StoreUnavailable, UnknownId
from outrider.core.lifecycle import ATTEMPT_AFTER, Signal
from outrider.core.status import AttemptStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.held import Held
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link
from outrider.store.postgres.links import Links
from outrider.store.postgres.moves import Ending, end, landed, leave_accounts, topics_of
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
        if any(report.events or report.metadata is not None for report in reports):
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
            live: list[tuple[Current, Report]] = []
            ending: list[tuple[Current, Report]] = []
            lost: list[tuple[Current, Report]] = []
            for report in todo:
                current = currents.get(report.rollout_id)
                if current is None:
                    outcomes[report.rollout_id] = UnknownId("rollout", report.rollout_id)
                elif not current.held_by(report.attempt_id):
                    lost.append((current, report))
                else:
                    (live if _keeps_lease(report) else ending).append((current, report))
            outcomes |= await self._refuse(link, lost) if lost else {}
            await _set_metadata(link, chain(live, ending))
            outcomes |= await self._set_live(link, live) if live else {}
            outcomes |= await self._set_ended(link, ending, topics) if ending else {}
            await self._workers.see(link, _new_holders(chain(live, ending), outcomes))
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
            seq, status, worker_id, heartbeat_at, expires_at, first, n_events, metadata = row
            current, report = by_seq[seq]
            current = replace(
                current,
                status=status,
                worker_id=worker_id,
                heartbeat_at=heartbeat_at,
                expires_at=expires_at,
                metadata=metadata,
            )
            events.append(rows.event_rows(current, first, report.events))
            outcomes[current.rollout_id] = rows.live_attempt(current), n_events
            self._held.remember(current)
        await _insert_events(link, chain.from_iterable(events))
        return outcomes

    async def _set_ended(self, link: Link, pairs: Pairs, topics: set[Topic]) -> Outcomes:
        pairs = sorted(pairs, key=lambda pair: pair[0].seq)  # every step locks rows in this order
        endings = [_ending(current, report) for current, report in pairs]
        topics |= topics_of(endings)
        now = self._clock.now()
        ended = await end(link, self._bell, endings, now)
        outcomes: Outcomes = {}
        events = []
        for (current, report), ending in zip(pairs, endings, strict=True):
            if (done := ended.get(current.seq)) is not None:
                first = done.n_events if report.first_index is None else report.first_index
                events.append(rows.event_rows(current, first, report.events))
                outcomes[current.rollout_id] = done.attempt(ending, now), 0
                self._held.forget(current.attempt_id)
        await _insert_events(link, chain.from_iterable(events))
        return outcomes

    @staticmethod
    async def _refuse(link: Link, pairs: Pairs) -> Outcomes:
        """Reports of attempts without a lease: accepted if it is the one that ended the attempt, sent again."""
        ended = await ended_attempts(link, {report.attempt_id: current.seq for current, report in pairs})
        outcomes: Outcomes = {}
        left = []
        for _, report in pairs:
            row = ended.get(report.attempt_id)
            if row is not None and row[0] != report.rollout_id:
                row = None
            if row is not None and report.signal is not None:
                attempt = rows.attempt_of(row[0], row[1:])
                if (attempt.status, attempt.reward) == (ATTEMPT_AFTER[report.signal], report.reward):
                    outcomes[report.rollout_id] = attempt, 0
                    if report.account is not None:
                        left.append((report.rollout_id, report.attempt_id, report.account))
                    continue
            reason = "no such attempt" if row is None else str(row[4])
            outcomes[report.rollout_id] = LeaseLost(report.rollout_id, report.attempt_id, reason)
        await leave_accounts(link, left)
        return outcomes


def _keeps_lease(report: Report) -> bool:
    return report.signal is None or report.signal is Signal.RUN


def _new_holders(pairs: Iterable[tuple[Current, Report]], outcomes: Outcomes) -> list[str]:
    """Workers that have reported on an attempt which somebody else had claimed."""
    return [
        report.worker_id
        for current, report in pairs
        if report.worker_id is not None and report.worker_id != current.worker_id and report.rollout_id in outcomes
    ]


def _ending(current: Current, report: Report) -> Ending:
    assert report.signal is not None
    to = landed(current, report.signal)
    return Ending(current, to, report.worker_id, report.reward, report.failure, report.account)


async def _set_metadata(link: Link, pairs: Iterable[tuple[Current, Report]]) -> None:
    """Before the reports themselves, which take the lease away or say what is noted."""
    noted = [
        (current.seq, current.n_attempts, report.metadata) for current, report in pairs if report.metadata is not None
    ]
    if noted:
        await link.execute(SQL["set_metadata"], *map(list, zip(*noted, strict=True)))


async def _insert_events(link: Link, events: Iterable[tuple[Any, ...]]) -> None:
    columns = [list(column) for column in zip(*events, strict=True)]
    if columns:
        await link.execute(SQL["insert_events"], *columns)

"""The atomic steps of the SQLite engine, each run inside a transaction that its caller begins and commits."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from outrider.core.attempt import Attempt, Failure, LostLease
from outrider.core.clock import Clock, utc
from outrider.core.errors import LeaseLost, RolloutConflict, UnknownId
from outrider.core.ids import new_id
from outrider.core.lifecycle import ATTEMPT_AFTER, Signal, advance
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.protocol import Resources
from outrider.store.rows import WORKER_SEEN_EVERY, Current, Outcome
from outrider.store.sql import queries
from outrider.store.steps import Claim, Lease, NewRollout, Report, config_of, failure_record, lane_of

SQL = queries("sqlite", rollout=rows.ROLLOUT, attempt=rows.ATTEMPT, current=rows.CURRENT)
EXPIRED_AT_ONCE = 500


class SqliteSteps:
    """One connection's steps. `topics` collects whom to wake once the transaction is committed."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._db = connection
        self._clock = clock
        self.topics: set[Topic] = set()

    def enqueue(self, new: Sequence[NewRollout]) -> tuple[Rollout, ...]:
        now = self._clock.time()
        self.topics.add(Topic.QUEUE)
        return tuple(
            self._repetition(rollout) if self._insert(rollout, now) is None else rows.fresh_rollout(rollout, now)
            for rollout in new
        )

    def start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        """Enqueue and claim; repeated with the same id it returns the attempt that the first call began."""
        self._see_worker(worker_id)
        inserted = self._insert(new, self._clock.time())
        row = self._db.execute(SQL["rollout"], (new.rollout_id,)).fetchone()
        if inserted is not None:
            claim = Claim(worker_id=worker_id, limit=1, tags=None, mode=None, request_id=None)
            return self._claim_row(row, claim)
        self._repetition(new)
        current = self._current(new.rollout_id)
        if not current.is_live or current.worker_id != worker_id:
            raise RolloutConflict(new.rollout_id)
        return rows.attempted_of(row[1:], rows.live_attempt(current))

    def claim(self, claim: Claim) -> tuple[AttemptedRollout, ...]:
        self._see_worker(claim.worker_id)
        if claim.request_id is not None and (held := self._claimed_by_request(claim.request_id)):
            return held
        lanes = [lane for (lane,) in self._db.execute(SQL["lanes"]) if claim.takes_any or claim.takes(lane)]
        heads: list[tuple[Any, ...]] = []
        for lane in lanes:
            heads += self._db.execute(SQL["lane_head"], (lane, claim.limit)).fetchall()
        if len(lanes) > 1:
            heads.sort(key=lambda row: (-row[8], row[0]))
        return tuple(self._claim_row(row, claim) for row in heads[: claim.limit])

    def report(self, report: Report) -> Attempt:
        """A fenced write; repeating one that was carried out returns what it returned then."""
        current = self._current(report.rollout_id)
        if not current.held_by(report.attempt_id):
            return self._repeated(report)
        worker_id = report.worker_id or current.worker_id
        if worker_id != current.worker_id:
            self._see_worker(worker_id)
        if report.events:
            self._insert_events(current, report)
        if report.signal is None or report.signal is Signal.RUN:
            status = current.status if report.signal is None else AttemptStatus.RUNNING
            self._db.execute(SQL["set_live"], (status, worker_id, current.seq))
            return rows.live_attempt(current._replace(status=status, worker_id=worker_id))
        now = self._clock.time()
        outcome = Outcome(worker_id, report.reward, report.failure)
        self._end(current, report.signal, outcome, now)
        return rows.ended_attempt(current, ATTEMPT_AFTER[report.signal], outcome, now)

    def append(self, report: Report) -> int:
        current = self._current(report.rollout_id)
        if not current.held_by(report.attempt_id):
            raise self._lease_lost(report)
        return self._insert_events(current, report)

    def renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        now = self._clock.time()
        self._see_worker(worker_id, always=True)
        held = [Current(*row) for row in self._db.execute(SQL["held"], (worker_id,))]
        kept = [current for current in held if current.attempt_id in attempt_ids]
        leases = [(Lease(config_of(current.config), current.started_at), current.seq) for current in kept]
        self._db.executemany(SQL["renew"], [(now, lease.renewed(now), seq) for lease, seq in leases])
        lost = attempt_ids - {current.attempt_id for current in kept}
        return tuple(LostLease(attempt_id=attempt_id, reason=self._end_of(attempt_id)) for attempt_id in sorted(lost))

    def revoke(self, worker_id: str, failure: Failure) -> tuple[str, ...]:
        now = self._clock.time()
        held = [Current(*row) for row in self._db.execute(SQL["held"], (worker_id,))]
        for current in held:
            self._end(current, Signal.LOSE, Outcome(worker_id, failure=failure), now)
            self.topics.add(Topic.REVOKED)
        return tuple(current.attempt_id for current in held)

    def cancel(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        now = self._clock.time()
        found = [self._current(rollout_id) for rollout_id in rollout_ids]
        open_ones = [current for current in found if not RolloutStatus(current.status).is_final]
        for current in open_ones:
            self._end(current, Signal.CANCEL, Outcome(current.worker_id), now)
            self.topics.add(Topic.REVOKED)
        return tuple(current.rollout_id for current in open_ones)

    def expire(self) -> None:
        """Take away the leases that are due."""
        now = self._clock.time()
        for row in self._db.execute(SQL["expired"], (now, EXPIRED_AT_ONCE)).fetchall():
            current = Current(*row)
            signal, failure = Lease(config_of(current.config), current.started_at).verdict(current.worker_id, now)
            self._end(current, signal, Outcome(current.worker_id, failure=failure), now)
            self.topics.add(Topic.REVOKED)

    def put_resources(self, data: bytes) -> Resources:
        return rows.resources_of(self._db.execute(SQL["insert_resources"], (data, self._clock.time())).fetchone())

    def _insert(self, new: NewRollout, now: float) -> int | None:
        """The place of the inserted rollout, or None if its id is taken."""
        request = new.request
        cursor = self._db.execute(
            SQL["insert_rollout"],
            (
                new.rollout_id,
                request.mode,
                request.tag,
                request.seed,
                request.group_id,
                request.priority,
                new.config,
                now,
                new.lane,
            ),
        )
        if cursor.rowcount == 0:
            return None
        self._db.execute(SQL["insert_input"], (cursor.lastrowid, new.input, new.metadata))
        return cursor.lastrowid

    def _repetition(self, new: NewRollout) -> Rollout:
        row = self._db.execute(SQL["rollout"], (new.rollout_id,)).fetchone()
        existing = rows.rollout_of(row[1:])
        if not new.matches(existing):
            raise RolloutConflict(new.rollout_id)
        return existing

    def _claimed_by_request(self, request_id: str) -> tuple[AttemptedRollout, ...]:
        found = self._db.execute(SQL["claimed_by_request"], (request_id,)).fetchall()
        return tuple(rows.attempted_of(row, rows.live_attempt(self._current(row[0]))) for row in found)

    def _claim_row(self, row: Sequence[Any], claim: Claim) -> AttemptedRollout:
        """Claim the rollout in `row`: its place, then the columns of a rollout."""
        now = self._clock.time()
        attempt_id = new_id("at")
        expires_at = Lease(config_of(row[9]), now).renewed(now)
        self._db.execute(SQL["claim"], (attempt_id, claim.worker_id, claim.request_id, now, now, expires_at, row[0]))
        attempt = Attempt(
            rollout_id=row[1],
            attempt_id=attempt_id,
            sequence_id=row[15] + 1,
            worker_id=claim.worker_id,
            status=AttemptStatus.PREPARING,
            started_at=utc(now),
            last_heartbeat_at=utc(now),
            lease_expires_at=utc(expires_at),
        )
        return rows.attempted_of(row[1:], attempt)

    def _current(self, rollout_id: str) -> Current:
        row = self._db.execute(SQL["current"], (rollout_id,)).fetchone()
        if row is None:
            raise UnknownId("rollout", rollout_id)
        return Current(*row)

    def _end(self, current: Current, signal: Signal, outcome: Outcome, now: float) -> None:
        """End the attempt that holds the lease, if there is one, and move the rollout on."""
        status = RolloutStatus(current.status)
        move = advance(status, signal, n_failures=current.n_failures, config=config_of(current.config))
        failure = failure_record(outcome.failure)
        if current.is_live:
            self._db.execute(
                SQL["insert_attempt"],
                (
                    current.seq,
                    current.n_attempts,
                    current.attempt_id,
                    outcome.worker_id,
                    move.attempt,
                    current.started_at,
                    current.heartbeat_at,
                    now,
                    outcome.reward,
                    failure,
                ),
            )
        if move.requeues:
            lane = lane_of(Mode(current.mode), current.tag)
            self._db.execute(SQL["set_requeued"], (move.rollout, move.n_failures, failure, lane, current.seq))
            self.topics.add(Topic.QUEUE)
        else:
            self._db.execute(
                SQL["set_ended"],
                (move.rollout, move.n_failures, failure, outcome.reward, outcome.worker_id, now, current.seq),
            )
            self.topics.add(Topic.ENDED)

    def _repeated(self, report: Report) -> Attempt:
        """The ended attempt, if this report is the one that ended it, sent again."""
        row = self._db.execute(SQL["attempt"], (report.attempt_id,)).fetchone()
        if row is not None and report.signal is not None and row[0] == report.rollout_id:
            attempt = rows.attempt_of(row[0], row[1:])
            if (attempt.status, attempt.reward) == (ATTEMPT_AFTER[report.signal], report.reward):
                return attempt
        raise self._lease_lost(report)

    def _lease_lost(self, report: Report) -> LeaseLost:
        return LeaseLost(report.rollout_id, report.attempt_id, self._end_of(report.attempt_id))

    def _end_of(self, attempt_id: str) -> str:
        row = self._db.execute(SQL["attempt"], (attempt_id,)).fetchone()
        return "no such attempt" if row is None else str(row[4])

    def _insert_events(self, current: Current, report: Report) -> int:
        (count,) = self._db.execute(SQL["n_events"], (current.seq, current.n_attempts)).fetchone()
        first = count if report.first_index is None else report.first_index
        self._db.executemany(SQL["insert_event"], rows.event_rows(current, first, report.events))
        return max(int(count), first + len(report.events))

    def _see_worker(self, worker_id: str, *, always: bool = False) -> None:
        now = self._clock.time()
        self._db.execute(SQL["see_worker"], (worker_id, now, now, 0.0 if always else WORKER_SEEN_EVERY))

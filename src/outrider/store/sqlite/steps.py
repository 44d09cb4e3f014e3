"""The writing half of the SQLite engine: steps that run inside a transaction which their caller begins and commits.

Calls of one batch have no order among themselves, so claims are answered together and so are reports: one look at
the queue for all claims, and one prepared statement run over all rows that move.

What the desk remembers of rows, and of modes in which nothing waits, is exact: it forgets all of it when another
connection has committed since, which SQLite tells by `data_version`, or when a transaction of its own was rolled back.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

from msgspec.structs import replace

from outrider.core.attempt import Attempt, LostLease
from outrider.core.clock import Clock
from outrider.core.errors import LeaseLost, OutriderError, RolloutConflict, UnknownId
from outrider.core.lifecycle import ATTEMPT_AFTER, Signal
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.status import Mode, RolloutStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.held import Held
from outrider.store.jumps import JUMP_SECONDS, HostClock, host_identity, tell
from outrider.store.protocol import DEFAULT_RESOURCES, Resources
from outrider.store.rows import WORKER_SEEN_EVERY, WORKER_SILENT_SECONDS, Current, Outcome
from outrider.store.sqlite import reads
from outrider.store.sqlite.moves import Moves
from outrider.store.sqlite.reads import SQL
from outrider.store.sqlite.thread import carry_out_each
from outrider.store.sqlite.wal import WriteAheadLog
from outrider.store.steps import (
    UNREADABLE,
    Change,
    Claim,
    NewRollout,
    Report,
    Revocation,
    WorkerNote,
    failure_record,
    lane_of,
    lease_of,
)

EXPIRED_AT_ONCE = 500
TALLIED_AT_ONCE = 10_000

MANY_TAGS = 16
LOOKED_AT = 256
"""A claim that names more tags than that looks first at so many rollouts of each mode."""


class SqliteSteps:
    """The writer's desk. `ring` is called once a transaction is durable, with whom to wake."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock,
        ring: Callable[[frozenset[Topic]], Callable[[], None]],
        host_clock: HostClock | None = None,
    ) -> None:
        self.connection = connection
        self._db = connection
        self._log = WriteAheadLog(connection)
        self._clock = clock
        self._host_clock = host_clock or HostClock(clock)
        self._offset_found: float | None = None
        self._jump_found = 0.0
        self._ring = ring
        self._now = clock.time()
        self._workers_seen: dict[str, float] = {}
        self._workers_noted: dict[str, float] = {}
        self._topics: set[Topic] = set()
        self._held = Held()
        self._empty: set[tuple[bool, Mode]] = set()
        self._feed_end: int | None = None
        self._resources_version: int | None = None
        self._version: int | None = None
        self._version_committed: int | None = None

    def carry_out(self, calls: Sequence[Any]) -> list[Any]:
        """New rollouts, reports, claims, and any other call as a function of these steps."""
        self._begin()
        outcomes: list[Any] = [None] * len(calls)
        reports: list[int] = []
        claims: list[int] = []
        others: list[int] = []
        for place, call in enumerate(calls):
            kind = type(call)
            (reports if kind is Report else claims if kind is Claim else others).append(place)
        bound = [self._bound(calls[place]) for place in others]
        for places, results in (
            (others, carry_out_each(self._db, bound)),
            (reports, self.report_all([calls[place] for place in reports])),
            (claims, self.claim_all([calls[place] for place in claims])),
        ):
            for place, result in zip(places, results, strict=True):
                outcomes[place] = result
        return outcomes

    def _begin(self) -> None:
        self._now = self._clock.time()
        self._workers_noted = {}
        self._forget_empty()
        self._topics.clear()
        (self._version,) = self._db.execute("PRAGMA data_version").fetchone()
        if self._version != self._version_committed:
            self._held.clear()
            self._empty.clear()
            self._feed_end = self._resources_version = None
        self._version_committed = None
        self._offset_found, self._jump_found = None, 0.0
        if self._host_clock.has_jumped:
            self._follow_clock()

    def _follow_clock(self) -> None:
        """Move the times of live attempts along with a wall clock that has jumped, unless another process has.

        All times in the store are by the same clock then: nobody else writes between the look at the clock and here.
        """
        identity, offset = host_identity(), self._host_clock.measure()
        known = self._db.execute(SQL["host_clock"]).fetchone()
        self._now, self._offset_found = self._clock.time(), offset
        if known is None:
            self._db.execute(SQL["insert_host_clock"], (identity, offset))
        elif known[0] != identity:
            self._db.execute(SQL["set_host_clock"], (identity, offset))
            self._shorten_leases()
        elif abs(jump := offset - known[1]) > JUMP_SECONDS:
            self._db.execute(SQL["set_host_clock"], (identity, offset))
            self._db.execute(SQL["move_live"], (jump,))
            silent_before = self._now - max(jump, 0.0) - WORKER_SILENT_SECONDS
            self._db.execute(SQL["move_workers"], (jump, silent_before))
            self._jump_found = jump
        self._held.clear()
        self._workers_seen.clear()

    def _shorten_leases(self) -> None:
        """After a reboot only wall time is left, which may have been set: no lease is longer than its term."""
        now = self._now
        for row in self._db.execute(SQL["live"]).fetchall():
            current = Current(*row)
            expires_at = lease_of(current.config, current.started_at).renewed(now)
            if current.expires_at is not None and expires_at < current.expires_at:
                self._db.execute(SQL["renew"], (current.heartbeat_at, expires_at, current.seq))

    def _forget_empty(self) -> None:
        """What was empty is so no more if somebody is to be woken for it."""
        if Topic.QUEUE in self._topics:
            self._empty.clear()

    def _bound(self, call: Any) -> Callable[[], Any]:
        return partial(self.enqueue, (call,)) if type(call) is NewRollout else partial(call, self)

    def committed(self) -> Callable[[], None] | None:
        self._version_committed = self._version
        self._workers_seen |= self._workers_noted
        if self._offset_found is not None:
            self._host_clock.follow(self._offset_found)
            if self._jump_found:
                tell("the wall clock", self._jump_found)
        return self._ring(frozenset(self._topics)) if self._topics else None

    def is_untidy(self) -> bool:
        return self._log.is_long()

    def tidy(self) -> None:
        """Keep the write-ahead log short."""
        if self._log.is_long():
            self._log.shorten()

    def enqueue(self, new: Sequence[NewRollout]) -> tuple[Rollout, ...]:
        now = self._now
        self._topics.add(Topic.QUEUE)
        return tuple(
            rows.fresh_rollout(rollout, now) if self._insert(rollout, now) else self._repetition(rollout)
            for rollout in new
        )

    def start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        """Enqueue and claim; repeated with the same id it returns the attempt that the first call began."""
        inserted = self._insert(new, self._now)
        if not inserted:
            self._repetition(new)
        row = self._db.execute(SQL["waiting"], (new.rollout_id,)).fetchone()
        current = reads.current(self._db, new.rollout_id)
        if not inserted and not (current.is_live and current.worker_id == worker_id):
            raise RolloutConflict(new.rollout_id)
        self._see_worker(worker_id)
        if not inserted:
            return rows.attempted_of(row, rows.live_attempt(current))
        claim = Claim(worker_id=worker_id, limit=1, tags=None, mode=None, request_id=None)
        return self._claim_rows([row], [claim])[0]

    def claim_all(self, claims: Sequence[Claim]) -> list[tuple[AttemptedRollout, ...]]:
        """What each claim gets. Those with the same filter share one look at the queue, unless they may be repeated."""
        self._forget_empty()
        answers: list[tuple[AttemptedRollout, ...]] = [()] * len(claims)
        alike: dict[Any, list[int]] = {}
        for place, claim in enumerate(claims):
            self._see_worker(claim.worker_id)
            if claim.request_id is None:
                alike.setdefault((claim.tags, claim.mode, claim.isolated), []).append(place)
            else:
                answers[place] = self._claimed_by_request(claim.request_id) or self._take([claim])[0]
        for places in alike.values():
            for place, taken in zip(places, self._take([claims[place] for place in places]), strict=True):
                answers[place] = taken
        return answers

    def _take(self, claims: Sequence[Claim]) -> list[tuple[AttemptedRollout, ...]]:
        """The next rollouts for claims with the same filter, in their order."""
        wanted = sum(claim.limit for claim in claims)
        claimed: list[AttemptedRollout] = []
        # Again only if some could not be read, and so are not waiting any more.
        while len(claimed) < wanted and (heads := self._heads(claims[0], wanted - len(claimed))):
            takers = islice(chain.from_iterable(repeat(claim, claim.limit) for claim in claims), len(claimed), None)
            found = self._claim_rows(heads, takers)
            claimed += found
            if len(found) == len(heads):
                break
        shares = iter(claimed)
        return [tuple(islice(shares, claim.limit)) for claim in claims]

    def report_all(self, reports: Sequence[Report]) -> list[Attempt | OutriderError]:
        """Fenced writes; repeating one that was carried out returns what it returned then."""
        outcomes: list[Attempt | OutriderError] = []
        moves = Moves()
        find = self._held.find
        found = self._found(report for report in reports if find(report.rollout_id, report.attempt_id) is None)
        reported: set[str] = set()
        for report in reports:
            if report.rollout_id in reported:
                self._write(moves)
                moves = Moves()
                found |= reads.currents(self._db, {report.rollout_id})
            reported.add(report.rollout_id)
            current = find(report.rollout_id, report.attempt_id) or found.get(report.rollout_id)
            try:
                outcomes.append(self._report(report, current, moves))
            except OutriderError as exc:
                outcomes.append(exc)
        self._write(moves)
        return outcomes

    def _found(self, reports: Iterable[Report]) -> dict[str, Current]:
        """The rollouts of reports, by id. The place that an attempt names is nearer at hand than an id."""
        found: dict[str, Current] = {}
        elsewhere = set()
        for report in reports:
            current = self._rollout_of(report.attempt_id)
            if current is not None and current.rollout_id == report.rollout_id:
                found[report.rollout_id] = current
            else:
                elsewhere.add(report.rollout_id)
        return found | reads.currents(self._db, elsewhere) if elsewhere else found

    def change(self, change: Change) -> Rollout:
        """Change a rollout that waits; the transaction holds the write lock, so nobody claims it meanwhile."""
        row = self._db.execute(SQL["rollout"], (change.rollout_id,)).fetchone()
        if row is None:
            raise UnknownId("rollout", change.rollout_id)
        new, rollout = rows.changed_of(row, change)
        request = new.request
        (seq,) = self._db.execute(SQL["place"], (change.rollout_id,)).fetchone()
        lane = lane_of(request.mode, request.tag, isolated=rollout.is_set_aside)
        columns = (request.mode, request.tag, request.seed, request.priority, new.config, lane)
        self._db.execute(SQL["change"], (*columns, seq))
        self._db.execute(SQL["change_input"], (new.input, new.metadata, seq))
        self._topics.add(Topic.QUEUE)
        return rollout

    def append(self, report: Report) -> int:
        current = reads.current(self._db, report.rollout_id)
        if not current.held_by(report.attempt_id):
            raise LeaseLost(report.rollout_id, report.attempt_id, self._end_of(current, report.attempt_id))
        return self._insert_events(current, report)

    def renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        now = self._now
        self._see_worker(worker_id, always=True)
        renewed, lost = [], []
        for attempt_id in sorted(attempt_ids):
            current = self._rollout_of(attempt_id)
            if current is not None and current.held_by(attempt_id) and current.worker_id == worker_id:
                lease = lease_of(current.config, current.started_at)
                renewed.append((now, lease.renewed(now), current.seq))
                self._held.forget(attempt_id)
            else:
                reason = "no such attempt" if current is None else self._end_of(current, attempt_id)
                lost.append(LostLease(attempt_id=attempt_id, reason=reason))
        self._db.executemany(SQL["renew"], renewed)
        return tuple(lost)

    def revoke(self, revocation: Revocation) -> tuple[str, ...]:
        held = [Current(*row) for row in self._db.execute(SQL["held"], (revocation.worker_id,))]
        signal = revocation.signal(len(held))
        outcome = Outcome(revocation.worker_id, failure=revocation.failure, isolates=revocation.isolates)
        self._end_all([(current, signal, outcome) for current in held])
        return tuple(current.attempt_id for current in held)

    def cancel(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        found = [reads.current(self._db, rollout_id) for rollout_id in rollout_ids]
        open_ones = [current for current in found if not RolloutStatus(current.status).is_final]
        self._end_all([(current, Signal.CANCEL, Outcome(current.worker_id)) for current in open_ones])
        return tuple(current.rollout_id for current in open_ones)

    def expire(self) -> None:
        """Take away the leases that are due."""
        now = self._now
        ends = []
        for row in self._db.execute(SQL["expired"], (now, EXPIRED_AT_ONCE)).fetchall():
            current = Current(*row)
            signal, failure = lease_of(current.config, current.started_at).verdict(current.worker_id, now)
            ends.append((current, signal, Outcome(current.worker_id, failure=failure)))
        self._end_all(ends)

    def tally(self) -> bool:
        """Add to the tallies what was enqueued and what has ended since; whether that was all."""
        seq, finish_seq, last_seq, last_finish_seq = self._db.execute(SQL["untallied"]).fetchone()
        to = min(seq + TALLIED_AT_ONCE, last_seq), min(finish_seq + TALLIED_AT_ONCE, last_finish_seq)
        self._db.execute(SQL["tally_enqueued"], (seq, to[0]))
        self._db.execute(SQL["tally_ended"], (finish_seq, to[1]))
        self._db.execute(SQL["set_tallied"], to)
        return to == (last_seq, last_finish_seq)

    def note_workers(self, notes: Sequence[WorkerNote]) -> None:
        seen = (self._now, self._now)
        table = [(note.worker_id, *seen, note.n_succeeded, note.n_failed, note.ended_at, note.stats) for note in notes]
        self._db.executemany(SQL["note_worker"], table)

    def put_resources(self, resources_id: str, data: bytes) -> Resources:
        self._topics.add(Topic.PUBLISHED)
        self._resources_version = None
        values = (resources_id, data, self._now)
        return rows.resources_of(self._db.execute(SQL["insert_resources"], values).fetchone())

    def _insert(self, new: NewRollout, now: float) -> bool:
        """Whether it was inserted: not if its id is taken."""
        request = new.request
        columns = (request.mode, request.tag, request.seed, request.group_id, request.priority, new.config, now)
        cursor = self._db.execute(SQL["insert_rollout"], (new.rollout_id, *columns, new.lane))
        if cursor.rowcount == 0:
            return False
        self._db.execute(SQL["insert_input"], (cursor.lastrowid, new.input, new.metadata))
        return True

    def _repetition(self, new: NewRollout) -> Rollout:
        row = self._db.execute(SQL["rollout"], (new.rollout_id,)).fetchone()
        existing = rows.rollout_of(row)
        if not new.matches(existing):
            raise RolloutConflict(new.rollout_id)
        return existing

    def _claimed_by_request(self, request_id: str) -> tuple[AttemptedRollout, ...]:
        claimed = []
        for row in self._db.execute(SQL["claimed_by_request"], (request_id,)).fetchall():
            with suppress(*UNREADABLE):  # it ends with its lease
                claimed.append(rows.attempted_of(row, rows.live_attempt(reads.current(self._db, row[0]))))
        return tuple(claimed)

    def _heads(self, claim: Claim, limit: int) -> list[tuple[Any, ...]]:
        """The next rollouts that the claim may take: the columns `rows.GIVEN`, place, how often attempted."""
        if claim.tags is not None:
            places = self._tagged(claim, claim.tags, limit)
            return [self._db.execute(SQL["waiting_at"], (seq,)).fetchone() for _, seq in places]
        heads: list[tuple[Any, ...]] = []
        n_lists = 0
        for mode in claim.modes:
            if (claim.isolated, mode) not in self._empty:
                found = self._db.execute(SQL["next"], (int(claim.isolated), mode.value, limit)).fetchall()
                heads += found
                n_lists += bool(found)
                if not found:
                    self._empty.add((claim.isolated, mode))
        if n_lists > 1:
            heads.sort(key=lambda row: (-row[6], row[11]))
        return heads[:limit]

    def _tagged(self, claim: Claim, tags: frozenset[str], limit: int) -> list[tuple[int, int]]:
        """The next rollouts with one of these tags, by rank (the priority turned round) and place.

        Who names many tags probably finds one of them near the head of the queue; then their lanes are not looked at.
        """
        places: list[tuple[int, int]] = []
        if len(tags) > MANY_TAGS:
            seen_to: list[tuple[int, int]] = []
            for mode in claim.modes:
                found = self._db.execute(SQL["next_tags"], (int(claim.isolated), mode.value, LOOKED_AT)).fetchall()
                places += [(rank, seq) for rank, seq, tag in found if tag in tags]
                if len(found) == LOOKED_AT:
                    seen_to.append(found[-1][:2])
            places = sorted(place for place in places if not seen_to or place <= min(seen_to))
            if len(places) >= limit or not seen_to:
                return places[:limit]
            places = []
        for lane in claim.lanes:
            places += self._db.execute(SQL["lane_head"], (lane, limit)).fetchall()
        return sorted(places)[:limit]

    def _claim_rows(self, heads: Sequence[Sequence[Any]], takers: Iterable[Claim]) -> list[AttemptedRollout]:
        """The claimed rollouts, one for each taker in turn. Those that cannot be read end at once, as failed."""
        now = self._now
        tokens = os.urandom(4 * len(heads)).hex(" ", 4).split()
        ends: dict[bytes, tuple[float, int]] = {}
        moved, claimed, unreadable = [], [], []
        takers = iter(takers)
        claim = next(takers)
        for row, token in zip(heads, tokens, strict=True):
            config, seq, sequence_id = row[7], row[11], row[12] + 1
            if (known := ends.get(config)) is None:
                lease = lease_of(config, now)
                known = ends[config] = lease.renewed(now), lease.config.resources_version or self._newest()
            expires_at, version = known
            attempt_id = f"at-{seq:x}-{sequence_id}-{token}"
            current = Current(
                *(seq, row[0], "preparing", row[2], row[3], config, sequence_id, row[10]),
                *(attempt_id, claim.worker_id, now, now, expires_at, version or None),
            )
            moved.append((attempt_id, claim.worker_id, claim.request_id or "", now, now, expires_at, version, seq))
            try:
                claimed.append(rows.attempted_of(row, rows.live_attempt(current)))
            except UNREADABLE as exc:
                failure = rows.unreadable(f"rollout {row[0]!r}", exc)
                unreadable.append((rows.set_aside(current), Signal.FAIL, Outcome(claim.worker_id, failure=failure)))
            else:
                self._held.remember(current)
                claim = next(takers, claim)
        self._db.executemany(SQL["claim"], moved)
        if unreadable:
            self._end_all(unreadable)
        return claimed

    def _newest(self) -> int:
        """The newest version of the resources that claims are made with; 0 if there is none."""
        if self._resources_version is None:
            self._resources_version = reads.latest_version(self._db, DEFAULT_RESOURCES)
        return self._resources_version

    def _report(self, report: Report, current: Current | None, moves: Moves) -> Attempt:
        if current is None:
            raise UnknownId("rollout", report.rollout_id)
        if not current.held_by(report.attempt_id):
            repeated = self._repeated(current, report)
            moves.keep_account(current.seq, report)
            return repeated
        worker_id = report.worker_id or current.worker_id
        if worker_id != current.worker_id:
            self._see_worker(worker_id)
        if report.events:
            self._insert_events(current, report)
        if report.metadata is not None:
            current = replace(current, metadata=report.metadata)
            moves.noted.append((report.metadata, current.seq))
        if report.signal is None or report.signal is Signal.RUN:
            status = current.status if report.signal is None else "running"
            moves.live.append((status, worker_id, current.seq))
            current = replace(current, status=status, worker_id=worker_id)
            self._held.remember(current)
            return rows.live_attempt(current)
        outcome = Outcome(worker_id, report.reward, report.failure)
        self._end(current, report.signal, outcome, moves)
        moves.keep_account(current.seq, report)
        return rows.ended_attempt(current, ATTEMPT_AFTER[report.signal], outcome, self._now)

    def _end_all(self, ends: Sequence[tuple[Current, Signal, Outcome]]) -> None:
        """End attempts that did not ask for it, and tell those that run them."""
        moves = Moves()
        for current, signal, outcome in ends:
            self._end(current, signal, outcome, moves)
            self._topics.add(Topic.REVOKED)
        self._write(moves)

    def _end(self, current: Current, signal: Signal, outcome: Outcome, moves: Moves) -> None:
        """End the attempt that holds the lease, if there is one, and move the rollout on."""
        to = rows.landing(current.status, signal, current.n_failures, current.config)
        failure = failure_record(outcome.failure)
        self._held.forget(current.attempt_id)
        if to.requeues:
            times = (current.started_at, current.heartbeat_at, self._now)
            attempt = (current.seq, current.n_attempts, current.attempt_id, outcome.worker_id, to.attempt_status)
            noted = (current.resources_version, current.metadata)
            moves.followed.append((*attempt, *times, outcome.reward, failure, *noted))
            lane = lane_of(Mode(current.mode), current.tag, isolated=outcome.isolates)
            moves.requeued.append((to.status, to.n_failures, failure, lane, current.seq))
        else:
            moves.ended.append(
                (
                    to.status,
                    to.attempt_status if current.is_live else None,
                    to.n_failures,
                    "" if failure is None else failure,
                    "" if outcome.reward is None else outcome.reward,
                    outcome.worker_id,
                    self._now,
                    self._next_place(),
                    current.seq,
                )
            )

    def _write(self, moves: Moves) -> None:
        for name, moved, topic in (
            ("set_metadata", moves.noted, None),
            ("set_live", moves.live, None),
            ("insert_attempt", moves.followed, None),
            ("set_requeued", moves.requeued, Topic.QUEUE),
            ("set_ended", moves.ended, Topic.ENDED),
            ("insert_account", moves.accounts, None),
        ):
            if moved:
                self._db.executemany(SQL[name], moved)
                if topic is not None:
                    self._topics.add(topic)

    def _next_place(self) -> int:
        """The next place in the feed; the transaction holds the write lock, so nobody else takes it."""
        if self._feed_end is None:
            self._feed_end = reads.feed_end(self._db)
        self._feed_end += 1
        return self._feed_end

    def _repeated(self, current: Current, report: Report) -> Attempt:
        """The ended attempt, if this report is the one that ended it, sent again."""
        for attempt in reads.attempts_of(self._db, current):
            ended_so = report.signal is not None and attempt.status == ATTEMPT_AFTER[report.signal]
            if attempt.attempt_id == report.attempt_id and ended_so and attempt.reward == report.reward:
                return attempt
        raise LeaseLost(report.rollout_id, report.attempt_id, self._end_of(current, report.attempt_id))

    def _end_of(self, current: Current, attempt_id: str) -> str:
        attempts = reads.attempts_of(self._db, current)
        ends = {attempt.attempt_id: attempt.status.value for attempt in attempts if not attempt.status.is_live}
        return ends.get(attempt_id, "no such attempt")

    def _rollout_of(self, attempt_id: str) -> Current | None:
        seq = rows.seq_of(attempt_id)
        row = None if seq is None else self._db.execute(SQL["current_at"], (seq,)).fetchone()
        return None if row is None else Current(*row)

    def _insert_events(self, current: Current, report: Report) -> int:
        (count,) = self._db.execute(SQL["n_events"], (current.seq, current.n_attempts)).fetchone()
        first = count if report.first_index is None else report.first_index
        self._db.executemany(SQL["insert_event"], list(rows.event_rows(current, first, report.events)))
        return max(int(count), first + len(report.events))

    def _see_worker(self, worker_id: str, *, always: bool = False) -> None:
        now = self._now
        if always or now - self._workers_seen.get(worker_id, 0.0) >= WORKER_SEEN_EVERY:
            self._db.execute(SQL["see_worker"], (worker_id, now, now, 0.0 if always else WORKER_SEEN_EVERY))
            self._workers_noted[worker_id] = now

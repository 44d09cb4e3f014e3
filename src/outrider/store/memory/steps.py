"""The atomic steps of the memory engine, on plain Python values: the reference for the other engines.

Invariants:
- A step runs on the event loop without a pause, so it is atomic; it checks everything before it changes anything.
- Payloads are kept encoded and decoded on the way out, so that no caller shares a value with the store.
- A rollout waits in two queues: that of its mode, and its lane if it has a tag. A heap holds what is leased. An entry
  that its row has left behind is dropped when it comes up.
- The counts change with every status.
"""

import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from msgspec.structs import astuple

from outrider.core.attempt import Attempt, LostLease
from outrider.core.clock import Clock, utc
from outrider.core.errors import LeaseLost, RolloutConflict, UnknownId
from outrider.core.event import RecordedEvent
from outrider.core.lifecycle import ATTEMPT_AFTER, Signal
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.status import QUEUED, Mode, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.counts import Counts
from outrider.store.jumps import JUMP_SECONDS, HostClock, tell
from outrider.store.memory.lane import Lane
from outrider.store.memory.row import Row
from outrider.store.protocol import DEFAULT_RESOURCES, Resources, Statistics
from outrider.store.rows import (
    ATTEMPT_STATUS,
    ROLLOUT_STATUS,
    WORKER_SEEN_EVERY,
    WORKER_SILENT_SECONDS,
    Outcome,
    landing,
)
from outrider.store.steps import (
    MODES,
    Change,
    Claim,
    EventQuery,
    Lease,
    NewRollout,
    Report,
    ResourcesQuery,
    Revocation,
    RolloutQuery,
    WorkerNote,
    config_of,
    failure_record,
    is_isolated,
    lane_of,
)

R = TypeVar("R")


_QUEUES = {(mode, isolated): lane_of(mode, None, isolated=isolated) for mode in MODES for isolated in (False, True)}
"""The queues of all that waits, by mode and whether it was set aside."""


class MemorySteps:
    """All rows and their indexes, and the atomic steps on them. `topics` collects whom to wake after a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host_clock = HostClock(clock)
        self._rows: list[Row] = []
        self._by_id: dict[str, Row] = {}
        self._queues: defaultdict[str, Lane] = defaultdict(Lane)
        self._n_set_aside = 0
        self._numbers: defaultdict[str | None, Counter[tuple[Mode, RolloutStatus]]] = defaultdict(Counter)
        self._n_ended_first = 0
        self._live: dict[int, Row] = {}
        self._expiries: list[tuple[float, int, str]] = []
        self._by_request: defaultdict[str, dict[int, Row]] = defaultdict(dict)
        self._ended_attempts: dict[str, Attempt] = {}
        self._events: defaultdict[str, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self._feed: list[Row] = []
        self._workers: dict[str, tuple[str, float, float]] = {}
        self._notes: defaultdict[str, WorkerNote] = defaultdict(lambda: WorkerNote(worker_id=""))
        self._resources: list[tuple[int, str, bytes, float]] = []
        self._latest: dict[str, int] = {}
        self.topics: set[Topic] = set()

    def enqueue(self, new: Sequence[NewRollout]) -> tuple[Rollout, ...]:
        now = self._clock.time()
        known = {one.rollout_id: self._repetition(one) for one in new if one.rollout_id in self._by_id}
        for one in new:
            if one.rollout_id not in known:
                self._add(one, now)
        return tuple(known.get(one.rollout_id) or rows.fresh_rollout(one, now) for one in new)

    def start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        """Enqueue and claim; repeated with the same id it returns the attempt that the first call began."""
        self._follow_clock()
        row = self._by_id.get(new.rollout_id)
        if row is not None and self._repetition(new) and (row.expires_at is None or row.worker_id != worker_id):
            raise RolloutConflict(new.rollout_id)
        self._see_worker(worker_id)
        if row is None:
            claim = Claim(worker_id=worker_id, limit=1, tags=None, mode=None, request_id=None)
            return self._claim_row(self._insert(new, self._clock.time()), claim)
        return rows.attempted_of(row.columns, rows.live_attempt(row.current))

    def claim(self, claim: Claim) -> tuple[AttemptedRollout, ...]:
        self._follow_clock()
        self._see_worker(claim.worker_id)
        if claim.request_id is not None and (held := self._by_request.get(claim.request_id)):
            return tuple(rows.attempted_of(row.columns, rows.live_attempt(row.current)) for row in held.values())
        names = [_QUEUES[mode, claim.isolated] for mode in claim.modes] if claim.tags is None else claim.lanes
        heads = [(head, name) for name in names if name in self._queues and (head := self._head_of(name)) is not None]
        heapq.heapify(heads)
        claimed: list[AttemptedRollout] = []
        while heads:
            (_, seq), name = heads[0]
            claimed.append(self._claim_row(self._rows[seq], claim))
            if len(claimed) == claim.limit:
                break
            if (head := self._head_of(name)) is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (head, name))
        return tuple(claimed)

    def report(self, report: Report) -> Attempt:
        """A fenced write; repeating one that was carried out returns what it returned then."""
        row = self._row(report.rollout_id)
        current = row.current
        if not current.held_by(report.attempt_id):
            return self._repeated(report)
        worker_id = report.worker_id or current.worker_id
        if worker_id != current.worker_id:
            self._see_worker(worker_id)
        if report.events:
            self._insert_events(row, report)
        if report.metadata is not None:
            row.metadata = report.metadata
        if report.signal is None or report.signal is Signal.RUN:
            row.worker_id = worker_id
            if report.signal is not None:
                self._set_status(row, RolloutStatus.RUNNING)
            return rows.live_attempt(row.current)
        self._end(row, report.signal, Outcome(worker_id, report.reward, report.failure), self._clock.time())
        return row.ended_attempts[-1]

    def change(self, change: Change) -> Rollout:
        """Change a rollout that waits, in its place. What a queue knew of it before is dropped when it comes up."""
        row = self._row(change.rollout_id)
        new, rollout = rows.changed_of(row.columns, change)
        before, priority = row.queues, row.new.request.priority
        self._count(row, row.status, -1)
        row.new = new
        self._count(row, row.status, 1)
        row.queues = _queues_of(row, isolated=is_isolated(before[0]))
        for name in row.queues:
            if name not in before or priority != new.request.priority:
                self._queues[name].add_again(new.request.priority, row.seq)
        for name in before:
            self._head_of(name)
        self.topics.add(Topic.QUEUE)
        return rollout

    def append(self, report: Report) -> int:
        row = self._row(report.rollout_id)
        if not row.current.held_by(report.attempt_id):
            raise self._lease_lost(report)
        return self._insert_events(row, report)

    def renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        self._follow_clock()
        now = self._clock.time()
        self._see_worker(worker_id, always=True)
        held = {row.attempt_id: row for row in self._held(worker_id)}
        for attempt_id in attempt_ids & held.keys():
            row = held[attempt_id]
            row.heartbeat_at = now
            self._lease_until(row, Lease(config_of(row.new.config), row.current.started_at).renewed(now))
        lost = sorted(attempt_ids - held.keys())
        return tuple(LostLease(attempt_id=attempt_id, reason=self._end_of(attempt_id)) for attempt_id in lost)

    def revoke(self, revocation: Revocation) -> tuple[str, ...]:
        now = self._clock.time()
        held = self._held(revocation.worker_id)
        signal = revocation.signal(len(held))
        outcome = Outcome(revocation.worker_id, failure=revocation.failure, isolates=revocation.isolates)
        for row in held:
            self._end(row, signal, outcome, now)
            self.topics.add(Topic.REVOKED)
        return tuple(row.current.attempt_id for row in held)

    def cancel(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        now = self._clock.time()
        found = [self._row(rollout_id) for rollout_id in rollout_ids]
        open_ones = [row for row in found if not row.status.is_final]
        for row in open_ones:
            self._end(row, Signal.CANCEL, Outcome(row.current.worker_id), now)
            self.topics.add(Topic.REVOKED)
        return tuple(row.new.rollout_id for row in open_ones)

    def expire(self) -> float | None:
        """Take away the leases that are due; when the next one is, in monotonic time."""
        self._follow_clock()
        now = self._clock.time()
        while (due := self._next_expiry()) is not None and due <= now:
            current = (row := self._rows[self._expiries[0][1]]).current
            signal, failure = Lease(config_of(current.config), current.started_at).verdict(current.worker_id, now)
            self._end(row, signal, Outcome(current.worker_id, failure=failure), now)
            self.topics.add(Topic.REVOKED)
        return None if due is None else self._host_clock.monotonic_of(due)

    def finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
        found = self._feed[cursor : cursor + limit]
        return tuple((place, rows.rollout_of(row.columns)) for place, row in enumerate(found, cursor + 1))

    def feed_end(self) -> int:
        return len(self._feed)

    def rollouts(self, query: RolloutQuery) -> Page[Rollout]:
        if query.rollout_ids is None:
            ordered = self._feed if query.sort_by == "ended_at" else self._rows
            found: Iterable[Row] = reversed(ordered) if query.descending else ordered
        else:
            found = sorted(
                (self._by_id[id] for id in query.rollout_ids if id in self._by_id and _has(self._by_id[id], query)),
                key=lambda row: row.finish_seq or 0 if query.sort_by == "ended_at" else row.seq,
                reverse=query.descending,
            )
        if query.is_filtered:
            found = (row for row in found if _wanted(row, query))
        if query.is_by_kind or query.is_of_all:
            total = Counts(self._numbers.get(query.tag, {})).total(query)
            found = islice(found, total)
        else:
            found = list(found)
            total = len(found)
        end = None if query.limit < 0 else query.offset + query.limit
        items = tuple(rows.rollout_of(row.columns) for row in islice(found, query.offset, end))
        return Page(items=items, total=total, limit=query.limit, offset=query.offset)

    def attempts(self, rollout_id: str) -> tuple[Attempt, ...]:
        return self._row(rollout_id).attempts

    def events(self, query: EventQuery) -> Page[RecordedEvent]:
        row = self._row(query.rollout_id)
        attempt = rows.chosen_attempt(row.attempts, query)
        events = [] if attempt is None else sorted(self._events.get(attempt.attempt_id, {}).items())
        found = [
            rows.event_of(query.rollout_id, attempt.attempt_id, event)
            for _, event in events
            if attempt is not None and query.kind in (None, event[1])
        ]
        items = tuple(_window(found, query))
        return Page(items=items, total=len(found), limit=query.limit, offset=query.offset)

    def workers(self) -> tuple[Worker, ...]:
        self._follow_clock()
        now = self._clock.time()
        held = defaultdict(list)
        for row in self._live.values():
            current = row.current
            held[row.worker_id].append((current.attempt_id, current.rollout_id, current.started_at))
        known = sorted(self._workers.values(), key=itemgetter(1, 0))
        return tuple(
            rows.worker_of((*worker, *astuple(self._notes[worker[0]])[1:]), held[worker[0]], now) for worker in known
        )

    def note_workers(self, notes: Sequence[WorkerNote]) -> None:
        for note in notes:
            self._workers.setdefault(note.worker_id, (note.worker_id, self._clock.time(), self._clock.time()))
            before = self._notes[note.worker_id]
            self._notes[note.worker_id] = WorkerNote(
                worker_id=note.worker_id,
                n_succeeded=before.n_succeeded + note.n_succeeded,
                n_failed=before.n_failed + note.n_failed,
                ended_at=max(filter(None, (before.ended_at, note.ended_at)), default=None),
                stats=before.stats if note.stats is None else note.stats,
            )

    def put_resources(self, resources_id: str, data: bytes) -> Resources:
        self.topics.add(Topic.PUBLISHED)
        version = self._latest[resources_id] = len(self._resources) + 1
        self._resources.append((version, resources_id, data, self._clock.time()))
        return rows.resources_of(self._resources[-1])

    def latest_resources(self, resources_id: str) -> Resources | None:
        version = self._latest.get(resources_id)
        return None if version is None else rows.resources_of(self._resources[version - 1])

    def resources(self, query: ResourcesQuery) -> Page[Resources]:
        found = [
            row for row in self._resources if query.resources_id in (None, row[1]) and query.version in (None, row[0])
        ]
        items = tuple(map(rows.resources_of, _window(found[::-1] if query.descending else found, query)))
        return Page(items=items, total=len(found), limit=query.limit, offset=query.offset)

    def statistics(self) -> Statistics:
        counts = Counts(self._numbers.get(None, {}))
        busy = Counter(worker.status for worker in self.workers())
        oldest, due = self._oldest_queued_at(counts), self._next_expiry()
        return Statistics(
            rollouts=counts.by_status(),
            workers={status: busy[status] for status in WorkerStatus},
            oldest_queued_at=None if oldest is None else utc(oldest),
            next_expiry_at=None if due is None else utc(due),
            n_set_aside=self._n_set_aside,
        )

    def _follow_clock(self) -> None:
        """Before a step that goes by them, move the times of live attempts along with a wall clock that has jumped."""
        if not self._host_clock.has_jumped:
            return
        before, offset = self._host_clock.offset, self._host_clock.measure()
        self._host_clock.follow(offset)
        jump = offset - before
        if not abs(jump) > JUMP_SECONDS:
            return
        tell("the wall clock", jump)
        for row in self._live.values():
            row.move_times(jump)
        self._expiries = [(row.expires_at or 0.0, row.seq, row.attempt_id or "") for row in self._live.values()]
        heapq.heapify(self._expiries)
        silent_before = self._clock.time() - max(jump, 0.0) - WORKER_SILENT_SECONDS
        for name, first_seen_at, last_seen_at in tuple(self._workers.values()):
            if last_seen_at > silent_before:
                self._workers[name] = name, min(first_seen_at, last_seen_at + jump), last_seen_at + jump

    def _oldest_queued_at(self, counts: Counts) -> float | None:
        if not counts.total(RolloutQuery(statuses=tuple(QUEUED))):
            return None
        while self._rows[self._n_ended_first].status.is_final:
            self._n_ended_first += 1
        places = range(self._n_ended_first, len(self._rows))
        return next(self._rows[place].enqueued_at for place in places if self._rows[place].queues)

    def _set_status(self, row: Row, status: RolloutStatus) -> None:
        request = row.new.request
        mode, before, row.status = request.mode, row.status, status
        for numbers in self._numbers_of(request.tag):
            numbers[mode, before] -= 1
            numbers[mode, status] += 1

    def _numbers_of(self, tag: str | None) -> tuple[Counter[tuple[Mode, RolloutStatus]], ...]:
        """Those that a rollout with this tag is counted in."""
        return (self._numbers[None],) if tag is None else (self._numbers[None], self._numbers[tag])

    def _count(self, row: Row, status: RolloutStatus, n: int) -> None:
        for numbers in self._numbers_of(row.new.request.tag):
            numbers[row.new.request.mode, status] += n

    def _row(self, rollout_id: str) -> Row:
        row = self._by_id.get(rollout_id)
        if row is None:
            raise UnknownId("rollout", rollout_id)
        return row

    def _held(self, worker_id: str) -> list[Row]:
        return [row for _, row in sorted(self._live.items()) if row.worker_id == worker_id]

    def _insert(self, new: NewRollout, now: float) -> Row:
        row = Row(len(self._rows), new, now)
        self._rows.append(row)
        self._by_id[new.rollout_id] = row
        self._count(row, row.status, 1)
        return row

    def _add(self, new: NewRollout, now: float) -> None:
        row = self._insert(new, now)
        row.queues = _queues_of(row, isolated=False)
        for name in row.queues:
            self._queues[name].add(new.request.priority, row.seq)
        self.topics.add(Topic.QUEUE)

    def _head_of(self, name: str) -> tuple[int, int] | None:
        """The head of a queue, which is a rollout that waits in it; None of one that is empty, which is then gone."""
        if (queue := self._queues.get(name)) is None:
            return None
        while (head := queue.head) is not None:
            row = self._rows[head[1]]
            if name in row.queues and row.new.request.priority == -head[0]:
                return head
            queue.pop()  # it was taken, or changed
        del self._queues[name]
        return None

    def _next_expiry(self) -> float | None:
        """When the next lease is due; its entry is on top of the heap then."""
        while self._expiries:
            expires_at, seq, attempt_id = self._expiries[0]
            row = self._rows[seq]
            if row.expires_at == expires_at and row.attempt_id == attempt_id:
                return expires_at
            heapq.heappop(self._expiries)
            if row.expires_at is not None and row.attempt_id == attempt_id:
                heapq.heappush(self._expiries, (row.expires_at, seq, attempt_id))
        return None

    def _lease_until(self, row: Row, expires_at: float) -> None:
        # A lease made longer keeps its entry, which is corrected when it comes up: heartbeats do not fill the heap.
        if row.expires_at is None or expires_at < row.expires_at:
            heapq.heappush(self._expiries, (expires_at, row.seq, row.attempt_id or ""))
        row.expires_at = expires_at

    def _repetition(self, new: NewRollout) -> Rollout:
        existing = rows.rollout_of(self._row(new.rollout_id).columns)
        if not new.matches(existing):
            raise RolloutConflict(new.rollout_id)
        return existing

    def _claim_row(self, row: Row, claim: Claim) -> AttemptedRollout:
        now = self._clock.time()
        self._set_status(row, ROLLOUT_STATUS[landing(row.status, Signal.CLAIM, row.n_failures, row.new.config).status])
        self._leave_queues(row)
        row.n_attempts += 1
        row.attempt_id = f"at-{row.seq:x}-{row.n_attempts}-{os.urandom(4).hex()}"
        row.worker_id, row.request_id = claim.worker_id, claim.request_id
        row.started_at = row.heartbeat_at = now
        row.failure = row.metadata = None
        row.resources_version = row.new.request.config.resources_version or self._latest.get(DEFAULT_RESOURCES)
        self._lease_until(row, Lease(config_of(row.new.config), now).renewed(now))
        self._live[row.seq] = row
        if claim.request_id is not None:
            self._by_request[claim.request_id][row.seq] = row
        return rows.attempted_of(row.columns, rows.live_attempt(row.current))

    def _end(self, row: Row, signal: Signal, outcome: Outcome, now: float) -> None:
        """End the attempt that holds the lease, if there is one, and move the rollout on."""
        to = landing(row.status, signal, row.n_failures, row.new.config)
        if row.expires_at is not None:
            attempt = rows.ended_attempt(row.current, ATTEMPT_STATUS[to.attempt_status], outcome, now)
            row.ended_attempts += (attempt,)
            self._ended_attempts[attempt.attempt_id] = attempt
        self._live.pop(row.seq, None)
        if row.request_id is not None:
            del self._by_request[row.request_id][row.seq]
            if not self._by_request[row.request_id]:
                del self._by_request[row.request_id]
        self._set_status(row, ROLLOUT_STATUS[to.status])
        row.n_failures, row.failure = to.n_failures, failure_record(outcome.failure)
        row.request_id = row.expires_at = None
        self._leave_queues(row)
        if to.requeues:
            row.queues = _queues_of(row, isolated=outcome.isolates)
            self._n_set_aside += outcome.isolates
            for name in row.queues:
                self._queues[name].add_again(row.new.request.priority, row.seq)
            self.topics.add(Topic.QUEUE)
        else:
            self._feed.append(row)
            row.finish_seq, row.ended_at = len(self._feed), now
            row.reward, row.worker_id = outcome.reward, outcome.worker_id
            self.topics.add(Topic.ENDED)

    def _leave_queues(self, row: Row) -> None:
        queues, row.queues = row.queues, ()
        self._n_set_aside -= bool(queues) and is_isolated(queues[0])
        for name in queues:
            self._head_of(name)

    def _repeated(self, report: Report) -> Attempt:
        """The ended attempt, if this report is the one that ended it, sent again."""
        attempt = self._ended_attempts.get(report.attempt_id)
        sent = None if report.signal is None else (report.rollout_id, ATTEMPT_AFTER[report.signal], report.reward)
        if attempt is None or sent != (attempt.rollout_id, attempt.status, attempt.reward):
            raise self._lease_lost(report)
        return attempt

    def _lease_lost(self, report: Report) -> LeaseLost:
        attempt = self._ended_attempts.get(report.attempt_id)
        reason = str(attempt.status) if attempt and attempt.rollout_id == report.rollout_id else "no such attempt"
        return LeaseLost(report.rollout_id, report.attempt_id, reason)

    def _end_of(self, attempt_id: str) -> str:
        attempt = self._ended_attempts.get(attempt_id)
        return "no such attempt" if attempt is None else str(attempt.status)

    def _insert_events(self, row: Row, report: Report) -> int:
        """Append events; one that is already there was sent twice."""
        kept = self._events[report.attempt_id]
        count = max(kept, default=-1) + 1
        first = count if report.first_index is None else report.first_index
        for event in list(rows.event_rows(row.current, first, report.events)):
            kept.setdefault(event[2], event[2:])
        return max(count, first + len(report.events))

    def _see_worker(self, worker_id: str, *, always: bool = False) -> None:
        now = self._clock.time()
        _, first_seen_at, last_seen_at = self._workers.setdefault(worker_id, (worker_id, now, now))
        if now >= last_seen_at + (0.0 if always else WORKER_SEEN_EVERY):
            self._workers[worker_id] = worker_id, first_seen_at, now


def _wanted(row: Row, query: RolloutQuery) -> bool:
    request = row.new.request
    return (
        (query.statuses is None or row.status in query.statuses)
        and query.mode in (None, request.mode)
        and query.tag in (None, request.tag)
        and query.group_id in (None, request.group_id)
    )


def _has(row: Row, query: RolloutQuery) -> bool:
    """Whether the row has a place in the order asked for."""
    return query.sort_by != "ended_at" or row.finish_seq is not None


def _queues_of(row: Row, *, isolated: bool) -> tuple[str, ...]:
    """Where the rollout waits: with all of its mode, in a queue named like the lane without a tag, and in its lane."""
    request = row.new.request
    return tuple({lane_of(request.mode, tag, isolated=isolated): None for tag in (None, request.tag)})


def _window(items: Sequence[R], query: EventQuery | ResourcesQuery) -> Sequence[R]:
    return items[query.offset : None if query.limit < 0 else query.offset + query.limit]

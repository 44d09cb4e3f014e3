"""What the SQLite engine reads, each inside one transaction that its caller begins and ends."""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from outrider.core.attempt import Attempt
from outrider.core.clock import utc
from outrider.core.errors import UnknownId
from outrider.core.event import RecordedEvent
from outrider.core.page import Page
from outrider.core.rollout import Rollout
from outrider.core.status import Mode, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import ledger_rows, machine_rows, rows
from outrider.store.counts import Counts
from outrider.store.listing import Dialect, page_of
from outrider.store.protocol import Resources, Statistics
from outrider.store.rows import Current
from outrider.store.sql import queries
from outrider.store.sqlite.thread import carry_out_each
from outrider.store.steps import EventQuery, ResourcesQuery, RolloutQuery

SQL = queries(
    "sqlite",
    given=rows.GIVEN,
    rollout=rows.ROLLOUT,
    attempt=rows.ATTEMPT,
    last_attempt=rows.LAST_ATTEMPT,
    current=rows.CURRENT,
    worker=rows.WORKER,
    resources=rows.RESOURCES,
    ledger=ledger_rows.LEDGER,
    group=ledger_rows.GROUP,
    account=ledger_rows.ACCOUNT,
    ask=ledger_rows.ASK,
    progress=ledger_rows.PROGRESS,
    closed=ledger_rows.CLOSED,
    pool=machine_rows.POOL,
    written=machine_rows.WRITTEN,
    machine=machine_rows.MACHINE,
    move=machine_rows.MOVE,
)

TALLIED_AT = 2_000
"""Rollouts that were enqueued or have ended since the tallies were kept, from which on they are added."""

DIALECT = Dialect(
    mark="?",
    waits="r.lane IS NOT NULL",
    is_live="r.expires_at IS NOT NULL",
    has_ended="r.finish_seq IS NOT NULL",
    unlimited=-1,
    indexed_by="INDEXED BY {index}",
)

_LISTED = (
    f"SELECT {rows.ROLLOUT} FROM ({{page}}) p CROSS JOIN rollouts r ON r.seq = p.seq JOIN inputs i ON i.seq = r.seq "
    "ORDER BY p.place {order}"
)
"""The rollouts on a page, in order."""


class SqliteReads:
    """The reader's desk: a call is a function of the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def carry_out(self, calls: Sequence[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
        return carry_out_each(self.connection, [partial(call, self.connection) for call in calls])

    def committed(self) -> None:
        return None

    def is_untidy(self) -> bool:
        return False

    def tidy(self) -> None: ...


def next_expiry(db: sqlite3.Connection) -> float | None:
    expires_at: float | None = db.execute(SQL["next_expiry"]).fetchone()[0]
    return expires_at


def finished(db: sqlite3.Connection, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
    found = db.execute(SQL["feed"], (cursor, limit)).fetchall()
    return tuple((row[0], rows.rollout_of(row[1:])) for row in found)


def feed_end(db: sqlite3.Connection) -> int:
    return int(db.execute(SQL["feed_end"]).fetchone()[0])


def counts(db: sqlite3.Connection, tag: str | None) -> Counts:
    return Counts.of_parts(db.execute(SQL["counts"], (tag or "",)))


def rollouts(db: sqlite3.Connection, query: RolloutQuery) -> Page[Rollout]:
    if not query.is_by_kind:
        return _chosen(db, query)
    counted = counts(db, query.tag)
    page = None if query.limit == 0 else page_of(query, counted.kinds(query), DIALECT)
    found = (
        [] if page is None else db.execute(_LISTED.format(page=page[0], order=_direction(query)), page[1]).fetchall()
    )
    items = tuple(map(rows.rollout_of, found))
    return Page(items=items, total=counted.total(query), limit=query.limit, offset=query.offset)


def _chosen(db: sqlite3.Connection, query: RolloutQuery) -> Page[Rollout]:
    """Of one group, by their ids, or all."""
    where, values = _where(query)
    order = "r.finish_seq" if query.sort_by == "ended_at" else "r.seq"
    found = db.execute(
        f"SELECT {rows.ROLLOUT} FROM rollouts r JOIN inputs i ON i.seq = r.seq WHERE {where} "
        f"ORDER BY {order} {_direction(query)} LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        if query.is_of_all:
            total = counts(db, None).total(query)
        else:
            (total,) = db.execute(f"SELECT count(*) FROM rollouts r WHERE {where}", values).fetchone()
    return Page(items=tuple(map(rows.rollout_of, found)), total=total, limit=query.limit, offset=query.offset)


def _direction(query: RolloutQuery) -> str:
    return "DESC" if query.descending else "ASC"


def _where(query: RolloutQuery) -> tuple[str, list[Any]]:
    terms = ["TRUE"]
    values: list[Any] = []
    if query.statuses is not None:
        terms.append(f"r.status IN ({', '.join('?' * len(query.statuses))})")
        values += query.statuses
    for column in ("mode", "tag", "group_id"):
        if (value := getattr(query, column)) is not None:
            terms.append(f"r.{column} = ?")
            values.append(value)
    if query.rollout_ids is not None:
        terms.append("r.rollout_id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(query.rollout_ids))
    if query.sort_by == "ended_at":
        terms.append("r.finish_seq IS NOT NULL")
    return " AND ".join(terms), values


def attempts(db: sqlite3.Connection, rollout_id: str) -> tuple[Attempt, ...]:
    return attempts_of(db, current(db, rollout_id))


def attempts_of(db: sqlite3.Connection, rollout: Current) -> tuple[Attempt, ...]:
    ended = [
        rows.attempt_of(rollout.rollout_id, row) for row in db.execute(SQL["attempts"], (rollout.seq, rollout.seq))
    ]
    return (*ended, rows.live_attempt(rollout)) if rollout.is_live else tuple(ended)


def events(db: sqlite3.Connection, query: EventQuery) -> Page[RecordedEvent]:
    attempt = rows.chosen_attempt(attempts(db, query.rollout_id), query)
    if attempt is None:
        return Page(items=(), total=0, limit=query.limit, offset=query.offset)
    where = "seq = ? AND sequence_id = ?"
    values: list[Any] = [current(db, query.rollout_id).seq, attempt.sequence_id]
    if query.kind is not None:
        where += " AND kind = ?"
        values.append(query.kind)
    found = db.execute(
        f"SELECT place, kind, name, at, data FROM events WHERE {where} ORDER BY place LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    (total,) = db.execute(f"SELECT count(*) FROM events WHERE {where}", values).fetchone()
    items = tuple(rows.event_of(query.rollout_id, attempt.attempt_id, row) for row in found)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


def current(db: sqlite3.Connection, rollout_id: str) -> Current:
    row = db.execute(SQL["current"], (rollout_id,)).fetchone()
    if row is None:
        raise UnknownId("rollout", rollout_id)
    return Current(*row)


def currents(db: sqlite3.Connection, rollout_ids: Collection[str]) -> dict[str, Current]:
    """Those of these rollouts that there are, by id."""
    found = db.execute(SQL["currents"], (json.dumps(list(rollout_ids)),)) if rollout_ids else ()
    return {row[1]: Current(*row) for row in found}


def workers(db: sqlite3.Connection, now: float) -> tuple[Worker, ...]:
    held = defaultdict(list)
    for worker_id, *lease in db.execute(SQL["leases"]):
        held[worker_id].append(tuple(lease))
    return tuple(rows.worker_of(row, held[row[0]], now) for row in db.execute(SQL["workers"]))


def latest_resources(db: sqlite3.Connection, resources_id: str) -> Resources | None:
    row = db.execute(SQL["latest_resources"], (resources_id,)).fetchone()
    return None if row is None else rows.resources_of(row)


def is_tallied(db: sqlite3.Connection) -> bool:
    """Whether the tallies are up to date, but for a few."""
    seq, finish_seq, last_seq, last_finish_seq = db.execute(SQL["untallied"]).fetchone()
    return bool(last_seq - seq < TALLIED_AT and last_finish_seq - finish_seq < TALLIED_AT)


def latest_version(db: sqlite3.Connection, resources_id: str) -> int:
    return int(db.execute(SQL["latest_version"], (resources_id,)).fetchone()[0])


def resources(db: sqlite3.Connection, query: ResourcesQuery) -> Page[Resources]:
    wanted = {"resources_id": query.resources_id, "version": query.version}
    terms = ["TRUE", *(f"{column} = ?" for column, value in wanted.items() if value is not None)]
    values = [value for value in wanted.values() if value is not None]
    where = " AND ".join(terms)
    found = db.execute(
        f"SELECT {rows.RESOURCES} FROM resources WHERE {where} "
        f"ORDER BY version {'DESC' if query.descending else 'ASC'} LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    (total,) = db.execute(f"SELECT count(*) FROM resources WHERE {where}", values).fetchone()
    return Page(items=tuple(map(rows.resources_of, found)), total=total, limit=query.limit, offset=query.offset)


def statistics(db: sqlite3.Connection, now: float) -> Statistics:
    busy = Counter(worker.status for worker in workers(db, now))
    oldest = min((at for mode in Mode for (at,) in db.execute(SQL["oldest_queued"], (mode.value,))), default=None)
    due = next_expiry(db)
    return Statistics(
        rollouts=counts(db, None).by_status(),
        workers={status: busy[status] for status in WorkerStatus},
        oldest_queued_at=None if oldest is None else utc(oldest),
        next_expiry_at=None if due is None else utc(due),
        n_set_aside=db.execute(SQL["n_set_aside"]).fetchone()[0],
    )

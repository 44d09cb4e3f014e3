"""What the PostgreSQL engine reads, each at one moment."""

from collections import Counter, defaultdict
from typing import Any

from outrider.core.attempt import Attempt
from outrider.core.clock import utc
from outrider.core.errors import UnknownId
from outrider.core.event import RecordedEvent
from outrider.core.page import Page
from outrider.core.rollout import Rollout
from outrider.core.status import Mode, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import rows
from outrider.store.counts import Counts
from outrider.store.listing import Dialect, page_of
from outrider.store.postgres.driver import Link
from outrider.store.postgres.queries import ROLLOUT, SQL
from outrider.store.protocol import Resources, Statistics
from outrider.store.rows import Current
from outrider.store.steps import EventQuery, ResourcesQuery, RolloutQuery

DIALECT = Dialect(
    mark="$", waits="r.lane <> ''", is_live="r.expires_at > 0", has_ended="r.ended_at IS NOT NULL", unlimited=None
)

_LISTED = f"SELECT {ROLLOUT} FROM ({{page}}) p JOIN rollouts r ON r.seq = p.seq ORDER BY p.place {{order}}"
"""The rollouts on a page, in order."""


async def next_expiry(link: Link) -> float | None:
    expires_at: float | None = await link.fetchval(SQL["next_expiry"])
    return expires_at


async def finished(link: Link, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
    found = await link.fetch(SQL["feed"], cursor, limit)
    return tuple((row[0], rows.rollout_of(row[1:])) for row in found)


async def feed_end(link: Link) -> int:
    return int(await link.fetchval(SQL["feed_end"]))


async def counts(link: Link, tag: str | None) -> Counts:
    parts = await link.fetch(SQL["counts"], tag or "", await link.fetchval(SQL["tallied"]))
    return Counts.of_parts(map(tuple, parts))


async def rollouts(link: Link, query: RolloutQuery) -> Page[Rollout]:
    if not query.is_by_kind:
        return await _chosen(link, query)
    counted = await counts(link, query.tag)
    page = None if query.limit == 0 else page_of(query, counted.kinds(query), DIALECT)
    found = [] if page is None else await link.fetch(_LISTED.format(page=page[0], order=_direction(query)), *page[1])
    items = tuple(rows.rollout_of(tuple(row)) for row in found)
    return Page(items=items, total=counted.total(query), limit=query.limit, offset=query.offset)


async def _chosen(link: Link, query: RolloutQuery) -> Page[Rollout]:
    """Of one group, by their ids, or all."""
    where, values = _where(query)
    order = "r.finish_seq" if query.sort_by == "ended_at" else "r.seq"
    found = await link.fetch(
        f"SELECT {ROLLOUT} FROM rollouts r WHERE {where} "
        f"ORDER BY {order} {_direction(query)} LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}",
        *values,
        _limit(query.limit),
        query.offset,
    )
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        if query.is_of_all:
            total = (await counts(link, None)).total(query)
        else:
            total = await link.fetchval(f"SELECT count(*) FROM rollouts r WHERE {where}", *values)
    return Page(
        items=tuple(rows.rollout_of(tuple(row)) for row in found), total=total, limit=query.limit, offset=query.offset
    )


def _direction(query: RolloutQuery) -> str:
    return "DESC" if query.descending else "ASC"


def _where(query: RolloutQuery) -> tuple[str, list[Any]]:
    terms = ["TRUE"]
    values: list[Any] = []
    for column, wanted in (("status", query.statuses), ("rollout_id", query.rollout_ids)):
        if wanted is not None:
            values.append(wanted)
            terms.append(f"r.{column} = ANY(${len(values)}::text[])")
    for column in ("mode", "tag", "group_id"):
        if (value := getattr(query, column)) is not None:
            values.append(value)
            terms.append(f"r.{column} = ${len(values)}")
    if query.sort_by == "ended_at":
        terms.append("r.finish_seq IS NOT NULL")
    return " AND ".join(terms), values


def _limit(limit: int) -> int | None:
    return None if limit < 0 else limit


async def attempts(link: Link, rollout_id: str) -> tuple[Attempt, ...]:
    return await _attempts(link, await _current(link, rollout_id))


async def _attempts(link: Link, current: Current) -> tuple[Attempt, ...]:
    found = await link.fetch(SQL["attempts"], current.seq)
    ended = tuple(rows.attempt_of(current.rollout_id, tuple(row)) for row in found)
    return (*ended, rows.live_attempt(current)) if current.is_live else ended


async def _current(link: Link, rollout_id: str) -> Current:
    row = await link.fetchrow(SQL["current"], [rollout_id])
    if row is None:
        raise UnknownId("rollout", rollout_id)
    return Current(*row)


async def events(link: Link, query: EventQuery) -> Page[RecordedEvent]:
    current = await _current(link, query.rollout_id)
    attempt = rows.chosen_attempt(await _attempts(link, current), query)
    if attempt is None:
        return Page(items=(), total=0, limit=query.limit, offset=query.offset)
    where = "seq = $1 AND sequence_id = $2 AND ($3::text IS NULL OR kind = $3)"
    values = (current.seq, attempt.sequence_id, query.kind)
    found = await link.fetch(
        f"SELECT place, kind, name, at, data FROM events WHERE {where} ORDER BY place LIMIT $4 OFFSET $5",
        *values,
        _limit(query.limit),
        query.offset,
    )
    total = await link.fetchval(f"SELECT count(*) FROM events WHERE {where}", *values)
    items = tuple(rows.event_of(query.rollout_id, attempt.attempt_id, tuple(row)) for row in found)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


async def workers(link: Link, now: float) -> tuple[Worker, ...]:
    held = defaultdict(list)
    for worker_id, *lease in await link.fetch(SQL["leases"]):
        held[worker_id].append(tuple(lease))
    return tuple(rows.worker_of(tuple(row), held[row[0]], now) for row in await link.fetch(SQL["workers"]))


async def latest_resources(link: Link, resources_id: str) -> Resources | None:
    row = await link.fetchrow(SQL["latest_resources"], resources_id)
    return None if row is None else rows.resources_of(tuple(row))


async def resources(link: Link, query: ResourcesQuery) -> Page[Resources]:
    wanted = (query.resources_id, query.version)
    found = await link.fetch(SQL["resources"], *wanted, query.descending, _limit(query.limit), query.offset)
    total = await link.fetchval(SQL["n_resources"], *wanted)
    items = tuple(rows.resources_of(tuple(row)) for row in found)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


async def statistics(link: Link, now: float) -> Statistics:
    queued = [await link.fetchval(SQL["oldest_queued"], mode.value) for mode in Mode]
    oldest = min((at for at in queued if at is not None), default=None)
    due = await next_expiry(link)
    busy = Counter(worker.status for worker in await workers(link, now))
    return Statistics(
        rollouts=(await counts(link, None)).by_status(),
        workers={status: busy[status] for status in WorkerStatus},
        oldest_queued_at=None if oldest is None else utc(oldest),
        next_expiry_at=None if due is None else utc(due),
        n_set_aside=await link.fetchval(SQL["n_set_aside"]),
    )

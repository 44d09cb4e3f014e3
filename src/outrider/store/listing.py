"""Which rollouts a query lists, as SQL for both databases.

A query by mode, tag or status reads several short lists, one for each kind of rollout there is, and merges them. Each
comes from an index of its own in the order asked for, and is read no further than the page goes. Where the index has
another order (what waits, of one tag; what has ended, of one tag, by its end), it is sorted from the index alone.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from outrider.core.status import Mode, RolloutStatus
from outrider.store.steps import RolloutQuery, lane_of


class Dialect(Struct, frozen=True):
    """How a database marks parameters, tells what waits, is live or has ended, and is told the index to use."""

    mark: str
    waits: str
    is_live: str
    has_ended: str
    unlimited: int | None
    indexed_by: str = ""


def page_of(
    query: RolloutQuery, kinds: Iterable[tuple[Mode, RolloutStatus]], dialect: Dialect
) -> tuple[str, list[Any]] | None:
    """SQL for `seq` and `place` of the rollouts of these kinds on the page, with its values; None without any kind."""
    values: list[Any] = []

    def value(given: Any) -> str:
        values.append(given)
        return f"{dialect.mark}{len(values)}"

    limit, offset = (dialect.unlimited if query.limit < 0 else query.limit), query.offset
    read_to = value(dialect.unlimited if query.limit < 0 else query.limit + offset)
    key = "finish_seq" if query.sort_by == "ended_at" else "seq"
    order = f"ORDER BY place {'DESC' if query.descending else 'ASC'}"
    lists: list[str] = []
    for mode, status in kinds:
        index, where = _list_of(query, mode, status, dialect, value)
        hint = dialect.indexed_by.format(index=index)
        rows = f"SELECT r.seq, r.{key} AS place FROM rollouts r {hint} WHERE {where} {order} LIMIT {read_to}"
        lists.append(f"SELECT seq, place FROM ({rows}) k{len(lists)}")
    if not lists:
        return None
    merged = " UNION ALL ".join(lists)
    return f"SELECT seq, place FROM ({merged}) k {order} LIMIT {value(limit)} OFFSET {value(offset)}", values


def _list_of(
    query: RolloutQuery, mode: Mode, status: RolloutStatus, dialect: Dialect, value: Callable[[Any], str]
) -> tuple[str, str]:
    """The index that has one kind of rollouts, and the condition for them."""
    tag = query.tag
    first_time = "r.seq NOT IN (SELECT q.seq FROM rollouts q WHERE q.status = 'requeuing')"
    if status is RolloutStatus.QUEUING and tag is not None:
        lanes = ", ".join(value(lane_of(mode, tag, isolated=isolated)) for isolated in (False, True))
        return "rollouts_lanes", f"r.lane IN ({lanes}) AND r.tag IS NOT NULL AND {first_time}"
    of_kind = f"r.mode = {value(mode.value)}" + ("" if tag is None else f" AND r.tag = {value(tag)}")
    if status is RolloutStatus.QUEUING:
        return "rollouts_waiting", f"{of_kind} AND {dialect.waits} AND {first_time}"
    if status is RolloutStatus.REQUEUING:
        return "rollouts_requeued", f"r.status = 'requeuing' AND {of_kind}"
    of_status = f"{of_kind} AND r.status = {value(status.value)}"
    if status.is_live:
        return "rollouts_leases", f"{dialect.is_live} AND {of_status}"
    by_end = "rollouts_ended_last" if query.sort_by == "ended_at" else "rollouts_ended"
    return by_end if tag is None else "rollouts_ended_by_tag", f"{of_status} AND {dialect.has_ended}"

"""What the PostgreSQL engine reads of ledgers, asks and accounts.

Asks, grants, accounts and progress are few rows of large tables, so they are read with the plans of steps.
"""

from collections.abc import Collection, Sequence
from typing import Any

from outrider.core.account import AttemptAccount, Tally
from outrider.core.ledger import Ask, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.core.page import Page
from outrider.store import ledger_rows
from outrider.store.ledger_steps import GroupQuery
from outrider.store.postgres.driver import Link
from outrider.store.postgres.queries import SQL


async def ledgers(link: Link) -> tuple[Ledger, ...]:
    return tuple(ledger_rows.ledger_of(tuple(row)) for row in await link.fetch(SQL["ledgers"]))


async def groups(link: Link, query: GroupQuery) -> Page[GroupEntry]:
    where = "ledger = $1"
    values: list[Any] = [query.ledger]
    if query.states is not None:
        values.append([state.value for state in query.states])
        where += f" AND state = ANY(${len(values)}::text[])"
    if query.batch is not None:
        values.append(query.batch)
        where += f" AND batch = ${len(values)}"
    if query.group_ids is not None:
        values.append(list(query.group_ids))
        where += f" AND group_id = ANY(${len(values)}::text[])"
    window = f"LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}"
    found = await link.fetch(
        f"SELECT {ledger_rows.GROUP} FROM groups WHERE {where} ORDER BY number {window}",
        *values,
        None if query.limit < 0 else query.limit,
        query.offset,
    )
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        total = await link.fetchval(f"SELECT count(*) FROM groups WHERE {where}", *values)
    items = tuple(ledger_rows.group_of(tuple(row)) for row in found)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


async def group_counts(link: Link, ledger: str) -> dict[tuple[str, GroupState], int]:
    return {(tag, GroupState(state)): n for tag, state, n in await link.fetch(SQL["count_groups"], ledger)}


async def asks(link: Link, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
    found = await link.fetch(SQL["asks"], ledger, cursor, limit)
    return tuple(ledger_rows.ask_of(tuple(row)) for row in found)


async def grants(link: Link, attempt_ids: Collection[str]) -> dict[str, int]:
    return {row[0]: row[1] for row in await link.fetch(SQL["grants"], list(attempt_ids))}


async def accounts(link: Link, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
    found = await link.fetch(SQL["accounts"], rollout_ids)
    return tuple(ledger_rows.attempt_account_of(tuple(row)) for row in found)


async def late_accounts(link: Link, ledger: str, limit: int) -> tuple[AttemptAccount, ...]:
    found = await link.fetch(SQL["late_accounts"], ledger, limit)
    return tuple(ledger_rows.attempt_account_of(tuple(row)) for row in found)


async def tally(link: Link, ledger: str) -> Tally:
    return ledger_rows.tally_of((row[0], row[1], row[2]) for row in await link.fetch(SQL["tally"], ledger))


async def progress(link: Link, ledger: str) -> tuple[MemberProgress, ...]:
    return tuple(ledger_rows.progress_of(tuple(row)) for row in await link.fetch(SQL["progress"], ledger))

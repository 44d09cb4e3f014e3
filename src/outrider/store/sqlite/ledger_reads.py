"""What the SQLite engine reads of ledgers, each inside one transaction that its caller begins and ends."""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outrider.core.account import AttemptAccount, Tally
from outrider.core.ledger import Ask, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.core.page import Page
from outrider.store import ledger_rows
from outrider.store.ledger_steps import GroupQuery
from outrider.store.sqlite.reads import SQL


def ledgers(db: sqlite3.Connection) -> tuple[Ledger, ...]:
    return tuple(map(ledger_rows.ledger_of, db.execute(SQL["ledgers"])))


def groups(db: sqlite3.Connection, query: GroupQuery) -> Page[GroupEntry]:
    where = "ledger = ?"
    values: list[Any] = [query.ledger]
    # Left to itself SQLite would go through all groups in their order, to save the sorting of a few.
    index = "groups_by_number"
    if query.states is not None:
        where += f" AND state IN ({', '.join('?' * len(query.states))})"
        values += [state.value for state in query.states]
        index = "groups_by_state"
    if query.batch is not None:
        where += " AND batch = ?"
        values.append(query.batch)
        index = "groups_by_batch"
    by = f"INDEXED BY {index}"
    if query.group_ids is not None:
        where += " AND group_id IN (SELECT value FROM json_each(?))"
        values.append(json.dumps(query.group_ids))
        where, by = f"+{where}", ""  # by their ids, not by their ledger
    chosen = f"FROM groups {by} WHERE {where}"
    found = db.execute(
        f"SELECT {ledger_rows.GROUP} {chosen} ORDER BY number LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        (total,) = db.execute(f"SELECT count(*) {chosen}", values).fetchone()
    return Page(items=tuple(map(ledger_rows.group_of, found)), total=total, limit=query.limit, offset=query.offset)


def count_groups(db: sqlite3.Connection, ledger: str) -> Mapping[tuple[str, GroupState], int]:
    return {(tag, GroupState(state)): n for tag, state, n in db.execute(SQL["count_groups"], (ledger,))}


def asks_after(db: sqlite3.Connection, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
    return tuple(map(ledger_rows.ask_of, db.execute(SQL["asks_after"], (ledger, cursor, limit))))


def grants(db: sqlite3.Connection, attempt_ids: Collection[str]) -> Mapping[str, int]:
    return dict(db.execute(SQL["grants"], (json.dumps(list(attempt_ids)),)).fetchall())


def accounts(db: sqlite3.Connection, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
    found = db.execute(SQL["accounts"], (json.dumps(rollout_ids),))
    return ledger_rows.in_order(map(ledger_rows.attempt_account_of, found), rollout_ids)


def late_accounts(db: sqlite3.Connection, ledger: str, limit: int) -> tuple[AttemptAccount, ...]:
    return tuple(map(ledger_rows.attempt_account_of, db.execute(SQL["late_accounts"], (ledger, limit))))


def tally(db: sqlite3.Connection, ledger: str) -> Tally:
    return ledger_rows.tally_of(db.execute(SQL["tally"], (ledger,)))


def progress(db: sqlite3.Connection, ledger: str) -> tuple[MemberProgress, ...]:
    return tuple(map(ledger_rows.progress_of, db.execute(SQL["progress"], (ledger,))))

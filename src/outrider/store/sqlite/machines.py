"""The steps and reads of the SQLite engine on machines. A step checks everything before it writes."""

import json
import sqlite3
from typing import Any

from outrider.core.errors import UnknownId
from outrider.core.machine import MachineMove, MachineRecord, PoolRecord
from outrider.core.page import Page
from outrider.store.machine_rows import (
    MACHINE,
    MOVE,
    machine_of,
    machine_row,
    machines_of,
    move_of,
    move_row,
    pool_of,
    written_of,
)
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery, check_moves, is_repeated
from outrider.store.sqlite.ledger import SqliteLedgers
from outrider.store.sqlite.reads import SQL


class SqliteMachines(SqliteLedgers):
    """The writer's desk, with the steps on machines."""

    def open_pool(self, name: str) -> int:
        return int(self._db.execute(SQL["open_pool"], (name, self._now)).fetchone()[0])

    def write_machines(self, step: MachineStep) -> None:
        row = self._db.execute(SQL["written"], (step.pool,)).fetchone()
        if row is None:
            raise UnknownId("pool", step.pool)
        if is_repeated(step, written_of(row)):
            return
        check_moves(step, machines_of(self._db.execute(SQL["machines"], (json.dumps(list(step.records)),))))
        self._many("put_machine", list(map(machine_row, step.records.values())))
        self._many("insert_machine_move", list(map(move_row, step.moves)))
        self._db.execute(SQL["set_written"], (step.number, step.digest, step.pool))


def pools(db: sqlite3.Connection) -> tuple[PoolRecord, ...]:
    return tuple(map(pool_of, db.execute(SQL["pools"])))


def machines(db: sqlite3.Connection, query: MachineQuery) -> tuple[MachineRecord, ...]:
    where = f"state IN ({', '.join('?' * len(query.states))})"
    values = [state.value for state in query.states]
    if query.pool is not None:
        where += " AND pool = ?"
        values.append(query.pool)
    chosen = f"FROM machines INDEXED BY machines_by_state WHERE {where}"
    found = db.execute(f"SELECT {MACHINE} {chosen} ORDER BY pool, created_at, machine_id", values)
    return tuple(map(machine_of, found))


def machine_moves(db: sqlite3.Connection, query: MoveQuery) -> Page[MachineMove]:
    # By the pool's index only if no machine is named, which has few of the pool's moves.
    wanted = {"machine_id": query.machine_id, "pool" if query.machine_id is None else "+pool": query.pool}
    values: list[Any] = [value for value in wanted.values() if value is not None]
    where = " AND ".join(f"{column} = ?" for column, value in wanted.items() if value is not None) or "true"
    found = db.execute(
        f"SELECT {MOVE} FROM machine_moves WHERE {where} ORDER BY move_seq DESC LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        (total,) = db.execute(f"SELECT count(*) FROM machine_moves WHERE {where}", values).fetchone()
    return Page(items=tuple(map(move_of, found)), total=total, limit=query.limit, offset=query.offset)

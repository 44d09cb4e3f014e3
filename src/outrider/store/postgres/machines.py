"""The machines in PostgreSQL: every step holds its pool's row, so that steps of one pool follow one another."""

from collections.abc import Iterable, Sequence
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
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.links import Links
from outrider.store.postgres.queries import SQL


class PostgresMachines:
    """Steps on pools and their machines."""

    def __init__(self, links: Links, clock: DatabaseClock) -> None:
        self._links = links
        self._clock = clock

    async def open(self, name: str) -> int:
        """Make the pool, or begin its next epoch."""

        async def step(link: Link) -> int:
            return int(await link.fetchval(SQL["open_pool"], name, self._clock.now()))

        return await self._links.transact(step)

    async def write(self, step: MachineStep) -> None:
        """Carry out one step of the present owner."""
        await self._links.transact(lambda link: _write(link, step))


async def _write(link: Link, step: MachineStep) -> None:
    row = await link.fetchrow(SQL["hold_pool"], step.pool)
    if row is None:
        raise UnknownId("pool", step.pool)
    if is_repeated(step, written_of(tuple(row))):
        return
    check_moves(step, machines_of(map(tuple, await link.fetch(SQL["machines_by_id"], list(step.records)))))
    if step.records:
        put = await link.fetch(SQL["put_machines"], *_columns(map(machine_row, step.records.values())))
        if len(put) < len(step.records):
            raise asyncpg.TransactionRollbackError("another pool has just journalled a machine of the same id")
    if step.moves:
        await link.execute(SQL["insert_machine_moves"], *_columns(map(move_row, step.moves)))
    await link.execute(SQL["set_written"], step.pool, step.number, step.digest)


async def pools(link: Link) -> tuple[PoolRecord, ...]:
    return tuple(pool_of(tuple(row)) for row in await link.fetch(SQL["pools"]))


async def machines(link: Link, query: MachineQuery) -> tuple[MachineRecord, ...]:
    where = "state = ANY($1::text[])"
    values: list[Any] = [[state.value for state in query.states]]
    if query.pool is not None:
        where += " AND pool = $2"
        values.append(query.pool)
    found = await link.fetch(
        f"SELECT {MACHINE} FROM machines WHERE {where} ORDER BY pool, created_at, machine_id", *values
    )
    return tuple(machine_of(tuple(row)) for row in found)


async def moves(link: Link, query: MoveQuery) -> Page[MachineMove]:
    wanted = {"machine_id": query.machine_id, "pool": query.pool}
    given = [(column, value) for column, value in wanted.items() if value is not None]
    where = " AND ".join(f"{column} = ${n}" for n, (column, _) in enumerate(given, 1)) or "true"
    values: Sequence[Any] = [value for _, value in given]
    found = await link.fetch(
        f"SELECT {MOVE} FROM machine_moves WHERE {where} ORDER BY move_seq DESC "
        f"LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}",
        *values,
        None if query.limit < 0 else query.limit,
        query.offset,
    )
    total = len(found)
    if query.limit >= 0 or query.offset > 0:
        total = await link.fetchval(f"SELECT count(*) FROM machine_moves WHERE {where}", *values)
    items = tuple(move_of(tuple(row)) for row in found)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


def _columns(table: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*table, strict=True)]

"""Rows of the machines' tables as values, the same for all engines: times are unix seconds, addresses msgpack."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outrider.core import wire
from outrider.core.clock import utc
from outrider.core.machine import MachineMove, MachineRecord, MachineState, PoolRecord
from outrider.store.machine_steps import Written

POOL = "name, epoch, opened_at"
"""The columns of `pool_of`."""

WRITTEN = "epoch, n_writes, digest"
"""The columns of `written_of`."""

MACHINE = "machine_id, pool, provider, state, epoch, n_uses, holder, address, reason, created_at, moved_at"
"""The columns of `machine_of` and `machine_row`."""

MOVE = "machine_id, pool, before, state, epoch, holder, reason, seconds, at"
"""The columns of `move_of` and `move_row`."""


def pool_of(row: Sequence[Any]) -> PoolRecord:
    return PoolRecord(name=row[0], epoch=row[1], opened_at=utc(row[2]))


def written_of(row: Sequence[Any]) -> Written:
    return Written(row[0], row[1], row[2])


def machine_of(row: Sequence[Any]) -> MachineRecord:
    return MachineRecord(
        machine_id=row[0],
        pool=row[1],
        provider=row[2],
        state=MachineState(row[3]),
        epoch=row[4],
        n_uses=row[5],
        holder=row[6],
        address=wire.decode(row[7]),
        reason=row[8],
        created_at=utc(row[9]),
        moved_at=utc(row[10]),
    )


def machine_row(record: MachineRecord) -> tuple[Any, ...]:
    return (
        *(record.machine_id, record.pool, record.provider, record.state.value, record.epoch, record.n_uses),
        *(record.holder, wire.encode(dict(record.address)), record.reason),
        *(record.created_at.timestamp(), record.moved_at.timestamp()),
    )


def move_of(row: Sequence[Any]) -> MachineMove:
    return MachineMove(
        machine_id=row[0],
        pool=row[1],
        before=None if row[2] is None else MachineState(row[2]),
        state=MachineState(row[3]),
        epoch=row[4],
        holder=row[5],
        reason=row[6],
        seconds=row[7],
        at=utc(row[8]),
    )


def move_row(move: MachineMove) -> tuple[Any, ...]:
    return (
        *(move.machine_id, move.pool, None if move.before is None else move.before.value, move.state.value),
        *(move.epoch, move.holder, move.reason, move.seconds, move.at.timestamp()),
    )


def machines_of(rows: Iterable[Sequence[Any]]) -> Mapping[str, MachineRecord]:
    return {row[0]: machine_of(row) for row in rows}

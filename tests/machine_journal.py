"""A pool's owner that journals machines, for tests."""

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from outrider.core.clock import utc
from outrider.core.machine import MachineMove, MachineRecord, MachineState
from outrider.store import Store
from store_moves import everything

STEPS_TO = {
    MachineState.CREATING: ("creating",),
    MachineState.RESETTING: ("creating", "resetting"),
    MachineState.READY: ("creating", "resetting", "ready"),
    MachineState.LEASED: ("creating", "resetting", "ready", "leased"),
    MachineState.QUARANTINED: ("creating", "quarantined"),
    MachineState.DESTROYING: ("creating", "destroying"),
    MachineState.GONE: ("creating", "gone"),
}
"""How a machine comes to each state."""


def machine(machine_id: str, state: str, *, at: float = 1000.0, pool: str = "p", **fields: Any) -> MachineRecord:
    """A machine as it may stand."""
    times = {"created_at": utc(at), "moved_at": utc(at)}
    return MachineRecord(
        machine_id=machine_id, pool=pool, provider="fake", state=MachineState(state), **{**times, **fields}
    )


def moved(record: MachineRecord, before: str | None, *, seconds: float = 0.0) -> MachineMove:
    """The move that brought a machine from `before` to where its record says."""
    return MachineMove(
        machine_id=record.machine_id,
        pool=record.pool,
        before=None if before is None else MachineState(before),
        state=record.state,
        epoch=record.epoch,
        holder=record.holder,
        reason=record.reason,
        seconds=seconds,
        at=record.moved_at,
    )


class Owner:
    """Counts the writes of one epoch. `go` journals one move of one machine."""

    def __init__(self, store: Store, pool: str, epoch: int) -> None:
        self.store = store
        self.pool = pool
        self.epoch = epoch
        self.n_writes = 0
        self.machines: dict[str, MachineRecord] = {}

    async def write(self, records: tuple[MachineRecord, ...] = (), moves: tuple[MachineMove, ...] = ()) -> None:
        await self.store.write_machines(self.pool, self.epoch, self.n_writes + 1, records, moves)
        self.n_writes += 1
        self.machines.update((record.machine_id, record) for record in records)

    async def go(self, machine_id: str, *states: str, at: float = 1000.0, **fields: Any) -> MachineRecord:
        """Journal moves to these states in one write; a lease begins an epoch of the machine."""
        record = self.machines.get(machine_id)
        moves: list[MachineMove] = []
        for state in states:
            before = None if record is None else record.state
            record = _after(record, machine_id, state, self.pool, utc(at))
            record = replace(record, **fields)
            moves.append(moved(record, before))
        assert record is not None
        await self.write((record,), tuple(moves))
        return record


def _after(record: MachineRecord | None, machine_id: str, state: str, pool: str, at: datetime) -> MachineRecord:
    if record is None:
        return machine(machine_id, state, at=at.timestamp(), pool=pool)
    epoch = record.epoch + (state == "leased")
    return replace(record, state=MachineState(state), epoch=epoch, moved_at=at)


async def owner_of(store: Store, pool: str = "p") -> Owner:
    return Owner(store, pool, await store.open_pool(pool))


async def all_of_machines(store: Store) -> object:
    """All that can be seen of a store, to show that a call changed nothing."""
    moves = (await store.query_machine_moves()).items
    return await store.query_pools(), await store.query_machines(), moves, await everything(store)

"""What the shared half of a store hands to its engine of machines, and whether an engine is to write it.

`is_repeated` and `check_moves` decide for all engines alike: an engine reads what a step touches, asks them, writes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from outrider.core import wire
from outrider.core.errors import InvalidInput, PoolLost
from outrider.core.machine import AFTER, MachineMove, MachineRecord, MachineState
from outrider.store.steps import (
    check_id,
    check_integer,
    check_kind,
    check_text,
    check_texts,
    check_window,
    checked_time,
    finite,
    member,
    several,
)

FIRST = frozenset({MachineState.CREATING, MachineState.DESTROYING})
"""How a machine enters the journal: it is made, or was found on its host without being known, and is ended."""


class MachineStep(Struct, frozen=True, kw_only=True):
    """A checked write to the journal of a pool, the `number`-th of the epoch. Every move has the record it led to."""

    pool: str
    epoch: int
    number: int
    records: Mapping[str, MachineRecord]
    moves: tuple[MachineMove, ...]
    digest: bytes
    """What another write of the same number does not have."""


class Written(Struct, frozen=True):
    """How far the journal of a pool is: the writes of this epoch, and the digest of the last one."""

    epoch: int
    n_writes: int
    digest: bytes | None


class MachineQuery(Struct, frozen=True, kw_only=True):
    """Which machines to list."""

    pool: str | None
    states: tuple[MachineState, ...]

    def __post_init__(self) -> None:
        check_texts(pool=self.pool)


class MoveQuery(Struct, frozen=True, kw_only=True):
    """Which moves to list."""

    machine_id: str | None = None
    pool: str | None = None
    limit: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        check_texts(machine_id=self.machine_id, pool=self.pool)
        check_window(self.limit, self.offset)


def step_of(
    pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
) -> MachineStep:
    """Check a write as far as that can be done without the store; `InvalidInput` says what to give instead."""
    check_id("pool", pool)
    check_integer("epoch of a pool", epoch, bits=64, least=1)
    check_integer("number of a write", number, bits=64, least=1)
    given: dict[str, MachineRecord] = {}
    for record in map(_checked_record, several("records", records, "records")):
        if record.machine_id in given:
            raise InvalidInput(f"machine {record.machine_id!r} is given twice in one write; nothing was written")
        given[record.machine_id] = record
    moved = tuple(map(_checked_move, several("moves", moves, "moves")))
    for move in moved:
        if move.machine_id not in given:
            raise InvalidInput(f"machine {move.machine_id!r} moves without a record; give the one it has afterwards")
    pools = [(record.machine_id, record.pool) for record in given.values()]
    for machine_id, named in (*pools, *((move.machine_id, move.pool) for move in moved)):
        if named != pool:
            raise InvalidInput(f"machine {machine_id!r} is given as one of pool {named!r}, not of {pool!r}")
    digest = hashlib.blake2b(wire.to_record((tuple(given.values()), moved)), digest_size=16).digest()
    return MachineStep(pool=pool, epoch=epoch, number=number, records=given, moves=moved, digest=digest)


def is_repeated(step: MachineStep, written: Written) -> bool:
    """Whether the step was carried out before. Raises `PoolLost` if its epoch is over."""
    if step.epoch != written.epoch:
        raise PoolLost(step.pool, step.epoch, written.epoch)
    if step.number > written.n_writes + 1:
        raise InvalidInput(
            f"write {step.number} to pool {step.pool!r} comes too early: the next is {written.n_writes + 1}; "
            "repeat those that were not carried out"
        )
    if step.number == written.n_writes and step.digest != written.digest:
        raise InvalidInput(
            f"write {step.number} to pool {step.pool!r} was carried out with other content; give a new one a new number"
        )
    return step.number <= written.n_writes


def check_moves(step: MachineStep, found: Mapping[str, MachineRecord]) -> None:
    """Refuse moves that are not in the table or do not lead from the machines `found` to those of the step."""
    state: dict[str, MachineState] = {}
    epoch: dict[str, int] = {}
    for machine_id, known in found.items():
        if known.pool != step.pool:
            raise InvalidInput(f"machine {machine_id!r} is in pool {known.pool!r}, not in {step.pool!r}")
        state[machine_id], epoch[machine_id] = known.state, known.epoch
    for move in step.moves:
        _refuse_detour(move, state.get(move.machine_id))
        _refuse_old(move, epoch.get(move.machine_id, 0))
        state[move.machine_id], epoch[move.machine_id] = move.state, move.epoch
    for machine_id, record in step.records.items():
        stands = state.get(machine_id)
        if record.state is not stands:
            raise InvalidInput(
                f"machine {machine_id!r} is {_shown(stands)} and cannot be {record.state} without a move"
            )
        if record.epoch < epoch[machine_id]:
            raise InvalidInput(f"machine {machine_id!r} is in epoch {epoch[machine_id]}, its record in {record.epoch}")


def _refuse_detour(move: MachineMove, state: MachineState | None) -> None:
    after = FIRST if state is None else AFTER[state]
    if move.before is not state:
        raise InvalidInput(f"machine {move.machine_id!r} is {_shown(state)}, so it cannot move from {move.before}")
    if move.state not in after:
        raise InvalidInput(
            f"machine {move.machine_id!r} is {_shown(state)} and cannot become {move.state}, "
            f"only: {', '.join(sorted(after)) or 'nothing else'}"
        )


def _refuse_old(move: MachineMove, epoch: int) -> None:
    if move.epoch < epoch + (move.state is MachineState.LEASED):
        raise InvalidInput(
            f"machine {move.machine_id!r} has come to epoch {epoch} and cannot become {move.state} in {move.epoch}: "
            "an epoch never goes back, and every lease begins a new one"
        )


def _shown(state: MachineState | None) -> str:
    return "not in the journal" if state is None else state


def _checked_record(record: MachineRecord) -> MachineRecord:
    """A record that can be kept, as a copy that no caller shares."""
    check_kind("a record of a machine", record, MachineRecord)
    check_id("provider of a machine", record.provider)
    check_integer("n_uses of a machine", record.n_uses, bits=64, least=0)
    check_kind("address of a machine", record.address, Mapping)
    _check_stay(record)
    return replace(
        record,
        state=member(MachineState, record.state),
        address=wire.decode(wire.encode(dict(record.address))),
        created_at=_checked_time("created_at of a machine", record.created_at),
        moved_at=_checked_time("moved_at of a machine", record.moved_at),
    )


def _checked_move(move: MachineMove) -> MachineMove:
    check_kind("a move of a machine", move, MachineMove)
    _check_stay(move)
    return replace(
        move,
        before=None if move.before is None else member(MachineState, move.before),
        state=member(MachineState, move.state),
        seconds=finite("seconds of a move", move.seconds),
        at=_checked_time("time of a move", move.at),
    )


def _check_stay(one: MachineRecord | MachineMove) -> None:
    check_id("machine_id", one.machine_id)
    check_id("pool of a machine", one.pool)
    check_integer("epoch of a machine", one.epoch, bits=64, least=0)
    check_text("reason of a machine's state", one.reason)
    if one.holder is not None:
        check_text("holder of a machine", one.holder)


def _checked_time(name: str, value: datetime) -> datetime:
    check_kind(name, value, datetime)
    if value.tzinfo is None:
        raise InvalidInput(f"{name} has no time zone; give it in UTC")
    return checked_time(name, value).astimezone(UTC)

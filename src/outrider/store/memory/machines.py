"""The machines of the memory engine, with the steps on them."""

from outrider.core.clock import Clock, utc
from outrider.core.errors import UnknownId
from outrider.core.machine import MachineMove, MachineRecord, PoolRecord
from outrider.core.page import Page
from outrider.store.machine_rows import machine_of, machine_row, machines_of, move_of, move_row
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery, Written, check_moves, is_repeated
from outrider.store.memory.ledger import MemoryLedgers

Row = tuple[object, ...]


class MemoryMachines(MemoryLedgers):
    """The steps of the memory engine, those on machines among them. It keeps the rows that a database would."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._pools: dict[str, PoolRecord] = {}
        self._written: dict[str, Written] = {}
        self._machines: dict[str, Row] = {}
        self._machine_moves: list[Row] = []

    def open_pool(self, name: str) -> int:
        epoch = self._pools[name].epoch + 1 if name in self._pools else 1
        self._pools[name] = PoolRecord(name=name, epoch=epoch, opened_at=utc(self._clock.time()))
        self._written[name] = Written(epoch, 0, None)
        return epoch

    def pools(self) -> tuple[PoolRecord, ...]:
        return tuple(self._pools[name] for name in sorted(self._pools))

    def write_machines(self, step: MachineStep) -> None:
        written = self._written.get(step.pool)
        if written is None:
            raise UnknownId("pool", step.pool)
        if is_repeated(step, written):
            return
        check_moves(step, machines_of(self._machines[id] for id in step.records if id in self._machines))
        self._machines.update({id: machine_row(record) for id, record in step.records.items()})
        self._machine_moves.extend(map(move_row, step.moves))
        self._written[step.pool] = Written(step.epoch, step.number, step.digest)

    def machines(self, query: MachineQuery) -> tuple[MachineRecord, ...]:
        found = (machine_of(row) for row in self._machines.values())
        wanted = (one for one in found if one.state in query.states and query.pool in (None, one.pool))
        return tuple(sorted(wanted, key=lambda one: (one.pool, one.created_at, one.machine_id)))

    def machine_moves(self, query: MoveQuery) -> Page[MachineMove]:
        newest_first = map(move_of, reversed(self._machine_moves))
        found = [
            move
            for move in newest_first
            if query.machine_id in (None, move.machine_id) and query.pool in (None, move.pool)
        ]
        end = None if query.limit < 0 else query.offset + query.limit
        items = tuple(found[query.offset : end])
        return Page(items=items, total=len(found), limit=query.limit, offset=query.offset)

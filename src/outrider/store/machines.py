"""The public methods on pools and their machines, the same for every engine."""

from collections.abc import Collection, Sequence

from outrider.core.machine import MachineMove, MachineRecord, MachineState, PoolRecord
from outrider.core.page import Page
from outrider.store.engine import Engine
from outrider.store.machine_steps import MachineQuery, MoveQuery, step_of
from outrider.store.steps import check_id, members


class MachineMethods(Engine):
    """See `outrider.store.protocol` for what these methods promise, and `outrider.core.machine` for the invariants."""

    async def open_pool(self, name: str) -> int:
        self._check_writable()
        check_id("name of a pool", name)
        return await self._open_pool(name)

    async def query_pools(self) -> tuple[PoolRecord, ...]:
        return await self._pools()

    async def write_machines(
        self, pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
    ) -> None:
        self._check_writable()
        await self._write_machines(step_of(pool, epoch, number, records, moves))

    async def query_machines(
        self, pool: str | None = None, states: Collection[MachineState | str] | None = None
    ) -> tuple[MachineRecord, ...]:
        wanted = members("states", MachineState, states)
        return await self._query_machines(
            MachineQuery(pool=pool, states=tuple(MachineState) if wanted is None else wanted)
        )

    async def query_machine_moves(
        self, machine_id: str | None = None, pool: str | None = None, *, limit: int = -1, offset: int = 0
    ) -> Page[MachineMove]:
        return await self._query_moves(MoveQuery(machine_id=machine_id, pool=pool, limit=limit, offset=offset))

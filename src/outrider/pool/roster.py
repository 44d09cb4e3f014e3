"""The machines of a pool, each with its state, and the account of every move. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from outrider.core.clock import utc
from outrider.core.errors import InvalidInput
from outrider.core.machine import AFTER, MachineMove, MachineRecord, MachineState
from outrider.pool.provider import Address

MAX_REASON = 2000
"""How many characters of a reason are kept."""


def plain(text: str) -> str:
    """Text that every database takes: reasons quote what machines and programs have said."""
    return text.encode(errors="replace").decode().replace("\0", " ")[:MAX_REASON]


@dataclass(slots=True, kw_only=True)
class Machine:
    """A machine as its pool keeps it."""

    machine_id: str
    state: MachineState
    created_at: float
    moved_at: float
    epoch: int = 0
    n_uses: int = 0
    holder: str | None = None
    address: Address = field(default_factory=dict)
    reason: str = ""
    is_fresh: bool = True
    """It was never ready: it has just been made, so that to be clean it must only be well."""
    is_ordered: bool = False
    """What its state asks for is being done."""
    blamed: str | None = None
    """Who had it since it was last ready: whatever is wrong with it then, came from there."""
    n_tries: int = 0
    """How often it could not be ended."""
    retry_at: float = 0.0


class Roster:
    """All machines that exist, in the order they came. `new_machine_id` names those that are added."""

    def __init__(self, *, pool: str, provider: str, new_machine_id: Callable[[], str]) -> None:
        self.pool = pool
        self._provider = provider
        self._new_machine_id = new_machine_id
        self._machines: dict[str, Machine] = {}
        self._changed: dict[str, Machine] = {}
        self._moves: list[MachineMove] = []

    def __iter__(self) -> Iterator[Machine]:
        return iter(tuple(self._machines.values()))

    def __len__(self) -> int:
        return len(self._machines)

    def get(self, machine_id: str, *states: MachineState) -> Machine | None:
        """The machine if it is there and in one of these states."""
        machine = self._machines.get(machine_id)
        return machine if machine is not None and machine.state in states else None

    def find(self, machine_id: str) -> Machine:
        if machine_id not in self._machines:
            have = ", ".join(self._machines) or "none at present"
            raise InvalidInput(f"no machine {machine_id!r} in pool {self.pool!r}; it has {have}")
        return self._machines[machine_id]

    def within(self, *states: MachineState) -> list[Machine]:
        """All in these states, longest there first."""
        found = [machine for machine in self._machines.values() if machine.state in states]
        return sorted(found, key=lambda machine: machine.moved_at)

    def n(self, *states: MachineState) -> int:
        return sum(machine.state in states for machine in self._machines.values())

    def add(self, state: MachineState, reason: str, now: float) -> Machine:
        machine = Machine(
            machine_id=self._new_machine_id(), state=state, created_at=now, moved_at=now, reason=plain(reason)
        )
        self._machines[machine.machine_id] = machine
        self._note(machine, None, 0.0)
        return machine

    def restore(self, record: MachineRecord) -> Machine:
        """A machine as it was written, under a new epoch: whoever held it holds it no more."""
        machine = Machine(
            machine_id=record.machine_id,
            state=record.state,
            created_at=record.created_at.timestamp(),
            moved_at=record.moved_at.timestamp(),
            epoch=record.epoch + 1,
            n_uses=record.n_uses,
            holder=record.holder,
            address=record.address,
            reason=record.reason,
            is_fresh=False,
        )
        self._machines[machine.machine_id] = self._changed[machine.machine_id] = machine
        return machine

    def move(self, machine: Machine, state: MachineState, reason: str, now: float) -> float:
        """How many seconds it was where it was."""
        before, seconds = machine.state, max(now - machine.moved_at, 0.0)
        if state not in AFTER[before]:
            raise AssertionError(f"machine {machine.machine_id} cannot go from {before} to {state} ({reason})")
        machine.state, machine.reason, machine.moved_at, machine.is_ordered = state, plain(reason), now, False
        self._note(machine, before, seconds)
        if state is MachineState.GONE:
            del self._machines[machine.machine_id]
        return seconds

    def drain(self) -> tuple[tuple[MachineRecord, ...], tuple[MachineMove, ...]]:
        """What the journal must learn since the last time."""
        changed, self._changed = self._changed, {}
        moves, self._moves = tuple(self._moves), []
        return tuple(self.record(machine) for machine in changed.values()), moves

    def record(self, machine: Machine) -> MachineRecord:
        return MachineRecord(
            machine_id=machine.machine_id,
            pool=self.pool,
            provider=self._provider,
            state=machine.state,
            epoch=machine.epoch,
            n_uses=machine.n_uses,
            holder=machine.holder,
            address=machine.address,
            reason=machine.reason,
            created_at=utc(machine.created_at),
            moved_at=utc(machine.moved_at),
        )

    def _note(self, machine: Machine, before: MachineState | None, seconds: float) -> None:
        self._changed[machine.machine_id] = machine
        self._moves.append(
            MachineMove(
                machine_id=machine.machine_id,
                pool=self.pool,
                before=before,
                state=machine.state,
                epoch=machine.epoch,
                holder=machine.holder,
                reason=machine.reason,
                seconds=seconds,
                at=utc(machine.moved_at),
            )
        )

"""One run of SCHED: a scheduler on a workload, with one seed, on virtual time."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from outrider.core.errors import BatchLate
from outrider.testing.virtual_time import Deadlock, run_virtual
from scheduling.figures import WARM_UP, Figures, figures_of
from scheduling.ours import config_of, run_ours
from scheduling.peers import BatchBarrier, DropStale, GroupAdmission, LockStep, MemberAdmission, PlainRule
from scheduling.roll import RollQueues
from scheduling.workload import WORKLOADS, bound
from scheduling.world import Scheduler, World

US = "outrider"
PLAIN = "plain rule"
N_STEPS = 24
STANDSTILL_BATCHES = 200.0
"""A run that takes so many times as long as an ideal one, a step, stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Which run. `limit` is the hard maximum of the staleness; `ahead` how many batches are generated ahead."""

    system: str
    workload: str
    limit: int | None
    ahead: float | None = None
    seed: int = 0
    n_steps: int = N_STEPS
    warm_up: int = WARM_UP

    @property
    def case(self) -> str:
        limit = "none" if self.limit is None else self.limit
        ahead = "" if self.ahead is None else f" ahead={self.ahead:g}"
        return f"{self.workload} max={limit}{ahead}"


MakePeer = Callable[[World], Scheduler]

PEERS: Mapping[tuple[str, int | None], MakePeer] = {
    ("model of lock-step", 0): LockStep,
    ("model of batch barrier", 0): BatchBarrier,
    ("model of ROLL 32x8", 1): lambda world: RollQueues(world, ratio=1),
    ("model of ROLL 36x8", 1): lambda world: RollQueues(world, n_queues=36, ratio=1),
    ("model of ROLL 32x(8+1)", 1): lambda world: RollQueues(world, redundancy=1, ratio=1),
    ("model of ROLL 32x8", 2): lambda world: RollQueues(world, ratio=2),
    ("model of AReaL by groups eta=1", None): lambda world: GroupAdmission(world, 1.0),
    ("model of AReaL by groups eta=2", None): lambda world: GroupAdmission(world, 2.0),
    ("model of AReaL eta=1", None): lambda world: MemberAdmission(world, 1.0),
    ("model of AReaL eta=2", None): lambda world: MemberAdmission(world, 2.0),
    ("model of prime-rl", 2): lambda world: DropStale(world, 2),
    ("model of prime-rl", 3): lambda world: DropStale(world, 3),
    ("model of prime-rl", 5): lambda world: DropStale(world, 5),
    (PLAIN, 1): lambda world: PlainRule(world, 0.0, 1),
    (PLAIN, 2): lambda world: PlainRule(world, 1.0, 2),
    (PLAIN, 3): lambda world: PlainRule(world, 2.0, 3),
    (PLAIN, 5): lambda world: PlainRule(world, 2.0, 5),
    (PLAIN, None): lambda world: PlainRule(world, 2.0, None),
}
"""Every rule beside ours, by its name and the hard maximum of staleness it keeps, if any."""


def run_cell(cell: Cell, *, keeps_log: bool = False) -> tuple[Figures, list[tuple[object, ...]]]:
    """The figures of the run, and what happened in it, event by event, if asked for."""
    workload = replace(WORKLOADS[cell.workload], seed=cell.seed)
    worlds: list[World] = []

    async def main() -> None:
        world = World(workload, keeps_log=keeps_log)
        worlds.append(world)
        world.loop.set_exception_handler(_fail)
        if cell.system == US:
            await run_ours(world, config_of(workload, cell.limit, cell.ahead), cell.n_steps)
        else:
            await world.train(PEERS[cell.system, cell.limit](world), cell.n_steps)

    began, deadlock = time.process_time(), None
    limit = STANDSTILL_BATCHES * cell.n_steps * bound(workload).train_seconds
    gc.disable()  # a run is short, and half of its time would go into looking through what is still in use
    try:
        run_virtual(main(), limit_seconds=limit)
    except (Deadlock, BatchLate) as exc:
        deadlock = str(exc)
    finally:
        gc.enable()
    figures = figures_of(worlds[0].record, deadlock, cell.warm_up)
    return replace(figures, process_seconds=time.process_time() - began), worlds[0].log or []


def figures_of_cell(cell: Cell) -> Figures:
    return run_cell(cell)[0]


def _fail(_loop: object, context: Mapping[str, object]) -> None:
    """A callback of the model failed: the run is worth nothing."""
    error = context.get("exception")
    raise SystemExit(f"the model failed: {context.get('message')}: {error!r}")

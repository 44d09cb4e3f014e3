"""Machines in what a command shows: while it runs, and at its end."""

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from outrider.core.machine import MachineRecord, MachineState
from outrider.pool import PoolStatistics

MAX_MACHINES = 12
"""Machines that a live view shows."""


def short(rollout_id: str) -> str:
    """The part of an id that is not the run's name."""
    return rollout_id.rpartition("/")[2]


def machine_counts(machines: Sequence[MachineRecord], n_waiting: int | None) -> list[str]:
    """How many are in use, and how many rollouts wait for one; nothing where there are none."""
    counts = []
    if machines:
        held = sum(machine.state is MachineState.LEASED for machine in machines)
        counts.append(f"{held} of {len(machines)} machines in use")
    return [*counts, f"{n_waiting} waiting for one"] if n_waiting else counts


def machines_table(machines: Sequence[MachineRecord], at: float, name_of: Callable[[str], str] = short) -> list[Table]:
    """The first of them, as they were `at`; no table where there are none. `name_of` says how to call a rollout."""
    if not machines:
        return []
    table = Table("machine", "state", "holder", "uses", "seconds", box=None, header_style="dim")
    for one in machines[:MAX_MACHINES]:
        holder = name_of(one.holder or "") if one.state is MachineState.LEASED else ""
        seconds = f"{max(at - one.moved_at.timestamp(), 0.0):.0f}"
        table.add_row(one.machine_id, one.state.value, holder, str(one.n_uses), seconds)
    if len(machines) > MAX_MACHINES:
        table.add_row(f"… {len(machines) - MAX_MACHINES} more", "", "", "", "")
    return [table]


def machine_rows(counted: PoolStatistics | None) -> Iterator[tuple[str, str]]:
    """What a pool has counted, for the end of a run: name and value."""
    if counted is None or not counted.n_leases:
        return
    used = "" if counted.utilisation is None else f", {counted.utilisation:.0%} of the time that somebody wanted them"
    yield "machines", f"{counted.n_machines} lent {counted.n_leases:,} times{used}"
    for name, spread in (("wait for a machine", counted.wait_seconds), ("reset of a machine", counted.reset_seconds)):
        if spread is not None:
            yield name, f"p50 {spread.p50:.3g} s, p95 {spread.p95:.3g} s, max {spread.greatest:.3g} s"
    failed = sum(counted.n_failures.values())
    if lost := [
        f"{n} {what}"
        for n, what in (
            (counted.n_deaths, "died"),
            (counted.n_revokes, "taken away"),
            (failed, "failures"),
            (counted.n_leaks, "left behind"),
        )
        if n
    ]:
        yield "trouble with machines", ", ".join(lost)

"""Leases that nobody renews any more, given back before they expire."""

import os
import socket
from pathlib import Path

from outrider.core.crash_points import reached
from outrider.core.status import WorkerStatus
from outrider.core.worker import Worker
from outrider.store import Store


async def take_leases_of_the_dead(store: Store) -> None:
    """What a run that was killed here still holds goes back at once instead of when its leases expire."""
    for worker in await store.query_workers(status=WorkerStatus.BUSY):
        if _is_gone(worker.worker_id):
            await store.revoke_leases(worker.worker_id, reason=f"worker {worker.worker_id} is gone")
            reached("leases.taken")


def is_running_here(worker: Worker) -> bool:
    """Whether the process of this worker is on this machine and has not ended, whatever the store has heard of it."""
    pid = _pid_here(worker.worker_id)
    if pid is None or _is_gone(worker.worker_id):
        return False
    started_at = _started_at(pid)  # its number may be another's by now, which began later
    return started_at is not None and started_at <= worker.last_seen_at.timestamp()


def _pid_here(worker_id: str) -> str | None:
    """The process that the id names, if that is one of this machine; see `worker_id_of`."""
    host, _, pid = worker_id.partition("@")[2].partition("/")[0].rpartition(":")
    return pid if host == socket.gethostname() and pid.isdecimal() else None


def _started_at(pid: str) -> float | None:
    try:
        fields = Path("/proc", pid, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        system = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    booted = next((float(line.split()[1]) for line in system if line.startswith("btime ")), 0.0)
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _is_gone(worker_id: str) -> bool:
    """Whether the id names a process of this machine that is no more."""
    pid = _pid_here(worker_id)
    if pid is None:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _is_zombie(pid)


def _is_zombie(pid: str) -> bool:
    """Whether the process has ended and nobody has asked how: in a container that may stay so."""
    try:
        state = Path("/proc", pid, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"Z", "X"}

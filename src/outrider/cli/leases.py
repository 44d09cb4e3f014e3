"""Leases that nobody renews any more, given back before they expire."""

import os
import socket
from pathlib import Path

from outrider.core.status import WorkerStatus
from outrider.store import Store


async def take_leases_of_the_dead(store: Store) -> None:
    """What a run that was killed here still holds goes back at once instead of when its leases expire."""
    for worker in await store.query_workers(status=WorkerStatus.BUSY):
        if _is_gone(worker.worker_id):
            await store.revoke_leases(worker.worker_id, reason=f"worker {worker.worker_id} is gone")


def _is_gone(worker_id: str) -> bool:
    """Whether the id names a process of this machine that is no more; see `worker_id_of`."""
    host, _, pid = worker_id.partition("@")[2].rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
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

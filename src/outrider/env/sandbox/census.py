"""What the processes below one process use together, as the host's /proc tells. Empty where there is no /proc."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """`memory_bytes` counts pages that forks still share once for each: an upper bound. `n_tasks` counts threads."""

    memory_bytes: int
    cpu_seconds: float
    n_tasks: int


def family(ancestor: int) -> list[int]:
    """The process and all its descendants, each after its parent."""
    found = [ancestor]
    for pid in found:
        found.extend(_children(pid))
    return found


def usage(pids: Iterable[int]) -> Usage:
    """Private memory and processor time, that of children which have ended and been waited for included."""
    pages, ticks, n_tasks = 0, 0, 0
    for pid in pids:
        if statm := _read(f"/proc/{pid}/statm").split():
            pages += int(statm[1]) - int(statm[2])
        # the name, in parentheses, is the program's choice; what follows it is the kernel's
        if stat := _read(f"/proc/{pid}/stat").rpartition(b")")[2].split():
            ticks += sum(int(field) for field in stat[11:15])
            n_tasks += int(stat[17])
    return Usage(pages * PAGE_BYTES, ticks / TICKS, n_tasks)


def proportional_bytes(pids: Iterable[int]) -> int:
    """Memory with each shared page divided among those who share it. Slow: it looks at every page."""
    total = 0
    for pid in pids:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss_Anon:"))
    return total


def tasks_of(user: int) -> int:
    """How many processes and threads the user has, all told."""
    count = 0
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208 strings are wanted
            with suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116
                    count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 strings are wanted
            yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _read(path: str) -> bytes:
    """What stands there; nothing if the process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        with suppress(OSError):
            while part := os.read(descriptor, 65536):
                parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)

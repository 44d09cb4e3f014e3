"""The first program inside: puts on the limits, starts the program, and tells how it ended.

It reports `ready`, then reads its orders from standard input, up to their end: what follows belongs to the program.
They are sent only when all walls stand; without orders it ends. It reports `started`, and at last `ended` or `failed`.
Then it stays, as the keeper of the program's orphans, until it is killed.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys
import time

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

PREFIX_BYTES = 8
NICENESS = 5
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, SECCOMP, CHILD_SUBREAPER = 38, 1, 22, 36
SECCOMP_FILTER = 2


def main() -> None:
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    os.write(report, b"ready\n")
    orders = _orders()
    if orders is None:
        return
    for descriptor in orders["strays"]:
        os.close(descriptor)
    if orders["keeps_orphans"]:
        _prctl(CHILD_SUBREAPER, 1)
        _prctl(PARENT_DEATH_SIGNAL, 9)
    pid = os.fork()
    if pid == 0:
        _become(orders, report)
    for descriptor in (0, 1, 2, *orders["descriptors"]):
        os.close(descriptor)
    _, status, usage = os.wait4(pid, 0)
    os.write(report, f"ended {status} {usage.ru_utime + usage.ru_stime:.6f}\n".encode())
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(3600)


def _orders() -> Any:
    prefix = _read(PREFIX_BYTES)
    body = _read(int.from_bytes(prefix, "big"))
    return marshal.loads(body) if body else None  # noqa: S302 the orders come from outside the sandbox


def _read(length: int) -> bytes:
    parts = []
    while length and (part := os.read(0, length)):
        parts.append(part)
        length -= len(part)
    return b"" if length else b"".join(parts)


def _become(orders: dict[str, Any], report: int) -> None:
    """Turn this process into the program; what stands in the way is reported."""
    try:
        if orders["user"] is not None:
            os.setgroups([])
            os.setresgid(*[orders["user"]] * 3)
            os.setresuid(*[orders["user"]] * 3)
        os.umask(0o077)
        os.nice(NICENESS)
        os.chdir(orders["folder"])
        for name, content in orders["files"].items():
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)  # noqa: PTH103, PTH120 pathlib is slow to import
            with open(name, "xb") as file:  # noqa: PTH123
                file.write(content)
        for kind, soft, hard in orders["limits"]:
            most = resource.getrlimit(kind)[1]
            fits = hard if most == resource.RLIM_INFINITY else min(hard, most)
            resource.setrlimit(kind, (min(soft, fits), fits))
        if orders["keeps_orphans"]:
            _prctl(PARENT_DEATH_SIGNAL, 9)
            _prctl(NO_NEW_PRIVILEGES, 1)
        if orders["filter"]:
            _filter_calls(orders["filter"])
        os.write(report, b"started\n")
        os.execve(orders["arguments"][0], orders["arguments"], orders["variables"])  # noqa: S606
    except BaseException as exc:  # noqa: BLE001 the fork must not go on as a second launcher
        os.write(report, f"failed {type(exc).__name__}: {exc}\n".encode())
    finally:
        os._exit(1)


def _prctl(option: int, *values: Any) -> None:
    import ctypes  # noqa: PLC0415 as slow to import as the rest together, and needed without bubblewrap only

    padded = (*values, 0, 0, 0)[:4]
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _filter_calls(program: bytes) -> None:
    import ctypes  # noqa: PLC0415

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))

    _prctl(SECCOMP, SECCOMP_FILTER, ctypes.byref(Filter(len(program) // 8, program)))


if __name__ == "__main__":
    main()

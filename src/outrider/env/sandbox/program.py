"""What runs in a sandbox, how much it may use, and what came of it."""

import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from outrider.core.bounds import MAX_BYTES, MAX_COUNT, PositiveCount, PositiveSeconds, SomeBytes, Within, check_bounds

MIB = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one program may use, all its processes together where not said otherwise.

    `memory_bytes` also bounds the address space of each process. `n_processes` counts threads too, `n_open_files` is
    per process. `tmp_bytes` and `n_files` bound the program's own folder, `file_bytes` each file in it; what lies there
    is memory beside `memory_bytes`. `output_bytes` is what is read of standard output, and of standard error.
    """

    wall_seconds: PositiveSeconds = 10.0
    cpu_seconds: PositiveSeconds = 10.0
    memory_bytes: Annotated[int, Within(64 * MIB, MAX_BYTES)] = 512 * MIB
    tmp_bytes: Annotated[int, Within(MIB, MAX_BYTES)] = 64 * MIB
    file_bytes: SomeBytes = 64 * MIB
    n_files: PositiveCount = 4096
    n_processes: PositiveCount = 32
    n_open_files: Annotated[int, Within(16, MAX_COUNT)] = 128
    output_bytes: SomeBytes = MIB

    def __post_init__(self) -> None:
        check_bounds(self)


class Program(Struct, frozen=True, kw_only=True):
    """A Python program. `files` lie beside it in its folder, by relative name, and can be imported.

    With `unbuffered`, what it wrote before it was killed is there, at the price of a system call a line.
    """

    source: str
    arguments: tuple[str, ...] = ()
    stdin: bytes = b""
    files: Mapping[str, bytes] = {}
    unbuffered: bool = False


class KillReason(StrEnum):
    """Why a program did not end by itself."""

    WALL_TIME = "wall time"
    CPU_TIME = "CPU time"
    MEMORY = "memory"
    FILES = "number of files"
    PROCESSES = "number of processes"
    OUTPUT = "output"
    STOPPED = "stopped"
    """It was no longer needed."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How a program ended. Either `exit_code` or `signal` is set; a killed program has the signal it was killed by.

    A program that was refused memory or a file sees an exception of its own and may go on: that is no kill.
    `cpu_seconds` counts the processes that were waited for, or what the last look at all of them found.
    """

    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    killed_reason: KillReason | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    mechanism: str = ""

    @property
    def timed_out(self) -> bool:
        return self.killed_reason in {KillReason.WALL_TIME, KillReason.CPU_TIME}

    @property
    def memory_exceeded(self) -> bool:
        return self.killed_reason is KillReason.MEMORY

    @property
    def ending(self) -> str:
        """How it ended, in words: `exit code 0`, `killed: wall time`, `signal SIGSEGV`."""
        if self.killed_reason is not None:
            return f"killed: {self.killed_reason.value}"
        if self.signal is None:
            return f"exit code {self.exit_code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"

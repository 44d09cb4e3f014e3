"""What runs in a sandbox, how much it may use, and what came of it."""

import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

MIB = 1024 * 1024

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one program may use, all its processes together where not said otherwise.

    `memory_bytes` also bounds the address space of each process. `n_processes` counts threads too, `n_open_files` is
    per process. `tmp_bytes` and `n_files` bound the program's own folder, `file_bytes` each file in it; what lies there
    is memory beside `memory_bytes`. `output_bytes` is what is read of standard output, and of standard error.
    """

    wall_seconds: Positive = 10.0
    cpu_seconds: Positive = 10.0
    memory_bytes: Annotated[int, Meta(ge=64 * MIB)] = 512 * MIB
    tmp_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    file_bytes: Count = 64 * MIB
    n_files: Count = 4096
    n_processes: Count = 32
    n_open_files: Annotated[int, Meta(ge=16)] = 128
    output_bytes: Count = MIB


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

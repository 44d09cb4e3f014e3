"""Disks that fail, for tests: a small one, one that cannot be written, and one that loses what it was told to keep."""

import ctypes
import os
import platform
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SYNC_CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}
"""The numbers of fsync and fdatasync."""

SET_NO_NEW_PRIVS = 38
SECCOMP = {"x86_64": 317, "aarch64": 277}
FILTER, ALL_THREADS = 1, 1


@contextmanager
def small_disk(place: Path, n_bytes: int, n_files: int = 1000) -> Iterator[Path]:
    """A file system with this much room, mounted at `place` for as long as the block lasts."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    place.mkdir(exist_ok=True)
    options = f"size={n_bytes},nr_inodes={n_files + 1}"  # the folder itself counts
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", place], check=True, timeout=10)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, timeout=10)


def make_read_only(place: Path) -> None:
    """From now on nobody can write to the disk mounted at `place`, not even root."""
    subprocess.run(["mount", "-o", "remount,ro", place], check=True, timeout=10)


def fill(folder: Path) -> Path:
    """Take all the room there is on the disk of `folder`; the file that takes it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for n_bytes in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(n_bytes)):
                    pass
    return filler


def fail_every_sync() -> None:
    """From now on every fsync and fdatasync of this process fails with EIO, as on a disk that is breaking.

    A seccomp filter does it, in all threads; it cannot be taken back, so call it in a process of its own.
    """
    machine = platform.machine()
    load_number, jump_if_equal, give_back = 0x20, 0x15, 0x06
    fsync, fdatasync = SYNC_CALLS[machine]
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (load_number, 0, 0, 0),
            (jump_if_equal, 1, 0, fsync),
            (jump_if_equal, 0, 1, fdatasync),
            (give_back, 0, 0, 0x00050000 | 5),  # an errno: EIO
            (give_back, 0, 0, 0x7FFF0000),  # allowed
        )
    )
    kept = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    done = libc.syscall(SECCOMP[machine], FILTER, ALL_THREADS, ctypes.create_string_buffer(header))
    assert done == 0, os.strerror(ctypes.get_errno())

"""A filter of system calls for desktops, as the program that the kernel runs on each.

It leaves programs with windows what they need, and denies what gets around the other walls: sockets of families that no
network namespace holds, new namespaces and mounts, keys, and kernel interfaces with a history of holes.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Families of sockets that there may be; the last one is netlink, by which programs look at their own network."""

_CLONE3 = 435
_LATER = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
"""The same on all processors: io_uring, the new mounts, descriptors of others, secret memory."""


class Architecture(NamedTuple):
    """What the kernel calls a processor, and the numbers of its system calls."""

    audit: int
    clone: int
    sockets: tuple[int, int]
    denied: tuple[int, ...]
    """Modules, kexec, bpf, perf, ptrace and its kin, keys, mounts, roots, namespaces, clocks, handles of files, swap,
    userfaultfd, accounting, names of the host."""


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "x86_64": Architecture(
            audit=0xC000003E,
            clone=56,
            sockets=(41, 53),
            denied=(
                *(175, 313, 176, 246, 320, 321, 298, 101, 310, 311, 312, 248, 249, 250, 165, 166, 155, 161),
                *(272, 308, 164, 227, 305, 159, 303, 304, 167, 168, 323, 163, 169, 170, 171, 172, 173, 300, 103),
            ),
        ),
        "aarch64": Architecture(
            audit=0xC00000B7,
            clone=220,
            sockets=(198, 199),
            denied=(
                *(105, 273, 106, 104, 294, 280, 241, 117, 270, 271, 272, 217, 218, 219, 40, 39, 41, 51),
                *(97, 268, 170, 112, 266, 171, 264, 265, 224, 225, 282, 89, 142, 161, 162, 262, 116),
            ),
        ),
    }
)

_X32 = 0x40000000
_NAMESPACES = 0x7E020000
_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000

Step = tuple[int, int, int, int]


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter for this processor; None: its system calls are not known."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    allow, forbid, missing = (_returns(what) for what in (_ALLOW, _FAIL | errno.EPERM, _FAIL | errno.ENOSYS))
    families = [step for family in FAMILIES for step in _when(_IF_EQUAL, family, [allow])]
    first = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_IF_EQUAL, 1, 0, known.audit),
        _returns(_KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_when(_IF_AT_LEAST, _X32, [missing]),
        *_when(_IF_EQUAL, _CLONE3, [missing]),
        *_when(_IF_EQUAL, known.clone, [first, *_when(_IF_ANY_BIT, _NAMESPACES, [forbid]), allow]),
        *_each(known.sockets, [first, *families, forbid]),
        *_each((*known.denied, *_LATER), [forbid]),
        allow,
    ]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _each(numbers: Iterable[int], steps: list[Step]) -> list[Step]:
    return [step for number in numbers for step in _when(_IF_EQUAL, number, steps)]


def _when(test: int, value: int, steps: list[Step]) -> list[Step]:
    """Take `steps` if what was loaded passes the test, else go on behind them."""
    return [(test, 0, len(steps), value), *steps]


def _returns(action: int) -> Step:
    return (_RETURN, 0, 0, action)

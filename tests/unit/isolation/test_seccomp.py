"""The seccomp filters, run by a small machine of the kind that the kernel has."""

import errno
import socket
import struct
from functools import cache

import pytest

from outrider.isolation.seccomp import (
    _ALLOWED,
    _ALLOWED_ON_MACHINES,
    _REFUSED,
    ARCHITECTURES,
    Profile,
    _column,
    filter_program,
    numbers,
)

ALLOWED, KILLED = "allowed", "killed"
CLONE = {"x86_64": 56, "aarch64": 220}
MMAP = {"x86_64": 9, "aarch64": 222}
IOCTL = {"x86_64": 16, "aarch64": 29}
PERSONALITY = {"x86_64": 135, "aarch64": 92}
SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}
CLONE3 = 435


@pytest.fixture(params=sorted(ARCHITECTURES))
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=Profile)
def profile(request: pytest.FixtureRequest) -> Profile:
    return request.param


@cache
def steps_of(profile: Profile, machine: str) -> list[tuple[int, ...]]:
    program = filter_program(profile, machine)
    assert program is not None
    return list(struct.iter_unpack("HBBI", program))


def decided(profile: Profile, machine: str, number: int, *arguments: int, audit: int | None = None) -> str | int:
    """What the filter says of one call: allowed, killed, or the error it gets."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    audit = ARCHITECTURES[machine].audit if audit is None else audit
    call = struct.pack("<IIQ6Q", number, audit, 0, *(value & (1 << 64) - 1 for value in padded))
    steps = steps_of(profile, machine)
    loaded, place = 0, 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", call, value)
            case 0x54:
                loaded &= value
            case 0x05:
                place += value
            case 0x15:
                place += if_true if loaded == value else if_false
            case 0x35:
                place += if_true if loaded >= value else if_false
            case 0x45:
                place += if_true if loaded & value else if_false
            case 0x06:
                return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(value, value & 0xFFFF)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def test_only_what_is_listed_is_allowed(machine, profile):
    column = ARCHITECTURES[machine].column
    allowed = set(_column(_ALLOWED, column).values())
    if profile is Profile.MACHINE:
        allowed |= set(_column(_ALLOWED_ON_MACHINES, column).values())
    dangerous = set(_column(_REFUSED, column).values()) - allowed
    checked = numbers(profile, machine) - allowed
    assert len(checked) == 6
    for number in (*range(1000), 2**30 - 1, 2**31, 2**32 - 1):
        if number not in checked:
            expected = ALLOWED if number in allowed else errno.EPERM if number in dangerous else errno.ENOSYS
            assert decided(profile, machine, number) == expected, number
    assert decided(profile, machine, CLONE3) == errno.ENOSYS


@pytest.mark.parametrize("name", ["statmount", "listmount", "open_tree_attr", "io_uring_setup", "ptrace", "unshare"])
def test_what_is_dangerous_is_forbidden(machine, profile, name):
    number = _column(_REFUSED, ARCHITECTURES[machine].column)[name]
    assert decided(profile, machine, number) == errno.EPERM


def test_calls_of_another_interface_are_refused(machine, profile):
    assert decided(profile, machine, 1, audit=0x40000003) == KILLED
    assert decided(profile, machine, 1, audit=0) == KILLED
    for number in range(600):
        assert decided(profile, machine, 0x40000000 | number) == errno.ENOSYS


def test_only_sockets_that_a_network_namespace_holds_can_be_made(machine, profile):
    families = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6] if profile is Profile.MACHINE else [socket.AF_UNIX]
    for number in SOCKETS[machine]:
        made = [family for family in range(64) if decided(profile, machine, number, family, 3, 12) == ALLOWED]
        assert made == families
        routes = decided(profile, machine, number, 16, 3, 0)
        assert routes == (ALLOWED if profile is Profile.MACHINE else errno.EPERM)


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_a_process_is_not_made_in_a_new_namespace(machine, profile, flag):
    assert decided(profile, machine, CLONE[machine], flag | 17) == errno.EPERM
    assert decided(profile, machine, CLONE[machine], 0x3D0F00) == ALLOWED  # a thread


@pytest.mark.parametrize(
    ("flags", "expected"), [(0x22, ALLOWED), (0x01, ALLOWED), (0x02, ALLOWED), (0x21, 1), (0x23, 1)]
)
def test_a_program_shares_memory_through_files_only(machine, flags, expected):
    assert decided(Profile.PROGRAM, machine, MMAP[machine], 0, 4096, 3, flags) == expected
    assert decided(Profile.MACHINE, machine, MMAP[machine], 0, 4096, 3, flags) == ALLOWED


def test_nothing_is_typed_into_a_terminal(machine, profile):
    for request, expected in ((0x5412, 1), (0x541C, 1), (1 << 32 | 0x5412, 1), (0x5413, ALLOWED), (0x5401, ALLOWED)):
        assert decided(profile, machine, IOCTL[machine], 0, request) == expected


def test_only_usual_personalities_are_taken(machine, profile):
    for persona, expected in ((0, ALLOWED), (0xFFFFFFFF, ALLOWED), (8, ALLOWED), (0x0400000, 1), (0x40000, 1)):
        assert decided(profile, machine, PERSONALITY[machine], persona) == expected


def test_for_an_unknown_processor_there_is_no_filter(profile):
    assert filter_program(profile, "vax") is None

"""The filter of system calls, run by a small machine of the kind that the kernel has."""

import errno
import socket
import struct

import pytest

from outrider.env.sandbox.seccomp import ARCHITECTURES, filter_program

ALLOWED, KILLED = "allowed", "killed"
AUDIT_ARCH = {name: architecture.audit_arch for name, architecture in ARCHITECTURES.items()}


def decided(program: bytes, audit_arch: int, number: int, *arguments: int) -> str | int:
    """What the filter says of one call: allowed, killed, or the error it gets."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    call = struct.pack("<IIQ6Q", number, audit_arch, 0, *(value & (1 << 64) - 1 for value in padded))
    steps = list(struct.iter_unpack("HBBI", program))
    loaded, place = 0, 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", call, value)
            case 0x54:
                loaded &= value
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


@pytest.fixture(params=sorted(ARCHITECTURES))
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_denied_call_is_refused_and_others_are_not(machine):
    program = filter_program(machine)
    denied = set(ARCHITECTURES[machine].denied.values())
    special = {435, *ARCHITECTURES[machine].sockets}
    for number in range(600):
        expected = errno.EPERM if number in denied else ALLOWED
        if number not in special:
            assert decided(program, AUDIT_ARCH[machine], number) == expected, number
    assert decided(program, AUDIT_ARCH[machine], 435) == errno.ENOSYS


def test_calls_of_another_interface_are_refused(machine):
    program = filter_program(machine)
    assert decided(program, 0x40000003, 1) == KILLED
    assert decided(program, AUDIT_ARCH[machine], 0x40000001) == errno.ENOSYS


def test_only_local_sockets_can_be_made(machine):
    program = filter_program(machine)
    for number in ARCHITECTURES[machine].sockets:
        made = [family for family in range(64) if decided(program, AUDIT_ARCH[machine], number, family) == ALLOWED]
        assert made == [socket.AF_UNIX]


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_a_process_is_not_made_in_a_new_namespace(machine, flag):
    program, number = filter_program(machine), ARCHITECTURES[machine].clone
    assert decided(program, AUDIT_ARCH[machine], number, flag | 17) == errno.EPERM
    assert decided(program, AUDIT_ARCH[machine], number, 0x3D0F00) == ALLOWED  # a thread


@pytest.mark.parametrize(
    ("flags", "expected"), [(0x22, ALLOWED), (0x01, ALLOWED), (0x02, ALLOWED), (0x21, 1), (0x23, 1)]
)
def test_memory_is_shared_through_files_only(machine, flags, expected):
    program, number = filter_program(machine), ARCHITECTURES[machine].mmap
    assert decided(program, AUDIT_ARCH[machine], number, 0, 4096, 3, flags) == expected


def test_for_an_unknown_processor_there_is_no_filter():
    assert filter_program("vax") is None

"""The filter of system calls is a program that the kernel would take, and decides as it should."""

import errno
import struct

import pytest

from outrider.pool.desktop.calls import ARCHITECTURES, filter_program

ALLOWED, DENIED, MISSING, KILLED = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
VSOCK, PACKET = 40, 17


def decide(program: bytes, number: int, *arguments: int, audit: int) -> int:
    """What the kernel would do with a call: the few instructions that filters here are made of."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = list(struct.iter_unpack("HBBI", program))
    at, loaded = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case 0x15:
                at += yes if loaded == value else no
            case 0x35:
                at += yes if loaded >= value else no
            case 0x45:
                at += yes if loaded & value else no
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_lets_pass_what_programs_need_and_nothing_that_gets_around_the_walls(machine):
    known, program = ARCHITECTURES[machine], filter_program(machine)
    assert program is not None

    def decided(number, *arguments, audit=known.audit):
        return decide(program, number, *arguments, audit=audit)

    for call in known.sockets:
        assert [decided(call, family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4
        assert [decided(call, family) for family in (VSOCK, PACKET, 0, 38)] == [DENIED] * 4
    assert decided(known.clone, 0x01200011) == ALLOWED
    assert decided(known.clone, 0x10000000) == DENIED
    assert decided(435) == MISSING
    assert {decided(number) for number in known.denied} == {DENIED}
    assert decided(0) == ALLOWED
    assert decided(0, audit=0x40000003) == KILLED
    assert decided(0x40000001) == MISSING


def test_there_is_no_filter_for_a_processor_that_is_not_known():
    assert filter_program("vax") is None

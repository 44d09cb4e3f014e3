"""A filter of system calls, as the program that the kernel runs on each: no library is needed to write one.

It denies what no sandboxed program needs and what the other walls do not stop: new namespaces and mounts, looking into
other processes, keys, kernel interfaces with a history of holes, sockets of all families but the local one (vsock
ignores network namespaces, and the memory of TCP is everyone's), and memory that belongs to no process and so escapes
every count.
"""

import errno
import platform
import socket
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_BOTH = """
    fsconfig=431 fsmount=432 fsopen=430 fspick=433 io_uring_enter=426 io_uring_register=427 io_uring_setup=425
    memfd_secret=447 mount_setattr=442 move_mount=429 open_tree=428 pidfd_getfd=438 process_madvise=440 quotactl_fd=443
"""

_X86_64 = """
    _sysctl=156 acct=163 add_key=248 adjtimex=159 bpf=321 chroot=161 clock_adjtime=305 clock_settime=227
    delete_module=176 fanotify_init=300 finit_module=313 init_module=175 io_setup=206 ioperm=173 iopl=172 kcmp=312
    kexec_file_load=320 kexec_load=246 keyctl=250 lookup_dcookie=212 mbind=237 memfd_create=319 migrate_pages=256
    modify_ldt=154 mount=165 move_pages=279 mq_open=240 msgget=68 name_to_handle_at=303 nfsservctl=180
    open_by_handle_at=304 perf_event_open=298 pivot_root=155 process_vm_readv=310 process_vm_writev=311 ptrace=101
    quotactl=179 reboot=169 remap_file_pages=216 request_key=249 semget=64 set_mempolicy=238 setdomainname=171
    sethostname=170 setns=308 settimeofday=164 shmat=30 shmget=29 swapoff=168 swapon=167 sysfs=139 syslog=103
    umount2=166 unshare=272 uselib=134 userfaultfd=323 ustat=136 vhangup=153 vmsplice=278
"""

_AARCH64 = """
    acct=89 add_key=217 adjtimex=171 bpf=280 chroot=51 clock_adjtime=266 clock_settime=112 delete_module=106
    fanotify_init=262 finit_module=273 init_module=105 io_setup=0 kcmp=272 kexec_file_load=294 kexec_load=104
    keyctl=219 lookup_dcookie=18 mbind=235 memfd_create=279 migrate_pages=238 mount=40 move_pages=239 mq_open=180
    msgget=186 name_to_handle_at=264 nfsservctl=42 open_by_handle_at=265 perf_event_open=241 pivot_root=41
    process_vm_readv=270 process_vm_writev=271 ptrace=117 quotactl=60 reboot=142 remap_file_pages=234 request_key=218
    semget=190 set_mempolicy=237 setdomainname=162 sethostname=161 setns=268 settimeofday=170 shmat=196 shmget=194
    swapoff=225 swapon=224 syslog=116 umount2=39 unshare=97 userfaultfd=282 vhangup=58 vmsplice=75
"""


class Architecture(NamedTuple):
    """What the kernel calls a processor, and the numbers of its system calls."""

    audit_arch: int
    denied: Mapping[str, int]
    clone: int
    mmap: int
    sockets: tuple[int, int]


def _numbers(*tables: str) -> Mapping[str, int]:
    pairs = (entry.split("=") for table in tables for entry in table.split())
    return MappingProxyType({name: int(number) for name, number in pairs})


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "x86_64": Architecture(0xC000003E, _numbers(_BOTH, _X86_64), clone=56, mmap=9, sockets=(41, 53)),
        "aarch64": Architecture(0xC00000B7, _numbers(_BOTH, _AARCH64), clone=220, mmap=222, sockets=(198, 199)),
    }
)

_CLONE3 = 435
_X32 = 0x40000000
"""Calls from here on are those of the x32 interface: the same calls under other numbers."""

_NAMESPACES = 0x7E020000
"""The flags of `clone` that make namespaces."""

_SHARED_ANONYMOUS = 0x21
"""Flags of `mmap` for memory that stays, unseen, when all but one page of it is unmapped."""

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCH = 0, 4
_ARGUMENTS = 16
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000

Instruction = tuple[int, int, int, int]


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter for this processor; None: we do not know its system calls."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    forbid = _returns(_FAIL | errno.EPERM)
    missing = _returns(_FAIL | errno.ENOSYS)
    allow = _returns(_ALLOW)
    local_only = [_loads(_ARGUMENTS), *_when(_IF_EQUAL, socket.AF_UNIX, [allow]), forbid]
    program = [
        _loads(_ARCH),
        (_IF_EQUAL, 1, 0, known.audit_arch),
        _returns(_KILL),
        _loads(_NUMBER),
        *_when(_IF_AT_LEAST, _X32, [missing]),
        *_when(_IF_EQUAL, _CLONE3, [missing]),
        *_when(_IF_EQUAL, known.clone, [_loads(_ARGUMENTS), *_when(_IF_ANY_BIT, _NAMESPACES, [forbid]), allow]),
        *(step for number in known.sockets for step in _when(_IF_EQUAL, number, local_only)),
        *_when(_IF_EQUAL, known.mmap, [*_masked(3, _SHARED_ANONYMOUS, [forbid]), allow]),
        *(step for number in known.denied.values() for step in _when(_IF_EQUAL, number, [forbid])),
        allow,
    ]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _when(test: int, value: int, steps: list[Instruction]) -> list[Instruction]:
    """Take `steps` if what was loaded passes the test, else go on behind them."""
    return [(test, 0, len(steps), value), *steps]


def _masked(argument: int, bits: int, steps: list[Instruction]) -> list[Instruction]:
    """Take `steps` if the argument has all of `bits`."""
    return [_loads(_ARGUMENTS + 8 * argument), (_AND, 0, 0, bits), *_when(_IF_EQUAL, bits, steps)]


def _loads(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _returns(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)

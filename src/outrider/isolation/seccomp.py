"""Seccomp filters: which system calls programs behind walls may make, as the program that the kernel runs on each.

Invariants:
- A call that is not listed is refused: with EPERM if it is known to be dangerous, else with ENOSYS, as if the kernel
  were older, so that libraries do without. A call that a later kernel brings is refused too.
- Calls of other interfaces (32-bit, x32) are refused, or end the program.
- What is allowed makes no namespaces, mounts or sockets of families that no network namespace holds, and looks into no
  other process.

No library is needed: the filter is written as the kernel's own instructions. There is one for x86_64 and aarch64.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

_ALLOWED = """
    access=21/- chdir=80/49 chmod=90/- chown=92/- close=3/57 close_range=436/436 copy_file_range=326/285
    creat=85/- dup=32/23 dup2=33/- dup3=292/24 faccessat=269/48 faccessat2=439/439 fadvise64=221/223
    fallocate=285/47 fchdir=81/50 fchmod=91/52 fchmodat=268/53 fchmodat2=452/452 fchown=93/55 fchownat=260/54
    fcntl=72/25 fdatasync=75/83 fgetxattr=193/10 flistxattr=196/13 flock=73/32 fremovexattr=199/16
    fsetxattr=190/7 fstat=5/80 fstatfs=138/44 fsync=74/82 ftruncate=77/46 futimesat=261/- getcwd=79/17
    getdents=78/- getdents64=217/61 getxattr=191/8 inotify_add_watch=254/27 inotify_init=253/-
    inotify_init1=294/26 inotify_rm_watch=255/28 lchown=94/- lgetxattr=192/9 link=86/- linkat=265/37
    listxattr=194/11 llistxattr=195/12 lremovexattr=198/15 lseek=8/62 lsetxattr=189/6 lstat=6/- mkdir=83/-
    mkdirat=258/34 mknod=133/- mknodat=259/33 newfstatat=262/79 open=2/- openat=257/56 openat2=437/437 pipe=22/-
    pipe2=293/59 pread64=17/67 preadv=295/69 preadv2=327/286 pwrite64=18/68 pwritev=296/70 pwritev2=328/287
    read=0/63 readahead=187/213 readlink=89/- readlinkat=267/78 readv=19/65 removexattr=197/14 rename=82/-
    renameat=264/38 renameat2=316/276 rmdir=84/- sendfile=40/71 setxattr=188/5 splice=275/76 stat=4/-
    statfs=137/43 statx=332/291 symlink=88/- symlinkat=266/36 sync=162/81 sync_file_range=277/84 syncfs=306/267
    tee=276/77 truncate=76/45 umask=95/166 unlink=87/- unlinkat=263/35 utime=132/- utimensat=280/88 utimes=235/-
    write=1/64 writev=20/66
    brk=12/214 madvise=28/233 membarrier=324/283 mlock=149/228 mlock2=325/284 mlockall=151/230 mprotect=10/226
    mremap=25/216 msync=26/227 munlock=150/229 munlockall=152/231 munmap=11/215
    alarm=37/- arch_prctl=158/- capget=125/90 capset=126/91 execve=59/221 execveat=322/281 exit=60/93
    exit_group=231/94 fork=57/- get_robust_list=274/100 getegid=108/177 geteuid=107/175 getgid=104/176
    getgroups=115/158 getitimer=36/102 getpgid=121/155 getpgrp=111/- getpid=39/172 getppid=110/173
    getpriority=140/141 getresgid=120/150 getresuid=118/148 getrlimit=97/163 getrusage=98/165 getsid=124/156
    gettid=186/178 getuid=102/174 ioprio_get=252/31 ioprio_set=251/30 kill=62/129 pause=34/- pidfd_open=434/434
    pidfd_send_signal=424/424 prctl=157/167 prlimit64=302/261 restart_syscall=219/128 rt_sigaction=13/134
    rt_sigpending=127/136 rt_sigprocmask=14/135 rt_sigqueueinfo=129/138 rt_sigreturn=15/139
    rt_sigsuspend=130/133 rt_sigtimedwait=128/137 rt_tgsigqueueinfo=297/240 sched_get_priority_max=146/125
    sched_get_priority_min=147/126 sched_getaffinity=204/123 sched_getattr=315/275 sched_getparam=143/121
    sched_getscheduler=145/120 sched_rr_get_interval=148/127 sched_setaffinity=203/122 sched_setattr=314/274
    sched_setparam=142/118 sched_setscheduler=144/119 sched_yield=24/124 set_robust_list=273/99
    set_tid_address=218/96 setfsgid=123/152 setfsuid=122/151 setgid=106/144 setgroups=116/159 setitimer=38/103
    setpgid=109/154 setpriority=141/140 setregid=114/143 setresgid=119/149 setresuid=117/147 setreuid=113/145
    setrlimit=160/164 setsid=112/157 setuid=105/146 sigaltstack=131/132 tgkill=234/131 tkill=200/130 vfork=58/-
    wait4=61/260 waitid=247/95
    clock_getres=229/114 clock_gettime=228/113 clock_nanosleep=230/115 getcpu=309/168 getrandom=318/278
    gettimeofday=96/169 nanosleep=35/101 rseq=334/293 sysinfo=99/179 time=201/- timer_create=222/107
    timer_delete=226/111 timer_getoverrun=225/109 timer_gettime=224/108 timer_settime=223/110
    timerfd_create=283/85 timerfd_gettime=287/87 timerfd_settime=286/86 times=100/153 uname=63/160
    epoll_create=213/- epoll_create1=291/20 epoll_ctl=233/21 epoll_pwait=281/22 epoll_pwait2=441/441
    epoll_wait=232/- eventfd=284/- eventfd2=290/19 futex=202/98 futex_waitv=449/449 poll=7/- ppoll=271/73
    pselect6=270/72 select=23/- signalfd=282/- signalfd4=289/74
    accept=43/202 accept4=288/242 bind=49/200 connect=42/203 getpeername=52/205 getsockname=51/204
    getsockopt=55/209 listen=50/201 recvfrom=45/207 recvmmsg=299/243 recvmsg=47/212 sendmmsg=307/269
    sendmsg=46/211 sendto=44/206 setsockopt=54/208 shutdown=48/210
"""
"""Numbers on x86_64 and on aarch64. Files, memory, processes, time, waiting, sockets."""

_ALLOWED_ON_MACHINES = """
    memfd_create=319/279 seccomp=317/277 semctl=66/191 semget=64/190 semop=65/193 semtimedop=220/192
    shmat=30/196 shmctl=31/195 shmdt=67/197 shmget=29/194
"""
"""What windows need: memory that belongs to no process, and so escapes every count of what one program uses."""

_REFUSED = """
    acct=163/89 add_key=248/217 adjtimex=159/171 bpf=321/280 chroot=161/51 clock_adjtime=305/266
    clock_settime=227/112 delete_module=176/106 fanotify_init=300/262 finit_module=313/273 fsconfig=431/431
    fsmount=432/432 fsopen=430/430 fspick=433/433 init_module=175/105 io_setup=206/0 io_uring_enter=426/426
    io_uring_register=427/427 io_uring_setup=425/425 ioperm=173/- iopl=172/- kcmp=312/272
    kexec_file_load=320/294 kexec_load=246/104 keyctl=250/219 listmount=458/458 mbind=237/235
    memfd_create=319/279 memfd_secret=447/447 migrate_pages=256/238 modify_ldt=154/- mount=165/40
    mount_setattr=442/442 move_mount=429/429 move_pages=279/239 mq_open=240/180 msgget=68/186
    name_to_handle_at=303/264 open_by_handle_at=304/265 open_tree=428/428 open_tree_attr=467/467
    perf_event_open=298/241 pidfd_getfd=438/438 pivot_root=155/41 process_madvise=440/440
    process_vm_readv=310/270 process_vm_writev=311/271 ptrace=101/117 quotactl=179/60 quotactl_fd=443/443
    reboot=169/142 remap_file_pages=216/234 request_key=249/218 semget=64/190 set_mempolicy=238/237
    setdomainname=171/162 sethostname=170/161 setns=308/268 settimeofday=164/170 shmat=30/196 shmget=29/194
    statmount=457/457 swapoff=168/225 swapon=167/224 syslog=103/116 umount2=166/39 unshare=272/97
    userfaultfd=323/282 vhangup=153/58 vmsplice=278/75
"""
"""New namespaces and mounts, looking into other processes, keys, kernel interfaces with a history of holes."""

_CHECKED = """
    clone=56/220 clone3=435/435 ioctl=16/29 mmap=9/222 personality=135/92 socket=41/198 socketpair=53/199
"""
"""Allowed or not by what they are called with."""


class Profile(StrEnum):
    """For whom a filter is."""

    PROGRAM = "program"
    """One program of a model: no sockets but local ones (the memory of TCP is everyone's), no unseen memory."""

    MACHINE = "machine"
    """A machine with programs of all kinds, windows and a network of its own."""


class Architecture(NamedTuple):
    """What the kernel calls a processor, and which column of the tables is its."""

    audit: int
    column: int


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {"x86_64": Architecture(0xC000003E, 0), "aarch64": Architecture(0xC00000B7, 1)}
)

_LOCAL_FAMILIES = (socket.AF_UNIX,)
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_NETLINK, _NETLINK_ROUTE = 16, 0
"""By which programs look at their own network."""

_NAMESPACES = 0x7E020000
"""The flags of `clone` that make namespaces."""

_SHARED_ANONYMOUS = 0x21
"""Flags of `mmap` for memory that stays, unseen, when all but one page of it is unmapped."""

_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into the terminal of whoever has started the program."""

_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""As it is, of 32-bit Linux, as an older version; or only asked for."""

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_MAX_BRANCH = 255
_NUMBER, _ARCH = 0, 4
_ARGUMENTS = 16

Instruction = tuple[int, int, int, int]
Block = tuple[Instruction, ...]


def _returns(action: int) -> Block:
    return ((_RETURN, 0, 0, action),)


_ALLOW, _KILL = _returns(0x7FFF0000), _returns(0x80000000)
_FORBID, _MISSING = _returns(0x00050000 | errno.EPERM), _returns(0x00050000 | errno.ENOSYS)


def filter_program(profile: Profile, machine: str | None = None) -> bytes | None:
    """The filter for this processor; None: its system calls are not known."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    program = (
        *_loads(_ARCH),
        (_IF_EQUAL, 1, 0, known.audit),
        *_KILL,
        *_loads(_NUMBER),
        *_search(_decisions(profile, known.column)),
    )
    return b"".join(struct.pack("HBBI", *step) for step in program)


def numbers(profile: Profile, machine: str) -> frozenset[int]:
    """The calls that the filter lets pass, whatever they are called with or if that is harmless."""
    decisions = _decisions(profile, ARCHITECTURES[machine].column)
    return frozenset(number for number, block in decisions.items() if block not in (_FORBID, _MISSING))


def _decisions(profile: Profile, column: int) -> dict[int, Block]:
    decisions = dict.fromkeys(_column(_REFUSED, column).values(), _FORBID)
    allowed = (_ALLOWED, _ALLOWED_ON_MACHINES) if profile is Profile.MACHINE else (_ALLOWED,)
    decisions |= dict.fromkeys(chain.from_iterable(_column(table, column).values() for table in allowed), _ALLOW)
    checked = _checks(profile)
    return decisions | {number: checked[name] for name, number in _column(_CHECKED, column).items()}


def _checks(profile: Profile) -> dict[str, Block]:
    of_machine = profile is Profile.MACHINE
    families = _FAMILIES if of_machine else _LOCAL_FAMILIES
    netlink = _when(_IF_EQUAL, _NETLINK, (*_loads(_argument(2)), *_one_of((_NETLINK_ROUTE,), _ALLOW), *_FORBID))
    sockets = (*_loads(_argument(0)), *_one_of(families, _ALLOW), *(netlink if of_machine else ()), *_FORBID)
    unseen = (*_loads(_argument(3)), (_AND, 0, 0, _SHARED_ANONYMOUS), *_one_of((_SHARED_ANONYMOUS,), _FORBID))
    return {
        "clone": (*_loads(_argument(0)), *_when(_IF_ANY_BIT, _NAMESPACES, _FORBID), *_ALLOW),
        "clone3": _MISSING,  # its flags lie in memory, where a filter cannot look
        "ioctl": (*_loads(_argument(1)), *_one_of(_TERMINAL_INPUT, _FORBID), *_ALLOW),
        "mmap": (*(() if of_machine else unseen), *_ALLOW),
        "personality": (*_loads(_argument(0)), *_one_of(_PERSONALITIES, _ALLOW), *_FORBID),
        "socket": sockets,
        "socketpair": sockets,
    }


def _column(table: str, column: int) -> dict[str, int]:
    """The numbers of calls by name, for the processors that have them."""
    pairs = (entry.split("=") for entry in table.split())
    found = {name: given.split("/")[column] for name, given in pairs}
    return {name: int(number) for name, number in found.items() if number != "-"}


def _search(decisions: Mapping[int, Block]) -> Block:
    """Find the block of the loaded number, by halves; numbers without one are missing."""
    starts: list[tuple[int, Block]] = [(0, _MISSING)]
    for number, block in sorted(decisions.items()):
        for start, meant in ((number, block), (number + 1, _MISSING)):
            if starts[-1][0] == start:
                starts.pop()
            if not starts or starts[-1][1] != meant:
                starts.append((start, meant))
    return _halves(starts)


def _halves(starts: Sequence[tuple[int, Block]]) -> Block:
    if len(starts) == 1:
        return starts[0][1]
    middle = len(starts) // 2
    lower, upper = _halves(starts[:middle]), _halves(starts[middle:])
    if len(lower) <= _MAX_BRANCH:
        return ((_IF_AT_LEAST, len(lower), 0, starts[middle][0]), *lower, *upper)
    return ((_IF_AT_LEAST, 0, 1, starts[middle][0]), (_JUMP, 0, 0, len(lower)), *lower, *upper)


def _argument(place: int) -> int:
    """Where the lower half of an argument lies; of those that are looked at, the kernel takes no more."""
    return _ARGUMENTS + 8 * place


def _loads(offset: int) -> Block:
    return ((_LOAD, 0, 0, offset),)


def _when(test: int, value: int, block: Block) -> Block:
    """Go through `block` if what was loaded passes the test, else go on behind it."""
    return ((test, 0, len(block), value), *block)


def _one_of(values: Iterable[int], block: Block) -> Block:
    return tuple(chain.from_iterable(_when(_IF_EQUAL, value, block) for value in values))

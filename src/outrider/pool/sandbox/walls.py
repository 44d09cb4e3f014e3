"""Walls by bubblewrap around a resident: own namespaces of every kind, the host's programs read-only, files in memory.

Invariants:
- All processes are below the resident, the first of its process namespace: when it ends, the kernel has ended them all.
- A sandbox that was begun and not finished ends by itself, whatever happens to the process that began it.
- Commands run as a user that is nobody outside, if root makes the sandbox; they cannot reach the resident then.
- Home and /tmp lie in memory that is bounded and goes with the sandbox.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from outrider.core.bounds import PositiveCount, SomeBytes, check_bounds
from outrider.core.crash_points import reached
from outrider.core.errors import MachineError
from outrider.core.files import write_private
from outrider.core.processes import Child, usable_user
from outrider.core.tasks import uninterrupted
from outrider.isolation import seccomp
from outrider.pool.sandbox import resident

BUILD_SECONDS = 20.0
GONE_SECONDS = 10.0
USER = 1000
"""The user as it sees itself."""

SPARE_IDS = 0x18000000
"""Above any account: the user of a sandbox is, outside, this number plus the number of its first process."""

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
_RESIDENT = Path(resident.__file__)

_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "machine", "--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL"),
)
_ONE_USER = ("--uid", str(USER), "--gid", str(USER))
_SETTING_USERS = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types")
_ACCOUNTS = {
    "passwd": f"root:x:0:0::/:/usr/sbin/nologin\nuser:x:{USER}:{USER}::{resident.HOME}:/bin/sh\n",
    "group": f"root:x:0:\nuser:x:{USER}:\n",
    "hosts": "127.0.0.1 localhost machine\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_VARIABLES = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": resident.HOME,
    "USER": "user",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108 the sandbox's own
}
_CHILD_PID = re.compile(rb'"child-pid"\s*:\s*(\d+)[^}]*\}')


class Bounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox may use."""

    disk_bytes: SomeBytes = 256 * 2**20
    """For each of home, /tmp and shared memory; they lie in memory, and take of it what they hold."""

    n_processes: PositiveCount = 512
    """Processes and threads. Holds where root makes the sandbox; else the account's own limit does."""

    def __post_init__(self) -> None:
        check_bounds(self)


class FirstProcess:
    """The first process of a sandbox, held by a descriptor: `ended` is set when all in the sandbox have ended."""

    def __init__(self, pid: int) -> None:
        """Raises `ProcessLookupError` if there is none."""
        self.pid = pid
        self.ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.ended.set()

    async def kill(self) -> None:
        """End the sandbox; nothing in it runs when this returns."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self.ended.wait()
        except TimeoutError as exc:
            raise MachineError(f"sandbox {self.pid} does not end though it was killed", stage="machine.end") from exc


class Sandbox(NamedTuple):
    """A resident that is ready. `process` is bubblewrap's own, where we have started it."""

    first: FirstProcess
    process: Child | None = None

    async def end(self) -> None:
        await self.first.kill()
        if self.process is not None:
            async with asyncio.timeout(GONE_SECONDS):
                await self.process.wait()


def bubblewrap() -> str | None:
    return shutil.which("bwrap")


async def build(folder: Path, bounds: Bounds) -> Sandbox:
    """A new sandbox whose resident listens at `folder`/socket. Cancelling leaves nothing."""
    built: list[Sandbox] = []
    try:
        # killed while it starts, bubblewrap leaves a process behind that waits for it forever
        await uninterrupted(_build(folder, bounds, built))
    except BaseException:
        for sandbox in built:
            await uninterrupted(sandbox.end())
        raise
    return built[0]


async def _build(folder: Path, bounds: Bounds, built: list[Sandbox]) -> None:
    program = bubblewrap()
    if program is None:
        raise MachineError("bubblewrap is not installed", stage="machine.create")
    with ExitStack() as owned:
        info, info_end = _pair(owned)
        talk, talk_end = _pair(owned)
        errors, errors_end = _pair(owned)
        go, go_end = _pair(owned)
        listener = owned.enter_context(socket.socket(socket.AF_UNIX))
        (folder / "socket").unlink(missing_ok=True)
        listener.bind(str(folder / "socket"))
        maps_users = spare_user(0) is not None
        options = ["--info-fd", str(info_end.fileno())]
        options += ["--userns-block-fd", str(go_end.fileno()), *_SETTING_USERS] if maps_users else _ONE_USER
        given = [info_end.fileno(), go_end.fileno(), listener.fileno()]
        shown = (*_system(folder), *_private(bounds), *filtered(owned, given))
        command = [program, *_NAMESPACES, *options, *shown, "--", PYTHON, "-I", "-S", "/resident.py"]
        process = Child(
            [*command, str(listener.fileno())],
            stdin=talk_end.fileno(),
            stdout=talk_end.fileno(),
            stderr=errors_end.fileno(),
            given=given,
        )
        for end in (info_end, talk_end, errors_end, go_end, listener):
            end.close()
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                built.append(
                    await _finish(folder, bounds, process, info=info, talk=talk, go=go if maps_users else None)
                )
        except (OSError, TimeoutError, EOFError) as exc:
            said = await _said(errors)
            raise MachineError(f"the sandbox could not be built: {said or exc}", stage="machine.create") from exc
        finally:
            if not built:
                for end in (talk, go):
                    end.close()
                await process.ended(GONE_SECONDS)  # it does for want of its orders


async def _finish(
    folder: Path,
    bounds: Bounds,
    process: Child,
    *,
    info: socket.socket,
    talk: socket.socket,
    go: socket.socket | None,
) -> Sandbox:
    loop = asyncio.get_running_loop()
    told = b""
    while not (found := _CHILD_PID.search(told)):
        told += await _more(info)
    pid = int(found[1])
    first = FirstProcess(pid)
    try:
        if go is not None:
            _map_users(pid)
            await loop.sock_sendall(go, b"\n")
        note(folder, pid=pid)
        limits = {"RLIMIT_CORE": 0} | ({} if go is None else {"RLIMIT_NPROC": bounds.n_processes})
        orders = {"user": None if go is None else USER, "limits": limits}
        await loop.sock_sendall(talk, json.dumps(orders).encode() + b"\n")
        await _more(talk)
    except BaseException:
        await first.kill()
        raise
    return Sandbox(first, process)


def _map_users(pid: int) -> None:
    """Root inside is root outside, for the resident; the user inside is nobody outside."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{USER} {spare_user(pid)} 1\n")


def note(folder: Path, **facts: object) -> None:
    """Keep facts about a machine beside it, all or nothing."""
    new = folder / "facts.new"
    write_private(new, json.dumps(noted(folder) | facts))
    reached("machine.noted")
    new.replace(folder / "facts.json")


def noted(folder: Path) -> dict[str, object]:
    try:
        return dict(json.loads((folder / "facts.json").read_bytes()))
    except (OSError, ValueError):
        return {}


def resident_of(folder: Path) -> int | None:
    """The process that listens there, as the kernel tells, even if it hangs; None: nobody does."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(folder / "socket"))
        except OSError:
            return None
        return int.from_bytes(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)


def filtered(owned: ExitStack, given: list[int]) -> Iterator[str]:
    """The seccomp filter of machines, where there is one for this processor."""
    if (program := seccomp.filter_program(seccomp.Profile.MACHINE)) is not None:
        yield from ("--seccomp", content(program, owned, given))


def content(content: bytes, owned: ExitStack, given: list[int]) -> str:
    """A descriptor from which bubblewrap can read it; it is added to those that bubblewrap shall be given."""
    file = owned.enter_context(os.fdopen(os.memfd_create("content"), "w+b"))
    file.write(content)
    file.flush()
    file.seek(0)
    given.append(file.fileno())
    return str(file.fileno())


def spare_user(pid: int) -> int | None:
    """A user of its own for a sandbox that root makes; None: we are not root, or have no other users."""
    return usable_user(SPARE_IDS + pid)


def _pair(owned: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return owned.enter_context(ours), owned.enter_context(theirs)


async def _more(source: socket.socket) -> bytes:
    if not (more := await asyncio.get_running_loop().sock_recv(source, 4096)):
        raise EOFError("bubblewrap or its resident ended")
    return more


async def _said(errors: socket.socket) -> str:
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(1):
            said = await asyncio.get_running_loop().sock_recv(errors, 4096)
            return said.decode(errors="replace").strip()
    return ""


def _system(folder: Path) -> Iterator[str]:
    """What is visible of the host: its programs, the interpreter that runs us, a few settings."""
    for path in map(Path, _PROGRAMS):
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))  # noqa: PTH115 as it is written, not resolved
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))
    if not sys.base_prefix.startswith("/usr"):
        for parent in reversed(Path(sys.base_prefix).parents[:-1]):
            yield from ("--dir", str(parent))  # else bubblewrap makes it for itself alone
        yield from ("--ro-bind", sys.base_prefix, sys.base_prefix)
    yield from ("--dir", "/etc")
    for name in _SETTINGS:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name, content in _ACCOUNTS.items():
        path = folder / name
        path.write_text(content)
        path.chmod(0o644)
        yield from ("--ro-bind", str(path), f"/etc/{name}")
    yield from ("--ro-bind", str(_RESIDENT), "/resident.py")


def _private(bounds: Bounds) -> Iterator[str]:
    yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")  # noqa: S108
    yield from ("--dir", "/run", "--dir", "/home")
    for place, mode in ((resident.HOME, "0777"), ("/tmp", "1777"), ("/dev/shm", "1777")):  # noqa: S108 its own
        yield from ("--perms", mode, "--size", str(bounds.disk_bytes), "--tmpfs", place)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", resident.HOME)
    for name, value in _VARIABLES.items():
        yield from ("--setenv", name, value)

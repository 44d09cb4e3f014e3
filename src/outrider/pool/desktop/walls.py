"""Walls by bubblewrap around a desktop: own namespaces of every kind, the host's programs read-only, files in memory.

Invariants:
- All that a desktop has is its processes: its files are in their memory, so nothing is left when they have ended.
- It ends with the process that made it: the kernel kills bubblewrap, and with it the first process of the namespace.
- When the control program ends, the first process does, and the kernel ends all others.
- Should any of it stay behind, such as a bubblewrap that was killed in the middle, its command line tells whose it was.
"""

import asyncio
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import NamedTuple

from msgspec import Struct

from outrider.core.errors import MachineError
from outrider.core.processes import Child
from outrider.pool.desktop import inside
from outrider.pool.sandbox.walls import (
    GONE_SECONDS,
    PYTHON,
    USER,
    FirstProcess,
    bubblewrap,
    content,
    filtered,
    spare_user,
)

BUILD_SECONDS = 20.0
LABEL = "OUTRIDER_DESKTOP"
"""The word, on the command lines of the first processes, after which owner and machine are told."""

_INSIDE = Path(inside.__file__).parent
_ROOT = "/outrider"
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from outrider.pool.desktop.inside.control import main; main()"
_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "desktop", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
)
_ONE_USER = ("--uid", str(USER), "--gid", str(USER))
_SETTING_USERS = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DATA = ("/var/cache/fontconfig", "/var/lib/xkb", "/var/lib/ghostscript/fonts")
_SETTINGS = (
    *("alternatives", "bash.bashrc", "chromium", "fonts", "gtk-2.0", "gtk-3.0", "inputrc", "ld.so.cache"),
    *("ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nanorc", "terminfo", "vim", "X11", "xdg"),
)
_CHROMIUM = "--no-sandbox --no-first-run --disable-gpu --password-store=basic --test-type"
"""Its own sandbox needs namespaces, of which there are none within these walls."""

_FILES = {
    "chromium.d/desktop": f'export CHROMIUM_FLAGS="$CHROMIUM_FLAGS {_CHROMIUM}"\n',
    "passwd": f"root:x:0:0::/:/usr/sbin/nologin\nuser:x:{USER}:{USER}:User:/home/user:/bin/bash\n",
    "group": f"root:x:0:\nuser:x:{USER}:\n",
    "hosts": "127.0.0.1 localhost desktop\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_CHILD_PID = re.compile(rb'"child-pid"\s*:\s*(\d+)[^}]*\}')
_PREFERRED_VICTIM = "800"


class Shape(Struct, frozen=True, kw_only=True):
    """How a desktop is made."""

    width: int
    height: int
    disk_bytes: int
    """For each of home, /tmp, /run and shared memory; they lie in memory, and take of it what they hold."""
    shown: tuple[str, ...] = ()
    """Folders of the host that are seen inside, besides the system's own; nothing can be written there."""


class Walls(NamedTuple):
    """A control program that was started, what holds it, and the line to it."""

    first: FirstProcess
    process: Child
    line: socket.socket

    async def end(self) -> None:
        """Nothing of it runs when this returns."""
        try:
            await self.first.kill()
            await self.process.ended(GONE_SECONDS)
        finally:
            self.line.close()


async def build(shape: Shape, label: str) -> Walls:
    """Start a control program. Not to be cancelled: killed while it starts, bubblewrap leaves a process behind."""
    program = bubblewrap()
    if program is None:
        raise MachineError("bubblewrap is not installed", stage="machine.create")
    with ExitStack() as owned:
        line, line_end = _pair(owned)
        info, info_end = _pair(owned)
        go, go_end = _pair(owned)
        errors = owned.enter_context(os.fdopen(os.memfd_create("errors"), "rb"))
        maps_users = spare_user(0) is not None
        options = [*_NAMESPACES, "--info-fd", str(info_end.fileno())]
        options += ["--userns-block-fd", str(go_end.fileno()), *_SETTING_USERS] if maps_users else _ONE_USER
        given = [line_end.fileno(), info_end.fileno(), go_end.fileno()]
        options += list(_system(shape, owned, given))
        told = content("\0".join(options).encode(), owned, given)
        orders = (line_end.fileno(), f"{shape.width}x{shape.height}", USER if maps_users else "-", PYTHON)
        start = [PYTHON, "-I", "-S", "-c", _START, *map(str, orders)]
        command = [program, "--args", told, "--", *start, LABEL, label]
        process = Child(command, stdin=DEVNULL, stdout=DEVNULL, stderr=errors.fileno(), given=given)
        for end in (line_end, info_end, go_end):
            end.close()
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                first = await _first_process(info)
            _prefer_as_victim(first.pid)
            if maps_users:
                _map_users(first.pid)
                go.send(b"\n")
        except (OSError, TimeoutError, EOFError) as exc:
            for end in (line, go):
                end.close()
            await process.ended(GONE_SECONDS)  # it does for want of its orders
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise MachineError(
                f"the desktop's walls could not be built: {said or exc}", stage="machine.create"
            ) from exc
        return Walls(first, process, socket.socket(fileno=line.detach()))


def _system(shape: Shape, owned: ExitStack, given: list[int]) -> Iterator[str]:
    """What is seen inside. Descriptors that bubblewrap shall get for it are added to `given`."""
    yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/etc", "--dir", "/etc/chromium.d", "--dir", "/var")
    yield from ("--dir", "/var/cache", "--dir", "/var/lib", "--symlink", "/tmp", "/var/tmp")  # noqa: S108 its own
    for folder in ("/home", "/tmp", "/run", "/dev/shm"):  # noqa: S108 its own
        yield from ("--perms", "1777", "--size", str(shape.disk_bytes), "--tmpfs", folder)
    yield from ("--perms", "1777", "--dir", "/tmp/.X11-unix")  # noqa: S108 the X server makes none unless it is root
    yield from _host(shape)
    for name, text in _FILES.items():
        yield from ("--perms", "0644", "--ro-bind-data", content(text.encode(), owned, given), f"/etc/{name}")
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/")
    yield from filtered(owned, given)


def _host(shape: Shape) -> Iterator[str]:
    """What is seen of the host, read-only."""
    for program in map(Path, _PROGRAMS):
        if program.is_symlink():
            yield from ("--symlink", os.readlink(program), str(program))  # noqa: PTH115 as it is written, not resolved
        elif program.exists():
            yield from ("--ro-bind", str(program), str(program))
    for path in (*_DATA, *(f"/etc/{name}" for name in _SETTINGS)):
        yield from ("--ro-bind-try", path, path)
    place = f"{_ROOT}/{inside.__name__.replace('.', '/')}"
    shown = [(str(_INSIDE), place), *((path, path) for path in shape.shown)]
    if not sys.base_prefix.startswith("/usr"):
        shown.append((sys.base_prefix, sys.base_prefix))
    for outside, path in shown:
        for parent in reversed(Path(path).parents[:-1]):
            yield from ("--dir", str(parent))  # else bubblewrap makes it for itself alone
        yield from ("--ro-bind", outside, path)


def _pair(owned: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return owned.enter_context(ours), owned.enter_context(theirs)


async def _first_process(info: socket.socket) -> FirstProcess:
    """The first process of the new namespace, as bubblewrap tells."""
    told = b""
    while not (found := _CHILD_PID.search(told)):
        more = await asyncio.get_running_loop().sock_recv(info, 4096)
        if not more:
            raise EOFError("bubblewrap did not start")
        told += more
    return FirstProcess(int(found[1]))


def _prefer_as_victim(pid: int) -> None:
    """When the host runs out of memory, the kernel shall end the desktop first."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_PREFERRED_VICTIM)


def _map_users(pid: int) -> None:
    """Root inside is root outside, until the control program has become the user, who is nobody outside."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{USER} {spare_user(pid)} 1\n")

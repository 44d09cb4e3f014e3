"""Walls by bubblewrap: own namespaces of every kind, a file system that holds Python and nothing else.

Invariants:
- There is no /proc inside, and nothing of the host but system libraries and the standard library, read-only.
- The program's user is nobody else's, so that limits on processes bind it even if root started it.
- All processes are below the first process of one process namespace: when that ends, the kernel has ended them all.
- The launcher gets its orders only when we hold that first process by a descriptor.
"""

import asyncio
import os
import re
import shutil
import signal
import site
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from outrider.core.errors import EnvError
from outrider.core.processes import Child, gone
from outrider.core.tasks import uninterrupted
from outrider.env.sandbox.census import family
from outrider.env.sandbox.enclosure import (
    GONE_SECONDS,
    LAUNCHER,
    LAUNCHER_OPTIONS,
    PYTHON,
    Enclosure,
    Mechanism,
    Streams,
    spare_user,
    spawn,
)
from outrider.env.sandbox.pipes import Descriptors, read
from outrider.env.sandbox.program import Limits
from outrider.isolation import seccomp

BUILD_SECONDS = 20.0
FOLDER = "/tmp"  # noqa: S108 the sandbox's own
USER = 1000
"""The program's user as it sees itself."""

_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
)
_ONE_USER = ("--uid", str(USER), "--gid", str(USER))
_SETTING_USERS = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_CHILD_PID = re.compile(rb'"child-pid"\s*:\s*(\d+)[^}]*\}')


class BubblewrapEnclosure(Enclosure):
    """A process namespace, held by its first process."""

    folder = FOLDER
    filter = None
    keeps_orphans = False

    def __init__(self, process: Child, ancestor: int, go: int | None) -> None:
        """`go` is what bubblewrap has waited on before it used our map of users, and left open."""
        self.ancestor = ancestor
        self.user = None if go is None else USER
        self.strays = () if go is None else (go,)
        self.n_own_processes = 2 if go is None else 0
        self._process = process
        self._owned = Descriptors()
        self._first = self._owned.add(os.pidfd_open(ancestor))
        self._folder: int | None = None

    def settle(self) -> None:
        for pid in reversed(family(self.ancestor)):
            with suppress(OSError):
                place = f"/proc/{pid}/root{FOLDER}"
                self._folder = self._owned.add(os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                return
        raise EnvError("the sandbox's folder cannot be watched from outside", stage="sandbox")

    def n_files(self) -> int:
        assert self._folder is not None
        held = os.statvfs(self._folder)
        return held.f_files - held.f_ffree

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)

    async def close(self) -> None:
        self.kill()
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await gone(self._first)
                await self._process.wait()
        except TimeoutError as exc:
            raise EnvError("the sandbox does not end though it was killed", stage="sandbox") from exc
        finally:
            self._owned.close_all()


class Bubblewrap(Mechanism):
    """Builds walls with the program `bwrap`."""

    def __init__(self, program: str = "bwrap") -> None:
        self._program = program
        self._filter = seccomp.filter_program(seccomp.Profile.PROGRAM)
        self._system = tuple(_system())
        self.name = "bubblewrap" if self._filter else "bubblewrap (no seccomp filter)"

    @asynccontextmanager
    async def enclose(self, streams: Streams, limits: Limits) -> AsyncIterator[Enclosure]:
        program = shutil.which(self._program)
        if program is None:
            raise EnvError("bubblewrap is not installed", stage="sandbox")
        built: list[BubblewrapEnclosure] = []
        try:
            # killed while it starts, bubblewrap leaves a process behind that waits for it forever
            await uninterrupted(self._build(program, streams, limits, built))
            yield built[0]
        finally:
            for enclosure in built:
                await uninterrupted(enclosure.close())

    async def _build(self, program: str, streams: Streams, limits: Limits, built: list[BubblewrapEnclosure]) -> None:
        with Descriptors() as owned:
            info, info_end = owned.pipe()
            go, go_end = owned.feeding_pipe()
            given = {"--info-fd": info_end}
            if self._filter is not None:
                given["--seccomp"] = _content(self._filter, owned)
            if maps_users := spare_user(0) is not None:
                given["--userns-block-fd"] = go
            options = [word for option, descriptor in given.items() for word in (option, str(descriptor))]
            options += _SETTING_USERS if maps_users else _ONE_USER
            command = [program, *_NAMESPACES, *options, *self._system, *_private(limits), *_launch(streams)]
            process = spawn(command, streams, *given.values())
            owned.close(*given.values())
            try:
                async with asyncio.timeout(BUILD_SECONDS):
                    ancestor = await _first_process(info)
                if maps_users:
                    _map_users(ancestor)
                    os.write(go_end, b"\n")
                built.append(BubblewrapEnclosure(process, ancestor, go if maps_users else None))
            finally:
                if not built:
                    owned.close_all()
                    await process.ended(GONE_SECONDS)  # it does for want of its pipes


def _content(content: bytes, owned: Descriptors) -> int:
    """A descriptor from which it can be read, once."""
    reading, writing = owned.feeding_pipe()
    os.write(writing, content)
    owned.close(writing)
    return reading


def _system() -> Iterator[str]:
    """What is visible of the host: system libraries, the interpreter, its standard library, a few devices."""
    shown: list[Path] = []
    made: set[Path] = set()

    def show(path: str, *option: str) -> Iterator[str]:
        for folder in reversed(Path(path).parents):
            if folder not in made and not _lies_in(folder, shown):
                made.add(folder)
                yield from ("--dir", str(folder))  # else bubblewrap makes it for itself alone
        yield from (*option, path)

    for path in (*_libraries(), PYTHON, *_DATA):
        if Path(path).is_symlink():
            yield from show(path, "--symlink", os.readlink(path))  # noqa: PTH115 as it is written, not resolved
        elif Path(path).exists() and not _lies_in(Path(path), shown):
            yield from show(path, "--ro-bind", path)
            shown.append(Path(path))
    for path in site.getsitepackages([sys.base_prefix]):
        if Path(path).is_dir() and _lies_in(Path(path), shown):
            yield from ("--tmpfs", path, "--remount-ro", path)
    for path in _DEVICES:
        yield from show(path, "--dev-bind", path)
    yield from ("--symlink", FOLDER, "/dev/shm")  # noqa: S108 shared memory lies in the bounded folder too
    yield from ("--ro-bind", str(LAUNCHER), f"/{LAUNCHER.name}")


def _lies_in(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _libraries() -> Iterator[str]:
    """Where the shared libraries of the system lie, and Python's own."""
    kind = sysconfig.get_config_var("MULTIARCH")
    for place in ("/usr/lib", "/lib"):
        if Path(place).is_symlink() or not Path(f"{place}/{kind}").is_dir():
            yield place
        else:
            yield f"{place}/{kind}"
    yield from ("/usr/lib64", "/lib64")
    bases = {"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    for name in ("stdlib", "platstdlib"):
        yield sysconfig.get_path(name, vars=bases)
    if sys.base_prefix.startswith("/usr"):
        yield f"{sys.base_prefix}/lib/{sysconfig.get_config_var('INSTSONAME')}"
    else:
        yield f"{sys.base_prefix}/lib"


def _private(limits: Limits) -> tuple[str, ...]:
    folder = ("--perms", "1777", "--size", str(limits.tmp_bytes), "--tmpfs", FOLDER)
    return (*folder, "--chdir", FOLDER, "--remount-ro", "/")


def _launch(streams: Streams) -> tuple[str, ...]:
    return ("--", PYTHON, *LAUNCHER_OPTIONS, f"/{LAUNCHER.name}", str(streams.report))


async def _first_process(info: int) -> int:
    """The first process of the new namespace, as bubblewrap tells."""
    told = b""
    while not (found := _CHILD_PID.search(told)):
        if not (more := await read(info)):
            raise EnvError("bubblewrap did not start", stage="sandbox")
        told += more
    return int(found[1])


def _map_users(pid: int) -> None:
    """Root inside is root outside, until the launcher has become the program's user, who is nobody outside."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{USER} {spare_user(pid)} 1\n")

"""Where a pool is found on its host: a folder of its name, with a lock, what it is made of, and its socket.

Invariants:
- One living process has a name: it holds the lock, which the kernel takes from it when it dies.
- What is needed to clean up after a pool that was killed stands here until it is cleaned up.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.files import write_private
from outrider.pool.spec import MachineSpec

_FACTS, _LOCK, _SOCKET = "pool.json", "lock", "socket"
_DIGEST_CHARACTERS = 16
_TRIES = 3
_TRY_AGAIN_SECONDS = 0.05


class PoolFacts(Struct, frozen=True, kw_only=True):
    """What a process must know to take over the pool or to end what is left of it. Holds no secret."""

    name: str
    machines: MachineSpec
    n_machines: int
    pid: int


class PoolPlace:
    """The folder of one name. Its path is short, since those of sockets must be."""

    def __init__(self, name: str, *, root: Path | None = None) -> None:
        self.name = name
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        self.folder = (root or default_root()) / digest
        self._descriptor: int | None = None

    @property
    def socket(self) -> Path:
        return self.folder / _SOCKET

    def facts(self) -> PoolFacts | None:
        """Of the pool that has, or had, this name here; None: there is none, or it has not come that far."""
        with suppress(OSError, msgspec.MsgspecError):
            return from_json((self.folder / _FACTS).read_bytes(), PoolFacts)
        return None

    def claim(self, machines: MachineSpec, n_machines: int) -> None:
        """Be the pool of this name on this host; `InvalidInput` if another process is."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(self.folder.parent)
        for is_last in (False,) * _TRIES + (True,):
            if self._lock(is_last=is_last):
                break
            time.sleep(_TRY_AGAIN_SECONDS)  # its owner is about to go, or somebody looks whether it is alive
        self.socket.unlink(missing_ok=True)
        facts = PoolFacts(name=self.name, machines=machines, n_machines=n_machines, pid=os.getpid())
        written = self.folder / f"{_FACTS}.new"
        write_private(written, msgspec.json.encode(facts))
        written.replace(self.folder / _FACTS)

    def is_alive(self) -> bool:
        """Whether a process holds the name."""
        try:
            descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def leave(self, *, forget: bool = True) -> None:
        """Let go of the name. `forget`: nothing is left to be cleaned up."""
        if self._descriptor is None:
            return
        if forget:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self.socket.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None
        with suppress(OSError):
            self.folder.parent.rmdir()

    def _lock(self, *, is_last: bool) -> bool:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                self._descriptor = descriptor
        except (BlockingIOError, FileNotFoundError):
            if is_last:
                raise InvalidInput(
                    f"{self._owner()} on this host has the pool {self.name!r} already; wait for its end, or give "
                    "another name"
                ) from None
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return self._descriptor is not None

    def _owner(self) -> str:
        facts = self.facts()
        return "another process" if facts is None else f"process {facts.pid}"


def default_root() -> Path:
    return Path(tempfile.gettempdir()) / f"outrider-pools-{os.geteuid()}"


def pools_on_host(*, root: Path | None = None) -> Iterator[PoolFacts]:
    """All pools that are, or were and have left something, on this host."""
    folder = root or default_root()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError, msgspec.MsgspecError):
            yield from_json((path / _FACTS).read_bytes(), PoolFacts)


def _check_owner(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InvalidInput(f"{folder} belongs to somebody else or is open to others; remove it, or set TMPDIR")

"""The virtual machines of the stand-ins: a folder each, with a disk and snapshots; the guest is a real local machine.

The standard library alone, since each call of a command line imports it anew.
"""

import hashlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

STATE = "OUTRIDER_STAND_IN"
"""Names the folder in which the stand-ins keep what they know; `host` in it is where guests are started."""

FAULT = "OUTRIDER_STAND_IN_FAULT"
"""What shall go wrong: `no boot` (guests have no address), `dies` (guests end at once), `hangs` (start never
ends), `stays` (it cannot be stopped)."""

STOP_SECONDS = 1.0
LOOK_SECONDS = 0.01


def state() -> Path:
    return Path(os.environ[STATE])


def fail(message: str, status: int, *, stream: Any = sys.stdout) -> NoReturn:
    print(message, file=stream)
    raise SystemExit(status)


class Vm:
    """`key` is what the product knows it by."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self._disk = folder / "disk.tar"
        self._address = folder / "address"
        self._run = state() / "running" / hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def pid(self) -> int | None:
        """Of its guest, if it runs."""
        with suppress(OSError, ValueError):
            pid = int(json.loads(self._run.read_text())["pid"])
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return pid
        return None

    @property
    def address(self) -> str | None:
        """Of its guest, as soon as that is up."""
        with suppress(OSError):
            return self._address.read_text() if self.pid else None
        return None

    def wait_for_address(self, seconds: float) -> str | None:
        end = time.monotonic() + seconds
        while self.address is None and self.pid and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        return self.address

    @property
    def snapshots(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "snapshots").iterdir())

    def take_snapshot(self, name: str) -> None:
        place = self.folder / "snapshots" / name
        place.mkdir(parents=True)
        if self._disk.exists():
            shutil.copy(self._disk, place)

    def revert(self, name: str) -> None:
        self.stop()
        self._disk.unlink(missing_ok=True)
        self._copy_disk(self.folder / "snapshots" / name)

    def clone(self, folder: Path, snapshot: str, key: str) -> "Vm":
        (folder / "snapshots").mkdir(parents=True)
        made = Vm(folder, key)
        made._copy_disk(self.folder / "snapshots" / snapshot)
        return made

    def _copy_disk(self, place: Path) -> None:
        if (place / "disk.tar").exists():
            shutil.copy(place / "disk.tar", self._disk)

    def start(self) -> None:
        self._address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as host:
            host.connect(str(state() / "host"))
            places = (str(state().parent / "machines"), str(self._disk), str(self._address))
            host.sendall(json.dumps([*places, os.environ.get(FAULT, "")]).encode())
            pid = int(host.recv(100))
        note(self._run, {"pid": pid, "key": self.key})
        while os.environ.get(FAULT) == "hangs":
            time.sleep(1)

    def stop(self) -> None:
        """What is on its disk stays there, unless it hangs."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                if not select.select([descriptor], [], [], STOP_SECONDS)[0]:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [], STOP_SECONDS)
        self._run.unlink(missing_ok=True)


def write_down(words: list[str]) -> None:
    """So that a test can read what was called."""
    with (state() / "calls").open("a") as file:
        file.write(json.dumps(words) + "\n")


def stays() -> bool:
    return os.environ.get(FAULT) == "stays"


def note(place: Path, fact: dict[str, Any]) -> None:
    """Write a fact into a file, which others find whole or not at all."""
    place.parent.mkdir(exist_ok=True)
    begun = state() / f"{os.getpid()}.{threading.get_ident()}"
    begun.write_text(json.dumps(fact))
    begun.rename(place)


def noted(folder: Path) -> list[Any]:
    """The facts in a folder, but for those that are taken away meanwhile."""
    facts = []
    for place in sorted(folder.glob("*")):
        with suppress(FileNotFoundError):
            facts.append(json.loads(place.read_text()))
    return facts


def running() -> list[str]:
    """The keys of all machines that run."""
    keys = [fact["key"] for fact in noted(state() / "running")]
    return sorted(key for key in keys if Vm(Path(), key).pid)

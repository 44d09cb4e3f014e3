"""The stand-ins set up for a test: a host that starts guests, an image with a snapshot, nothing left at the end."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from hypervisor_stand_ins import vboxmanage_program
from hypervisor_stand_ins.machines import STATE, Vm, noted, running, state
from processes import line

PROGRAMS = Path(__file__).parent
SNAPSHOT = "init_state"
IMAGE = "osworld"
MEMORY_MB = 16


@pytest.fixture(scope="session")
def guest_host() -> Iterator[Path]:
    """Where guests are started, by a process that is warm."""
    with tempfile.TemporaryDirectory(prefix="oh-") as folder:
        place = Path(folder) / "host"
        paths = os.pathsep.join((str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, str(PROGRAMS / "host.py"), str(place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}) as it:
            try:
                assert line(it) == "ready"
                yield place
            finally:
                it.kill()


@contextmanager
def product(folder: Path, host: Path) -> Iterator[Path]:
    """The folder in which the stand-ins keep their state, in the environment while the block runs."""
    place = folder / "state"
    place.mkdir()
    (place / "host").symlink_to(host)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # the programs run by our Python
    with patch.dict(os.environ, {STATE: str(place), "PATH": path}):
        try:
            yield place
        finally:
            for key in running():
                Vm(Path(), key).stop()
            shutil.rmtree(place)


def vmware_image(folder: Path, *, snapshots: tuple[str, ...] = (SNAPSHOT,), memory_mb: int = MEMORY_MB) -> Path:
    """A .vmx file."""
    image = folder / f"{IMAGE}.vmx"
    _fill(folder, snapshots)
    image.write_text(f'.encoding = "UTF-8"\nmemsize = "{memory_mb}"\ndisplayName = "{IMAGE}"\n')
    return image


def virtualbox_image(folder: Path, *, snapshots: tuple[str, ...] = (SNAPSHOT,), memory_mb: int = MEMORY_MB) -> str:
    """The name of a registered machine."""
    _fill(folder, snapshots)
    vboxmanage_program.register(IMAGE, folder, memory_mb)
    return IMAGE


def guest_pid(vm: str) -> int:
    """The process without which a machine is dead."""
    key = vm if vm.endswith(".vmx") else vboxmanage_program.fact_of(vm)["uuid"]
    (pid,) = (fact["pid"] for fact in noted(state() / "running") if fact["key"] == key)
    return int(pid)


def calls() -> list[list[str]]:
    """What the command lines were called with."""
    return [json.loads(text) for text in (state() / "calls").read_text().splitlines()]


def _fill(folder: Path, snapshots: tuple[str, ...]) -> None:
    (folder / "snapshots").mkdir(parents=True)
    for name in snapshots:
        (folder / "snapshots" / name).mkdir()

"""How long each kind of machine takes to be made and to be reset, one at a time, as the pool does it."""

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.provider import Provider, RunningMachine
from outrider.pool.providers.browser import BrowserProvider
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.docker import DockerProvider, DockerSettings
from outrider.pool.providers.process import ProcessProvider
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings, Reset
from outrider.pool.qemu.build import build
from pooling.host import memory_mb

OWNER = f"bench-{os.getpid()}"
N_MADE = 3
MIB = 2**20

Stage = Callable[[Path], AbstractContextManager[Provider]]
"""What is needed around a provider; it may keep things in the folder, whose path is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Of one kind; seconds, one for each time."""

    first_create_seconds: float
    """With what is done once only, such as booting the machine that others are clones of."""
    create_seconds: list[float]
    reset_seconds: list[float]
    """Marker, reset, and the proof that it is clean and answers."""
    bare_reset_seconds: list[float]
    memory_mb: float | None
    """The proportional share of an idle machine's processes; None if they are not this process's to count."""


class NotHere(Exception):
    """This kind cannot be run here; says why."""


async def time_kind(stage: Stage, n_resets: int) -> Timings:
    """`NotHere` if there is no such machine on this host."""
    with tempfile.TemporaryDirectory(prefix="ob-") as folder:
        try:
            with stage(Path(folder)) as provider:
                try:
                    await provider.check(1)
                    return await _time(provider, n_resets)
                finally:
                    await provider.close()
        except (InvalidInput, MachineError) as exc:
            raise NotHere(str(exc)) from exc


async def _time(provider: Provider, n_resets: int) -> Timings:
    numbers = itertools.count(1)

    async def made() -> tuple[RunningMachine, float]:
        began = time.perf_counter()
        machine = await provider.create(f"m{next(numbers)}", OWNER)
        return machine, time.perf_counter() - began

    first, first_seconds = await made()
    await first.destroy()
    machines, creates = [], []
    try:
        for _ in range(N_MADE):
            machine, seconds = await made()
            machines.append(machine)
            creates.append(seconds)
        pid = machines[0].address.get("pid")
        memory = memory_mb(pid) if isinstance(pid, int) else None
        resets = [await _time_reset(machines[0], f"mark{number}") for number in range(n_resets)]
    finally:
        await asyncio.gather(*(machine.destroy() for machine in machines))
    return Timings(
        first_create_seconds=first_seconds,
        create_seconds=creates,
        reset_seconds=[whole for whole, _ in resets],
        bare_reset_seconds=[bare for _, bare in resets],
        memory_mb=memory,
    )


async def _time_reset(machine: RunningMachine, marker: str) -> tuple[float, float]:
    began = time.perf_counter()
    await machine.plant(marker)
    bare_began = time.perf_counter()
    await machine.reset()
    bare = time.perf_counter() - bare_began
    if await machine.has(marker):
        raise AssertionError("a reset has left what was there")
    await machine.probe()
    return time.perf_counter() - began, bare


@contextmanager
def _process(folder: Path) -> Iterator[Provider]:
    yield ProcessProvider(folder=folder / "p")


@contextmanager
def _desktop(_: Path) -> Iterator[Provider]:
    yield DesktopProvider(width=1280, height=800)


@contextmanager
def _browser(folder: Path) -> Iterator[Provider]:
    yield BrowserProvider(folder=folder / "b")


def _qemu(reset: Reset) -> Stage:
    @contextmanager
    def stage(folder: Path) -> Iterator[Provider]:
        image = build(folder / "image")
        yield QemuProvider(
            QemuSettings(image=image.folder, reset=reset, folder=str(folder / "q"), accelerator=Accelerator.TCG)
        )

    return stage


@contextmanager
def _docker(_: Path) -> Iterator[Provider]:
    """An engine of our own, as the tests start it."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("dockerd", "containerd", "busybox")):
        raise InvalidInput("an engine is started by root, with the packages docker.io and busybox-static")
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from docker_engine import IMAGE, DockerEngine  # noqa: PLC0415 it brings pytest along

    engine = DockerEngine(Path(tempfile.mkdtemp(prefix="od-")))
    try:
        engine.start()
        engine.add_image()
        yield DockerProvider(IMAGE, DockerSettings(socket=str(engine.socket), memory_bytes=64 * MIB))
    finally:
        engine.stop()
        engine.remove()


KINDS: dict[str, Stage] = {
    "process": _process,
    "desktop": _desktop,
    "browser": _browser,
    "qemu clone (TCG, plain guest)": _qemu(Reset.CLONE),
    "qemu loadvm (TCG, plain guest)": _qemu(Reset.LOADVM),
    "docker": _docker,
}

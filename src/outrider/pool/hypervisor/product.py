"""What a product's command line must be able to do, and the settings that all products share."""

import shutil
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from outrider.core.bounds import Port, PositiveSeconds, check_bounds
from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.pool.osworld_protocol.client import DEFAULT_PORT
from outrider.pool.osworld_protocol.machine import PROBE_SECONDS
from outrider.pool.programs import output_of

DEFAULT_SNAPSHOT = "init_state"


class HypervisorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How machines are made of the image, and how long things may take."""

    program: str | None = None
    """The command line: a path, or a name that is looked up in PATH. None: the product's own name for it."""

    folder: str | None = None
    """Where clones are kept. None: a folder in this user's cache. Pools that share an image must share it."""

    clone: bool = True
    """Whether machines are clones of the image; else the image itself is the one machine there is."""

    port: Port = DEFAULT_PORT
    """Where OSWorld's server answers in the guest."""

    boot_seconds: PositiveSeconds = 300.0
    """How long a guest may take, from its start, until its server answers."""

    command_seconds: PositiveSeconds = 120.0
    """How long the command line may take for anything else."""

    probe_seconds: PositiveSeconds = PROBE_SECONDS

    def __post_init__(self) -> None:
        check_bounds(self)


class Hypervisor(Protocol):
    """A product. `vm` is a machine as its command line knows it; a clone is called by its label.

    All raise `MachineError` with what the command line said.
    """

    name: str
    program: str
    to_install: str
    """What to do if the program is not there."""

    async def check_image(self) -> None:
        """Raise `InvalidInput` if there is no such image."""

    async def snapshots(self, vm: str) -> tuple[str, ...]: ...

    async def memory_bytes(self, vm: str) -> int | None:
        """What a machine has by its settings; None if they do not tell."""

    async def labels(self) -> tuple[str, ...]:
        """Of all that may be a clone, whole or not, whoever made it."""

    def clone_called(self, label: str) -> str: ...

    async def clone(self, snapshot: str, label: str) -> None:
        """A linked clone of the image's snapshot."""

    async def take_snapshot(self, vm: str, name: str) -> None: ...

    async def revert(self, vm: str, snapshot: str) -> None:
        """Back to the snapshot, whether it runs or not."""

    async def start(self, vm: str, *, headless: bool) -> None: ...

    async def is_running(self, vm: str) -> bool: ...

    async def host_of(self, vm: str) -> str | None:
        """Where its guest is. Waits for that, perhaps without end; None: it is not known yet."""

    async def stop(self, vm: str) -> None:
        """Switch it off at once; it may be off already."""

    async def delete(self, label: str) -> None:
        """Take away a clone that is off, with all its files; there may be none."""


class CommandLine:
    """Calls the program of a product."""

    def __init__(self, program: str, *words: str, seconds: float) -> None:
        self._command = (program, *words)
        self._seconds = seconds

    async def ask(self, *words: str, seconds: float | None = None) -> str:
        """What it answers. Nothing is changed by it, so it may be broken off."""
        seconds = self._seconds if seconds is None else seconds
        return await output_of((*self._command, *words), seconds=seconds, stage=f"machine.{words[0]}")

    async def do(self, *words: str) -> str:
        """Let it change something, to its end or its deadline: a product goes on with what nobody waits for."""
        return await uninterrupted(self.ask(*words))


def folder_of(settings: HypervisorSettings, name: str) -> Path:
    return Path(settings.folder or Path.home() / ".cache" / "outrider" / name).expanduser().resolve()


def labels_in(folder: Path) -> set[str]:
    """Of clones that have files there."""
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()


def remove_files(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise MachineError(f"the files of a machine cannot be removed: {exc}", stage="machine.destroy") from exc

"""The snapshots of an image: found in the cache, or made."""

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

from outrider.core.errors import InvalidInput
from outrider.core.processes import plain_variables
from outrider.pool.qemu import template, trial
from outrider.pool.qemu.hardware import Accelerator, Hardware
from outrider.pool.qemu.image import Image
from outrider.pool.qemu.settings import QemuSettings, Reset
from outrider.pool.qemu.template import CLEAN, Template

PACKAGES = "qemu-system-x86 qemu-utils"

_OLDEST = (7, 1)
"""The first QEMU that makes screenshots as PNG."""

_OVERHEAD_MB = 96
"""What a QEMU process takes besides its guest's memory: translated code, the screen, itself."""

_VERSION_SECONDS = 30.0


class Snapshots:
    """Asks QEMU, and tries the accelerator, once."""

    def __init__(self, settings: QemuSettings) -> None:
        self._settings = settings
        self._cache = Path(settings.cache) if settings.cache else settings.image / "snapshots"
        self._making = asyncio.Lock()
        self._ready: Template | None = None

    async def check(self, n_machines: int, free_mb: int | None) -> None:
        """Raise `InvalidInput` if something is missing, or so many machines do not fit into the memory."""
        image = Image.open(self._settings.image)
        version = await self._version()
        if self._settings.reset is Reset.LOADVM and shutil.which("qemu-img") is None:
            raise InvalidInput(f"qemu-img is not installed, and `loadvm` needs it; apt-get install {PACKAGES}")
        if self._settings.snapshot != CLEAN:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._named(await self._hardware(image), version)
        memory_mb = self._settings.memory_mb or image.description.memory_mb
        needed_mb = n_machines * (memory_mb + _OVERHEAD_MB)
        if free_mb is not None and needed_mb > free_mb:
            raise InvalidInput(
                f"{n_machines} machines need {n_machines} * ({memory_mb} + {_OVERHEAD_MB}) MB = {needed_mb} MB of "
                f"memory, and {free_mb} MB are free: at most {free_mb // (memory_mb + _OVERHEAD_MB)} fit"
            )

    async def ready(self) -> Template:
        """The one that the settings name. Whoever asks while it is made waits for it."""
        async with self._making:
            if self._ready is None:
                image = Image.open(self._settings.image)
                version = await self._version()
                self._cache.mkdir(parents=True, exist_ok=True)
                hardware = await self._hardware(image)
                if self._settings.snapshot == CLEAN:
                    self._ready = template.find(self._cache, CLEAN, hardware, version) or await template.make(
                        self._cache, CLEAN, hardware, self._settings.program, version
                    )
                else:
                    self._ready = self._named(hardware, version)
            return self._ready

    async def make(self, setup: str) -> Template:
        """Start the guest, run the script in it, and keep how it is then under the name that the settings have."""
        if not re.fullmatch(r"\w[\w.-]*", self._settings.snapshot):
            raise InvalidInput(f"{self._settings.snapshot!r} cannot be the name of a snapshot")
        image = Image.open(self._settings.image)
        version = await self._version()
        self._cache.mkdir(parents=True, exist_ok=True)
        hardware = await self._hardware(image)
        if template.find(self._cache, self._settings.snapshot, hardware, version) is not None:
            raise InvalidInput(f"there is a snapshot {self._settings.snapshot!r} already; choose another name")
        return await template.make(
            self._cache, self._settings.snapshot, hardware, self._settings.program, version, setup=setup
        )

    def _named(self, hardware: Hardware, version: str) -> Template:
        found = template.find(self._cache, self._settings.snapshot, hardware, version)
        if found is None:
            raise template.missing(self._cache, self._settings.snapshot, hardware, version)
        return found

    async def _hardware(self, image: Image) -> Hardware:
        settings = self._settings
        memory_mb = settings.memory_mb or image.description.memory_mb
        hardware = Hardware(image, memory_mb, settings.accelerator, (settings.width, settings.height))
        if settings.accelerator is Accelerator.AUTO:
            chosen = await trial.choose(self._cache, hardware, settings.program, seconds=settings.kvm_seconds)
            return replace(hardware, accelerator=chosen)
        return hardware

    async def _version(self) -> str:
        """What QEMU says of itself. Raises `InvalidInput` if there is none, or it is too old."""
        program = self._settings.program
        if shutil.which(program) is None:
            raise InvalidInput(f"{program} is not installed; apt-get install {PACKAGES}")
        asked = await asyncio.create_subprocess_exec(
            program,
            "--version",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=plain_variables(),
        )
        try:
            async with asyncio.timeout(_VERSION_SECONDS):
                said = (await asked.communicate())[0].decode(errors="replace").partition("\n")[0].strip()
        except TimeoutError as exc:
            raise InvalidInput(f"{program} --version does not answer") from exc
        finally:
            if asked.returncode is None:
                asked.kill()
                await asked.wait()
        number = re.search(r"version (\d+)\.(\d+)", said)
        if number is None or (int(number[1]), int(number[2])) < _OLDEST:
            raise InvalidInput(f"{program} is {said!r}; QEMU {_OLDEST[0]}.{_OLDEST[1]} or newer is needed")
        return said

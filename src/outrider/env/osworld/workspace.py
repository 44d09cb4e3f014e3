"""A machine as setup and evaluation use it: commands and paths in OSWorld's forms, and files kept aside."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.clock import Clock
from outrider.core.errors import EnvError
from outrider.core.secret import Secret
from outrider.env.osworld.files import LocalFiles
from outrider.env.osworld.settling import patiently
from outrider.pool.computer import Computer, Executed

Command = str | list[str]

SHORT_SECONDS = 20.0
MAX_FILE_BYTES = 64 * 1024 * 1024
CLIENT_PASSWORD = Secret("password")
"""The one of OSWorld's own images."""


@dataclass(slots=True, kw_only=True)
class Workspace:
    """`cache` holds what OSWorld would keep in its cache folder: outputs of commands, files that were fetched."""

    computer: Computer
    clock: Clock
    files: LocalFiles
    client_password: Secret = CLIENT_PASSWORD
    execute_seconds: float = 120.0
    cache: dict[str, bytes] = field(default_factory=dict)
    _home: str | None = None

    async def run(self, command: Command, *, shell: bool) -> Executed:
        prepared = await self.prepared(command, shell=shell)
        if isinstance(prepared, str):
            return await self.computer.execute(prepared, timeout=self.execute_seconds)
        return await self.execute(*prepared, timeout=self.execute_seconds)

    async def execute(self, *words: str, timeout: float = SHORT_SECONDS) -> Executed:
        """Run a program as it stands. One that the machine has not is no failure of the machine: it ends with 127."""
        return await self.computer.execute(["sh", "-c", 'exec "$@"', "sh", *words], timeout=timeout)

    async def prepared(self, command: Command, *, shell: bool) -> Sequence[str] | str:
        """The command as the machine takes it.

        A text without a shell is split as a shell would; a list with a shell is `sh -c` of its first item, as
        `subprocess` has it. Placeholders are filled in, and `~/` at the beginning of an argument is the home folder.
        """
        if isinstance(command, str):
            filled = self._filled(command)
            return filled if shell else [await self.path(part) for part in _split(filled)]
        parts = [self._filled(part) for part in command]
        return ["sh", "-c", *parts] if shell else [await self.path(part) for part in parts]

    async def path(self, path: str) -> str:
        """A path in the machine, with its home folder in place of `~`."""
        if path != "~" and not path.startswith("~/"):
            return path
        if self._home is None:
            found = await self.execute("sh", "-c", 'printf %s "$HOME"')
            self._home = found.stdout.strip() or "/"
        return self._home + path[1:]

    async def exists(self, path: str) -> bool:
        return (await self.execute("test", "-e", await self.path(path))).returncode == 0

    async def read(self, path: str) -> bytes | None:
        """A file of the machine. None if there is none, or if it is more than a file that a task could ask for."""
        full = await self.path(path)
        found = await self.execute("sh", "-c", 'test -f "$1" && test -r "$1" && wc -c < "$1"', "sh", full)
        size = found.stdout.strip()
        if found.returncode != 0 or not size.isdecimal() or int(size) > MAX_FILE_BYTES:
            return None
        return await patiently(lambda: self.computer.read_file(full), self.clock)

    async def first_program(self, *names: str) -> str | None:
        """The first of these programs that the machine has."""
        script = 'for name; do command -v "$name" >/dev/null 2>&1 && printf %s "$name" && exit 0; done; exit 1'
        found = await self.execute("sh", "-c", script, "sh", *names)
        return found.stdout.strip() if found.returncode == 0 else None

    def _filled(self, text: str) -> str:
        width, height = self.computer.screen_size
        places = {
            "{CLIENT_PASSWORD}": self.client_password.reveal(),
            "{SCREEN_WIDTH_HALF}": str(width // 2),
            "{SCREEN_HEIGHT_HALF}": str(height // 2),
            "{SCREEN_WIDTH}": str(width),
            "{SCREEN_HEIGHT}": str(height),
        }
        for place, value in places.items():
            text = text.replace(place, value)
        return text


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as exc:
        raise EnvError(f"the command {command[:200]!r} cannot be split into words: {exc}") from exc

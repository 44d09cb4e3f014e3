"""A container in the hands of its holder."""

from collections.abc import Sequence

from outrider.core.errors import MachineError, MachineRefusal
from outrider.pool.computer import Executed, Input
from outrider.pool.docker.command import OUTPUT_BYTES, Ended, run, start_detached
from outrider.pool.docker.engine import Engine

FILE_SECONDS = 120.0
MAX_FILE_BYTES = 256 * 2**20
_MISSING, _NO_FILE = 20, 21
_AT_HOME = 'case $1 in "~/"*) path=${HOME:-}/${1#??};; /*) path=$1;; *) path=./$1;; esac; '
_READ = f'{_AT_HOME}[ -f "$path" ] && exec cat "$path"; [ -e "$path" ] && exit {_NO_FILE}; exit {_MISSING}'
_WRITE = f'{_AT_HOME}mkdir -p "${{path%/*}}/" && head -c "$2" > "$path"'


class DockerComputer:
    """Runs commands in a container, as its image's user and where its image says. It has no screen.

    The image must have a shell at /bin/sh, and `cat`, `head` and `mkdir`.
    """

    screen_size = (0, 0)

    def __init__(self, engine: Engine, container: str, name: str) -> None:
        self.container = container
        """Another one after each reset."""
        self._engine = engine
        self._name = name

    async def screenshot(self) -> bytes:
        raise self._no_screen("screenshot")

    async def input(self, events: Sequence[Input]) -> None:  # noqa: ARG002 there is nothing to give it to
        raise self._no_screen("input")

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        ended = await self._run(_words(command), seconds=timeout)
        stdout, stderr = (output.decode(errors="replace") for output in (ended.stdout, ended.stderr))
        return Executed(returncode=ended.returncode, stdout=stdout, stderr=stderr)

    async def launch(self, command: Sequence[str] | str) -> None:
        await start_detached(self._engine, self.container, _words(command))

    async def read_file(self, path: str) -> bytes | None:
        words = ("/bin/sh", "-c", _READ, "sh", path)
        ended = await self._run(words, seconds=FILE_SECONDS, most=MAX_FILE_BYTES)
        if ended.returncode == _MISSING:
            return None
        if ended.returncode == _NO_FILE or ended.is_cut:
            reason = f"it has more than {MAX_FILE_BYTES} bytes" if ended.is_cut else "it is not a plain file"
            raise self._error("read_file", f"{path}: {reason}")
        self._check("read_file", path, ended)
        return ended.stdout

    async def write_file(self, path: str, data: bytes) -> None:
        words = ("/bin/sh", "-c", _WRITE, "sh", path, str(len(data)))
        self._check("write_file", path, await self._run(words, seconds=FILE_SECONDS, stdin=data))

    async def accessibility_tree(self) -> str:
        raise self._no_screen("accessibility_tree")

    async def terminal_text(self) -> str | None:
        return None

    async def _run(
        self, words: Sequence[str], *, seconds: float, stdin: bytes | None = None, most: int = OUTPUT_BYTES
    ) -> Ended:
        return await run(self._engine, self.container, words, seconds=seconds, stdin=stdin, most=most)

    def _check(self, what: str, path: str, ended: Ended) -> None:
        if ended.returncode is None:
            raise self._error(what, f"{path}: it took longer than {FILE_SECONDS:g} s")
        if ended.returncode != 0:
            raise self._error(what, f"{path}: {ended.stderr.decode(errors='replace').strip()}")

    def _error(self, what: str, reason: str) -> MachineError:
        return MachineError(f"machine {self._name}, {what}: {reason}", stage=f"machine.{what}")

    def _no_screen(self, what: str) -> MachineRefusal:
        return MachineRefusal(f"machine {self._name} has no screen", stage=f"machine.{what}")


def _words(command: Sequence[str] | str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)

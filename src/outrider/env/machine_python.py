"""Python programs of one episode on its machine, in one folder: what a program leaves there, the next one finds."""

from outrider.core.errors import EnvError, MachineError
from outrider.env.sandbox import KillReason, Limits, Outcome
from outrider.pool.computer import Executed
from outrider.pool.source import Machine

OPEN_SECONDS = 30.0
NOT_FOUND = 127
_OPEN = f"command -v python3 > /dev/null || exit {NOT_FOUND}; mktemp -d"
_RUN = 'cd "$1" && exec python3 -u program.py < .stdin'


class MachinePython:
    """Runs programs by the machine's own `python3`. Of the limits, time and output are kept here; the rest is its."""

    def __init__(self, machine: Machine, limits: Limits) -> None:
        self._machine = machine
        self._limits = limits
        self._folder: str | None = None

    async def run(self, source: str, stdin: bytes) -> Outcome:
        """Raises `EnvError` if the machine has no Python."""
        computer = self._machine.computer
        if self._folder is None:
            self._folder = await self._open()
        await computer.write_file(f"{self._folder}/program.py", source.encode(errors="surrogatepass"))
        await computer.write_file(f"{self._folder}/.stdin", stdin)
        command = ["/bin/sh", "-c", _RUN, "sh", self._folder]
        return self._outcome(await computer.execute(command, timeout=self._limits.wall_seconds))

    async def _open(self) -> str:
        opened = await self._machine.computer.execute(["/bin/sh", "-c", _OPEN], timeout=OPEN_SECONDS)
        name = self._machine.machine_id
        if opened.returncode == NOT_FOUND:
            raise EnvError(
                f"machine {name} has no python3, or no mktemp; use machines that have them, or run without machines",
                stage="env.run_python",
            )
        if opened.returncode != 0 or not opened.stdout.startswith("/"):
            message = f"machine {name} gives no folder: {opened.stderr.strip() or opened.returncode}"
            raise MachineError(message, stage="machine.execute")
        return opened.stdout.rstrip("\n")

    def _outcome(self, done: Executed) -> Outcome:
        code, most = done.returncode, self._limits.output_bytes
        stdout, stderr = (text.encode(errors="replace") for text in (done.stdout, done.stderr))
        return Outcome(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            killed_reason=KillReason.WALL_TIME if code is None else None,
            stdout=stdout[:most],
            stderr=stderr[:most],
            stdout_truncated=len(stdout) > most,
            stderr_truncated=len(stderr) > most,
        )

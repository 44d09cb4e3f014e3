"""One program from its start to its end: orders in, output out, limits watched, nothing left behind.

Invariants:
- However it ends, by itself, by a limit or by cancellation, all its processes have ended when `carry_out` returns.
- At most `output_bytes` of each stream are held, whatever is written.
"""

import asyncio
import marshal
import math
import os
import resource
import signal
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from outrider.core.errors import EnvError, InvalidInput, boundary
from outrider.env.sandbox import census
from outrider.env.sandbox.enclosure import PYTHON, Enclosure, Mechanism, Streams
from outrider.env.sandbox.inside.launcher import PREFIX_BYTES
from outrider.env.sandbox.pipes import Descriptors, Gathered, read, write
from outrider.env.sandbox.program import KillReason, Limits, Outcome, Program

MAIN = "main.py"
START_SECONDS = 30.0
WATCH_SECONDS = 0.1
"""How often we look at what the processes use together; each alone is limited by the kernel."""

DRAIN_SECONDS = 1.0
"""How long we read on when all has been killed: a process that got away may hold the pipe open."""

_STACK_BYTES = 8 * 1024 * 1024
_N_PENDING_SIGNALS = 1024
_REPORT_BYTES = 4096


class Handed(NamedTuple):
    """Descriptors that a program gets, under the same numbers; closed here as soon as it has them."""

    owner: Descriptors
    descriptors: tuple[int, ...]


async def carry_out(
    mechanism: Mechanism,
    program: Program,
    limits: Limits,
    *,
    stop: asyncio.Event | None = None,
    handed: Handed | None = None,
) -> Outcome:
    """Run `program` to its end, or until `stop` is set. Raises `EnvError` if it could not be started."""
    with boundary(EnvError, "sandbox"), Descriptors() as owned:
        handed = handed or Handed(owned, ())
        stdin, feed = owned.feeding_pipe()
        stdout, stdout_end = owned.pipe()
        stderr, stderr_end = owned.pipe()
        report, report_end = owned.pipe()
        streams = Streams(stdin, stdout_end, stderr_end, report_end, handed.descriptors)
        try:
            async with asyncio.timeout(START_SECONDS) as starting, mechanism.enclose(streams, limits) as enclosure:
                owned.close(stdin, stdout_end, stderr_end, report_end)
                handed.owner.close(*handed.descriptors)
                run = _Run(mechanism.name, enclosure, program, limits, Report(report))
                await run.start(feed, handed.descriptors)
                starting.reschedule(None)
                await run.attend(owned, stdout, stderr, feed, stop)
                return run.outcome()
        except TimeoutError as exc:
            raise EnvError(f"the sandbox did not start within {START_SECONDS:g} s", stage="sandbox") from exc
        except (EnvError, OSError) as exc:
            owned.close(stderr_end)
            raise EnvError(f"{exc}{await _last_words(stderr)}", stage="sandbox") from exc


async def _last_words(stderr: int) -> str:
    """What a sandbox that failed had to say about it."""
    said = Gathered(_REPORT_BYTES)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            await said.read(stderr, lambda: None)
    text = bytes(said).decode(errors="replace").strip()
    return f": {text}" if text else ""


class Report:
    """What the launcher says, line by line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._said = b""

    async def line(self) -> list[str]:
        """The words of the next line; none when there is nobody left to write one."""
        while b"\n" not in self._said and len(self._said) < _REPORT_BYTES:
            if not (more := await read(self._descriptor)):
                return []
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode(errors="replace").split(maxsplit=2)


class _Run:
    def __init__(self, mechanism: str, enclosure: Enclosure, program: Program, limits: Limits, report: Report) -> None:
        self._errors = Gathered(limits.output_bytes)
        self._mechanism = mechanism
        self._enclosure = enclosure
        self._program = program
        self._limits = limits
        self._report = report
        self._output = Gathered(limits.output_bytes)
        self._reason: KillReason | None = None
        self._ended: list[str] = []
        self._cpu_seconds = 0.0
        self._wall_seconds = 0.0

    async def start(self, feed: int, handed: tuple[int, ...]) -> None:
        """Give the launcher its orders, and see the program started."""
        await self._expect("ready")
        self._enclosure.settle()
        prefer_as_victims(self._enclosure.ancestor)
        orders = marshal.dumps(_orders(self._enclosure, self._program, self._limits, handed))
        await write(feed, len(orders).to_bytes(PREFIX_BYTES, "big") + orders)
        await self._expect("started")

    async def attend(self, owned: Descriptors, stdout: int, stderr: int, feed: int, stop: asyncio.Event | None) -> None:
        """Stay with the program until it has ended and all it wrote has been read."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            readers = [
                group.create_task(self._output.read(stdout, self._kill_for_output)),
                group.create_task(self._errors.read(stderr, self._kill_for_output)),
            ]
            others = [group.create_task(self._feed(owned, feed)), group.create_task(self._watch())]
            if stop is not None:
                others.append(group.create_task(self._stop_at(stop)))
            await self._end()
            self._wall_seconds = loop.time() - began
            for task in others:
                task.cancel()
            self._enclosure.kill()
            await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for task in readers:
                task.cancel()

    async def _expect(self, word: str) -> None:
        line = await self._report.line()
        if line[:1] != [word]:
            raise EnvError(" ".join(["the sandbox could not start the program", *line[1:]]), stage="sandbox")

    async def _end(self) -> None:
        """Until the launcher tells how the program ended, is killed itself, or time is up."""
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                self._ended = await self._report.line()
        except TimeoutError:
            self._kill(KillReason.WALL_TIME)

    async def _feed(self, owned: Descriptors, feed: int) -> None:
        await write(feed, self._program.stdin)
        owned.close(feed)

    async def _watch(self) -> None:
        limits = self._limits
        while self._reason is None:
            await asyncio.sleep(WATCH_SECONDS)
            pids = census.family(self._enclosure.ancestor)
            used = census.usage(pids)
            self._cpu_seconds = max(self._cpu_seconds, used.cpu_seconds)
            if used.cpu_seconds > limits.cpu_seconds:
                self._kill(KillReason.CPU_TIME)
            elif used.n_tasks > limits.n_processes + len(pids[:2]):
                self._kill(KillReason.PROCESSES)
            elif self._enclosure.n_files() > limits.n_files:
                self._kill(KillReason.FILES)
            elif used.memory_bytes > limits.memory_bytes < await asyncio.to_thread(census.proportional_bytes, pids):
                self._kill(KillReason.MEMORY)

    async def _stop_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._kill(KillReason.STOPPED)

    def _kill_for_output(self) -> None:
        self._kill(KillReason.OUTPUT)

    def _kill(self, reason: KillReason) -> None:
        self._reason = self._reason or reason
        self._enclosure.kill()

    def outcome(self) -> Outcome:
        match self._ended:
            case ["ended", status, cpu_seconds]:
                code = os.waitstatus_to_exitcode(int(status))
                self._cpu_seconds = max(self._cpu_seconds, float(cpu_seconds))
                if code != -signal.SIGKILL:
                    self._reason = None  # it had ended already
            case ["failed", *why]:
                raise EnvError(f"the program could not be started: {' '.join(why)}", stage="sandbox")
            case _:
                code = -signal.SIGKILL
        reason = self._reason
        overran = self._cpu_seconds >= self._limits.cpu_seconds
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and overran):
            reason = reason or KillReason.CPU_TIME
        return Outcome(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=bytes(self._output),
            stderr=bytes(self._errors),
            stdout_truncated=self._output.truncated,
            stderr_truncated=self._errors.truncated,
            killed_reason=reason,
            cpu_seconds=self._cpu_seconds,
            wall_seconds=self._wall_seconds,
            mechanism=self._mechanism,
        )


def check_program(program: Program, limits: Limits) -> None:
    """Raise `InvalidInput` for files that cannot lie in the program's folder."""
    for name in program.files:
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name or path.parts[0] == MAIN:
            raise InvalidInput(f"file {name!r} cannot lie in the sandbox's folder; give it a relative name")
    size = len(program.source) + sum(map(len, program.files.values()))
    if size > limits.tmp_bytes // 2:
        raise InvalidInput(f"the program and its files have {size} bytes; the sandbox takes {limits.tmp_bytes // 2}")


def prefer_as_victims(ancestor: int) -> None:
    """When the machine runs out of memory, the kernel shall end the sandbox first."""
    for pid in census.family(ancestor):
        with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:  # noqa: PTH123 as in the census
            file.write("1000")


def _orders(enclosure: Enclosure, program: Program, limits: Limits, handed: tuple[int, ...]) -> dict[str, Any]:
    options = ("-s", "-B", *(("-u",) if program.unbuffered else ()))
    source = program.source.encode(errors="surrogatepass")
    return {
        "arguments": [PYTHON, *options, f"{enclosure.folder}/{MAIN}", *program.arguments],
        "variables": _variables(enclosure.folder),
        "files": {**program.files, MAIN: source},
        "folder": enclosure.folder,
        "limits": _resource_limits(limits, enclosure.n_own_processes),
        "user": enclosure.user,
        "filter": enclosure.filter,
        "keeps_orphans": enclosure.keeps_orphans,
        "descriptors": list(handed),
        "strays": list(enclosure.strays),
    }


def _variables(folder: str) -> dict[str, str]:
    """The program's whole environment. Hashes are the same in each run, so that the order of sets is."""
    return {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PATH": "", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


def _resource_limits(limits: Limits, n_own_processes: int) -> list[tuple[int, int, int]]:
    """Soft and hard. What only Linux knows is left out elsewhere."""
    cpu_seconds = math.ceil(limits.cpu_seconds)
    wanted = {
        "RLIMIT_CPU": (cpu_seconds, cpu_seconds + 1),
        "RLIMIT_AS": (limits.memory_bytes, limits.memory_bytes),
        "RLIMIT_STACK": (_STACK_BYTES, limits.memory_bytes),
        "RLIMIT_NPROC": (limits.n_processes + n_own_processes, limits.n_processes + n_own_processes),
        "RLIMIT_FSIZE": (limits.file_bytes, limits.file_bytes),
        "RLIMIT_NOFILE": (limits.n_open_files, limits.n_open_files),
        "RLIMIT_SIGPENDING": (_N_PENDING_SIGNALS, _N_PENDING_SIGNALS),
        **dict.fromkeys(("RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_RTPRIO", "RLIMIT_NICE"), (0, 0)),
    }
    kinds = {name: getattr(resource, name, None) for name in wanted}
    return [(kind, *wanted[name]) for name, kind in kinds.items() if kind is not None]

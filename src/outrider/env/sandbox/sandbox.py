"""A sandbox: runs Python programs that nobody trusts, a bounded number at a time, and tells how they ended."""

import asyncio
import logging
import os
from collections.abc import Mapping
from enum import StrEnum

from msgspec import structs

from outrider.core.errors import EnvError, InvalidInput
from outrider.env.sandbox.bubblewrap import Bubblewrap
from outrider.env.sandbox.enclosure import Mechanism
from outrider.env.sandbox.pipes import Descriptors
from outrider.env.sandbox.plain import PlainSubprocess
from outrider.env.sandbox.program import Limits, Outcome, Program
from outrider.env.sandbox.running import Handed, carry_out, check_program

logger = logging.getLogger(__name__)

PROBE = "print(6 * 7)"
PROBE_OUTPUT = b"42\n"

HOW_TO_GET_WALLS = (
    "Install the package `bubblewrap`, which brings `bwrap`. Where it is installed and fails, user namespaces are "
    "forbidden: allow them (sysctl kernel.unprivileged_userns_clone=1, or on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0; for a container --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined). To do without walls, set sandbox to subprocess: programs that models write "
    "can then read your files, and the variables of your processes"
)

HOW_TO_STEP_DOWN = (
    "A program without walls is not run as root. Install bubblewrap; or work as an ordinary user, or with a Python "
    "that other users can read, such as one in /usr or /opt"
)

WITHOUT_WALLS = (
    "sandbox: subprocess: programs that models write run without walls. They can read all files of their user, and "
    "the variables of its processes that are not ours, keys included. Use it only where nothing can be lost"
)


class SandboxKind(StrEnum):
    """Which walls to build."""

    BUBBLEWRAP = "bubblewrap"
    """Bubblewrap or nothing."""

    SUBPROCESS = "subprocess"
    """No walls, but limits: a program can read what its user can read. It never runs as root."""


class Sandbox:
    """`n_slots` bounds how many programs run at once, first come, first served; by default two for each processor.

    It holds nothing between runs, so there is nothing to close. Use it on one event loop.
    """

    def __init__(
        self, kind: SandboxKind = SandboxKind.BUBBLEWRAP, *, n_slots: int | None = None, bubblewrap: str = "bwrap"
    ) -> None:
        self._kind = kind
        self._bubblewrap = bubblewrap
        self._slots = asyncio.Semaphore(n_slots or 2 * (os.cpu_count() or 1))
        self._choosing = asyncio.Lock()
        self._mechanism: Mechanism | None = None

    async def run(
        self,
        source: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        unbuffered: bool = False,
    ) -> Outcome:
        """Run a program to its end. Whatever it does is an outcome; `EnvError` means that the sandbox itself failed."""
        program = Program(source=source, stdin=stdin, files=files or {}, unbuffered=unbuffered)
        limits = limits or Limits()
        check_program(program, limits)
        mechanism = await self._chosen()
        async with self._slots:
            return await carry_out(mechanism, program, limits)

    async def run_beside(self, program: Program, companion: Program, limits: Limits) -> tuple[Outcome, Outcome]:
        """Run two programs with a pipe each way between them, in one slot; when the first ends, the other is stopped.

        Each gets two more arguments: the descriptor to read from, and the one to write to.
        """
        stop, owner = asyncio.Event(), Descriptors()
        mechanism = await self._chosen()
        async with self._slots:
            try:
                questions, ask = owner.open_pipe()
                answers, tell = owner.open_pipe()
                program, companion = _with_ends(program, answers, ask), _with_ends(companion, questions, tell)
                for each in (program, companion):
                    check_program(each, limits)
                async with asyncio.TaskGroup() as group:
                    theirs = Handed(owner, (questions, tell))
                    beside = group.create_task(carry_out(mechanism, companion, limits, stop=stop, handed=theirs))
                    outcome = await carry_out(mechanism, program, limits, handed=Handed(owner, (answers, ask)))
                    stop.set()
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures
            finally:
                owner.close_all()
        return outcome, beside.result()

    async def mechanism(self) -> str:
        """Which walls are built here. Raises `EnvError` if none can be."""
        return (await self._chosen()).name

    async def check(self) -> None:
        """Raise `InvalidInput` if no program can run in a sandbox of this kind. Warns if there are no walls."""
        try:
            mechanism = await self._chosen()
        except EnvError as exc:
            raise InvalidInput(f"the sandbox does not work here: {exc}") from exc
        if self._kind is SandboxKind.SUBPROCESS:
            logger.warning("%s. Mechanism: %s", WITHOUT_WALLS, mechanism.name)

    async def _chosen(self) -> Mechanism:
        """The first mechanism that runs a small program; tried once."""
        async with self._choosing:
            if self._mechanism is None:
                self._mechanism = await self._choose()
            return self._mechanism

    async def _choose(self) -> Mechanism:
        if self._kind is SandboxKind.BUBBLEWRAP:
            try:
                return await _probed(Bubblewrap(self._bubblewrap))
            except EnvError as exc:
                reason = str(exc).replace("\n", "; ")
                reason = reason if "bubblewrap" in reason else f"bubblewrap does not work: {reason}"
                raise EnvError(f"{reason}. {HOW_TO_GET_WALLS}", stage="sandbox") from exc
        try:
            return await _probed(PlainSubprocess(filters=True))
        except EnvError:
            pass
        try:
            return await _probed(PlainSubprocess(filters=False))  # a container may forbid filters
        except EnvError as exc:
            hint = f". {HOW_TO_STEP_DOWN}" if os.geteuid() == 0 else ""
            raise EnvError(f"{exc}{hint}", stage="sandbox") from exc


def _with_ends(program: Program, reading: int, writing: int) -> Program:
    return structs.replace(program, arguments=(*program.arguments, str(reading), str(writing)))


async def _probed(mechanism: Mechanism) -> Mechanism:
    outcome = await carry_out(mechanism, Program(source=PROBE), Limits())
    if outcome.exit_code != 0 or outcome.stdout != PROBE_OUTPUT:
        said = outcome.stderr.decode(errors="replace").strip()
        raise EnvError(f"a small program failed in it ({outcome.ending}): {said}", stage="sandbox")
    return mechanism

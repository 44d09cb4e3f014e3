"""`outrider` commands without the wait for imports: each is forked from a process that has everything loaded.

A command is a process of its own, with its own arguments, folder, variables, streams and exit code; only the start of
its interpreter is left out. For commands that run to their end: a test that signals one, or looks at its process,
starts it as users do.

A shell script finds such an `outrider` too, by `within_reach`, and what `python -c` would run can be run so.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType

AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OPENBLAS_", "OUTRIDER_CRASH")
"""Variables that count when an interpreter starts or imports: a command that has others of them is not forked."""
PATH = "PYTHONPATH"
AT_RUN = (PATH, "PYTHONBREAKPOINT")
"""Such variables that do not: Ray sets the second in a process that uses it."""
MAX_REQUEST_BYTES = 100_000
PR_SET_PDEATHSIG = 1
SCRIPT_SECONDS = 300.0
ASK = """#!{python} -IS
import json, os, signal, socket, sys

command, waiting = 0, []

def hand_on(number, frame):
    os.kill(command, number) if command else waiting.append(number)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hand_on)
ours, its = socket.socketpair()
request = json.dumps([(sys.argv[1:], None), os.getcwd(), dict(os.environ), {seconds}]).encode()
socket.send_fds(socket.socket(fileno={descriptor}), [request], [0, 1, 2, its.fileno()])
its.close()
answers = ours.makefile()
command = int(answers.readline())
for number in waiting:
    hand_on(number, None)
code = json.loads(answers.read())
if code is None or code < 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGKILL if code is None else -code)
sys.exit(code)
"""
"""A program that asks for the command of its arguments, hands signals on to it, and ends as it does."""


def _counting_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(AT_START) and name not in AT_RUN}


_at_start = _counting_at_start(os.environ)


def run_warm(*arguments: str, seconds: float, stdin: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `outrider` to its end, with these environment variables beside those of this process.

    `TimeoutExpired` if it takes longer than `seconds`: it is killed then.
    """
    return _run_warm(arguments, None, Path.cwd(), seconds, environment={**os.environ, **variables}, stdin=stdin)


def run_code_warm(
    code: str, folder: Path, variables: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """What `python -c` does with this code, with these environment variables and no others."""
    return _run_warm((), code, folder, seconds, environment={**variables})


def _run_warm(
    arguments: Sequence[str],
    code: str | None,
    folder: Path,
    seconds: float,
    *,
    environment: dict[str, str],
    stdin: str = "",
) -> "subprocess.CompletedProcess[str]":
    """Run Outrider's command, or code if there is any."""
    command = ["outrider", *arguments] if code is None else [sys.executable, "-c", code]
    if _counting_at_start(environment) != _at_start:
        if code is None:
            command = [sys.executable, "-m", *command]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            input=stdin,
            check=False,
            env=environment,
            cwd=folder,
        )
    with ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        ours, its = socket.socketpair()
        with ours:
            with its:
                request = json.dumps([(arguments, code), str(folder), environment, seconds]).encode()
                socket.send_fds(_server(), [request], [given.fileno(), out.fileno(), err.fileno(), its.fileno()])
            ended = json.loads(ours.makefile().readlines()[-1])
        for stream in (out, err):
            stream.seek(0)
        if ended is None:
            raise subprocess.TimeoutExpired(command, seconds, out.read(), err.read())
        return subprocess.CompletedProcess(command, ended, out.read(), err.read())


@contextmanager
def within_reach() -> Iterator[tuple[Path, int]]:
    """A folder with a program `outrider` for shell scripts, and the descriptor that they must inherit for it."""
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        program, descriptor = Path(name, "outrider"), _server().fileno()
        program.write_text(ASK.format(python=sys.executable, seconds=SCRIPT_SECONDS, descriptor=descriptor))
        program.chmod(0o755)
        yield Path(name), descriptor


@cache
def _server() -> socket.socket:
    """The process that forks; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            pass_fds=(its.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=_at_start | {"PATH": os.environ["PATH"]},
        )

    def end() -> None:
        ours.shutdown(socket.SHUT_RDWR)  # also where somebody has inherited it
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(connection: socket.socket) -> str | None:
    """Fork for each request. Returns in a process that has become a command, and raises `SystemExit` in the others.

    What it returns is code to be run in place of Outrider's command.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for commands
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _await_command(*json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _await_command(
    program: tuple[list[str], str | None],
    folder: str,
    variables: dict[str, str],
    seconds: float,
    descriptors: list[int],
) -> str | None:
    arguments, code = program
    *streams, answer = descriptors
    command = os.fork()
    if command == 0:
        os.close(answer)
        _become(arguments, folder, variables, streams)
        return code
    os.write(answer, f"{command}\n".encode())
    end = os.pidfd_open(command)
    ready, _, _ = select.select([end, answer], [], [], seconds)
    if end not in ready:  # it is late, or whoever asked for it was killed
        os.kill(command, signal.SIGKILL)
    code_at_end = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with suppress(OSError):
        os.write(answer, json.dumps(code_at_end if ready else None).encode())
    os._exit(0)


def _become(arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    tempfile.tempdir = None
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[:] = ["outrider", *arguments]
    sys.path[:0] = [folder, *filter(None, variables.get(PATH, "").split(os.pathsep))]


def _run(code: str) -> None:
    sys.argv[:] = ["-c"]
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(module))


def _load_all() -> None:
    from outrider.cli import COMMANDS

    for name in (*COMMANDS, "run_job", "rollout_job"):
        if name != "bench":
            importlib.import_module(f"outrider.cli.{name}")


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _load_all()
    gc.freeze()  # what is never collected is never copied
    if (given := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(given)
    else:
        from outrider.cli import main

        main()

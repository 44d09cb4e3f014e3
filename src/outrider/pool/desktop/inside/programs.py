"""Programs that are run in the desktop, and files in it."""

import contextlib
import os
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, NamedTuple

SHELL = "/bin/sh"
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 128 * 1024 * 1024


class Ended(NamedTuple):
    """How a program ended; None: it was stopped at its time limit."""

    returncode: int | None
    stdout: bytes
    stderr: bytes


CANNOT_START = 127
"""The exit code of a program that is not there."""


class Programs:
    """Starts programs with these variables, in the user's home. `folder` is where what they write waits to be read."""

    def __init__(self, variables: Mapping[str, str], folder: str) -> None:
        self._variables = variables
        self._home = variables["HOME"]
        self._folder = folder

    def execute(self, command: list[str] | str, seconds: float) -> Ended:
        """Wait for its own end; what it has left running in the background goes on."""
        with tempfile.TemporaryFile(dir=self._folder) as out, tempfile.TemporaryFile(dir=self._folder) as errors:
            try:
                process = self._start(command, out, errors)
            except OSError as exc:  # as a shell says it
                return Ended(CANNOT_START, b"", f"{exc.strerror}: {exc.filename}\n".encode())
            code: int | None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return Ended(code, _start_of(out), _start_of(errors))

    def launch(self, command: list[str] | str) -> None:
        with open(f"{self._folder}/log", "ab") as log:  # noqa: PTH123 pathlib is slow to import
            process = self._start(command, log, log)
        threading.Thread(target=process.wait, daemon=True).start()

    def _start(self, command: list[str] | str, out: IO[bytes], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [SHELL, "-c", command] if isinstance(command, str) else command
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env=dict(self._variables),
            cwd=self._home,
            start_new_session=True,
        )

    def read_file(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(self._absolute(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is not a file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        return data

    def write_file(self, path: str, data: bytes) -> None:
        path = self._absolute(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(data)

    def _absolute(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        return os.path.join(self._home, path)  # noqa: PTH118


def _start_of(file: IO[bytes]) -> bytes:
    """Read without moving the file's offset: programs left in the background share it, and go on writing there."""
    parts: list[bytes] = []
    n_read = 0
    while n_read < MAX_OUTPUT_BYTES and (part := os.pread(file.fileno(), MAX_OUTPUT_BYTES - n_read, n_read)):
        parts.append(part)
        n_read += len(part)
    return b"".join(parts)

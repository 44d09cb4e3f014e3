"""The first process of a sandbox that stays: runs commands, reads and writes files, adopts whatever is left running.

It imports nothing but the standard library. It reads its orders from standard input, and ends without them. Each
request comes on a connection of its own and is served by a fork that has become the user; the first process only
accepts and buries the dead. A fork says `+` before it reads its request: whoever has not seen that has had nothing
carried out. When the asker hangs up, its command is killed.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

HOME = "/home/user"
PREFIX = struct.Struct(">I")
OUTPUT_BYTES = 8 * 2**20
"""What is kept of each output of a command; the rest is read and dropped."""

MAX_FILE_BYTES = 256 * 2**20
N_WAITING = 64
N_DESCRIPTORS = 1024
CHUNK_BYTES = 65536
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main() -> None:
    descriptor = int(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line:
        return
    orders = json.loads(line)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, N_DESCRIPTORS)
    listener = socket.socket(fileno=descriptor)
    listener.listen(N_WAITING)
    signal.signal(signal.SIGCHLD, _bury)
    os.write(1, b"ready\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for taken in (0, 1, 2):
        os.dup2(nothing, taken)
    while True:
        connection, _ = listener.accept()
        try:
            pid = os.fork()
        except OSError:
            pid = -1  # the asker sees its connection end
        if pid == 0:
            listener.close()
            _serve(connection, orders)
        connection.close()


def _bury(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _serve(connection: socket.socket, orders: dict[str, Any]) -> None:
    """Answer one request, in a process of its own, which ends here."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _become_user(orders)
        connection.sendall(b"+")
        request, bodies = receive(connection)
        _ACTIONS[request["do"]](connection, request, bodies)
    except Exception as exc:  # noqa: BLE001 the fork must not go on as a second first process
        with suppress(OSError):
            send(connection, {"error": f"{type(exc).__name__}: {exc}"})
    finally:
        os._exit(0)


def _become_user(orders: dict[str, Any]) -> None:
    for name, value in orders["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    if (user := orders["user"]) is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.chdir(HOME)


def _execute(connection: socket.socket, request: dict[str, Any], _: list[bytes]) -> None:
    try:
        process = _start(request["command"], subprocess.PIPE)
    except OSError as exc:
        missing = isinstance(exc, FileNotFoundError | NotADirectoryError)
        send(connection, {"returncode": NOT_FOUND if missing else NOT_EXECUTABLE}, b"", f"{exc}\n".encode())
        return
    _Command(connection, process).run(request["seconds"])


def _launch(connection: socket.socket, request: dict[str, Any], _: list[bytes]) -> None:
    try:
        _start(request["command"], subprocess.DEVNULL)
    except OSError as exc:
        send(connection, {"error": f"cannot be started: {exc}"})
    else:
        send(connection, {})


def _start(command: list[str] | str, output: int) -> subprocess.Popen[bytes]:
    arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, bufsize=0
    )


class _Command:
    """A command that runs; what it left in the background may go on writing, to nobody."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._connection = connection
        self._process = process
        self._kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._ended = os.pidfd_open(process.pid)
        self._poll = select.poll()
        for descriptor in (*self._kept, self._ended):
            self._poll.register(descriptor, select.POLLIN)
        for descriptor in self._kept:
            os.set_blocking(descriptor, False)
        self._poll.register(connection, select.POLLRDHUP | select.POLLHUP)
        self._open = set(self._kept)

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        in_time = True
        while self._ended not in (ready := self._wait(until)):
            if not ready or self._connection.fileno() in ready:
                in_time = False
                self._kill()
                self._process.wait()
                break
            self._read(ready)
        for descriptor in list(self._open):
            self._drain(descriptor)
        outputs = [bytes(kept) for kept in self._kept.values()]
        send(self._connection, {"returncode": self._process.wait() if in_time else None}, *outputs)
        self._connection.close()
        self._drop_the_rest()

    def _wait(self, until: float) -> list[int]:
        left = max(0.0, until - time.monotonic())
        return [descriptor for descriptor, _ in self._poll.poll(left * 1000)]

    def _read(self, ready: list[int]) -> None:
        for descriptor in ready:
            if descriptor in self._open:
                self._take(descriptor)

    def _drain(self, descriptor: int) -> None:
        """What is there now, and no more than a pipe holds and then some: others may still write."""
        for _ in range(64):
            if not self._take(descriptor):
                return

    def _take(self, descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(descriptor)
            self._open.remove(descriptor)
            return False
        kept = self._kept[descriptor]
        kept += chunk[: OUTPUT_BYTES - len(kept)]
        return True

    def _drop_the_rest(self) -> None:
        for descriptor in self._open:
            os.set_blocking(descriptor, True)
        poll = select.poll()
        for descriptor in self._open:
            poll.register(descriptor, select.POLLIN)
        while self._open:
            for descriptor, _ in poll.poll():
                if not os.read(descriptor, CHUNK_BYTES):
                    poll.unregister(descriptor)
                    self._open.remove(descriptor)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _read_file(connection: socket.socket, request: dict[str, Any], _: list[bytes]) -> None:
    try:
        descriptor = os.open(_place(request["path"]), os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        send(connection, {"found": False})
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            send(connection, {"error": "it is not a plain file"})
            return
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        send(connection, {"error": f"it has more than {MAX_FILE_BYTES} bytes"})
    else:
        send(connection, {"found": True}, content)


def _write_file(connection: socket.socket, request: dict[str, Any], bodies: list[bytes]) -> None:
    path = _place(request["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 pathlib is slow to import
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(bodies[0])
    send(connection, {})


def _place(path: str) -> str:
    return os.path.join(HOME, os.path.expanduser(path))  # noqa: PTH111, PTH118


_ACTIONS = {"execute": _execute, "launch": _launch, "read": _read_file, "write": _write_file}


def send(connection: socket.socket, header: dict[str, Any], *bodies: bytes) -> None:
    """A message: the length of its header, the header with the lengths of what follows it, and that."""
    connection.sendall(message(header, *bodies))


def message(header: dict[str, Any], *bodies: bytes) -> bytes:
    head = json.dumps(header | {"sizes": [len(body) for body in bodies]}).encode()
    return b"".join((PREFIX.pack(len(head)), head, *bodies))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    with connection.makefile("rb") as stream:
        (length,) = PREFIX.unpack(stream.read(PREFIX.size))
        header = json.loads(stream.read(length))
        return header, [stream.read(size) for size in header["sizes"]]


if __name__ == "__main__":
    main()

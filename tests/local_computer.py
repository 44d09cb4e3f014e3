"""A stand-in for a machine: commands and files are real, in a folder of this host; the screen is drawn.

What is typed and clicked is recorded, and shows in the picture. It is no sandbox: commands run as the test does.
"""

import asyncio
import os
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outrider.core.errors import MachineError
from outrider.pool.computer import Executed, Input, MoveTo, Text


class LocalComputer:
    """`n_frames`: how many pictures after each input differ, as if the screen still moved.

    `fail(name, times)`: the next calls of this method find the machine silent. An action fails after it was done, as
    when its answer is lost.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (64, 48), *, n_frames: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.events: list[Input] = []
        self.launched: list[Sequence[str] | str] = []
        self.pointer = (0, 0)
        self.typed = ""
        self.tree = "<desktop-frame/>"
        self.terminal: str | None = None
        self.calls: Counter[str] = Counter()
        self._size = size
        self._n_frames = n_frames
        self._frames_left = 0
        self._failures: Counter[str] = Counter()

    def fail(self, name: str, times: int = 1) -> None:
        self._failures[name] = times

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._size

    async def screenshot(self) -> bytes:
        self._answer("screenshot")
        frame, self._frames_left = self._frames_left, max(self._frames_left - 1, 0)
        seed = zlib.crc32(f"{self.pointer} {self.typed} {len(self.events)} {frame}".encode())
        return png(self._size, self.pointer, seed)

    async def input(self, events: Sequence[Input]) -> None:
        for event in events:
            self.events.append(event)
            match event:
                case MoveTo(x, y):
                    self.pointer = (x, y)
                case Text(text):
                    self.typed += text
        self._frames_left = self._n_frames
        self._answer("input")

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                cwd=self.folder,
                env={**os.environ, "HOME": str(self.folder), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as exc:
            return Executed(returncode=127, stderr=str(exc))
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return Executed(returncode=None)
        self._answer("execute")
        return Executed(returncode=process.returncode, stdout=out.decode(), stderr=err.decode())

    async def launch(self, command: Sequence[str] | str) -> None:
        self.launched.append(command)
        self._answer("launch")

    async def read_file(self, path: str) -> bytes | None:
        self._answer("read_file")
        found = self.folder / path
        try:
            return found.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise MachineError(f"read_file: {exc}") from exc

    async def write_file(self, path: str, data: bytes) -> None:
        found = self.folder / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_bytes(data)
        self._answer("write_file")

    async def accessibility_tree(self) -> str:
        self._answer("accessibility_tree")
        return self.tree

    async def terminal_text(self) -> str | None:
        self._answer("terminal_text")
        return self.terminal

    def program(self, name: str, script: str) -> None:
        """Give the machine a program."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def _answer(self, name: str) -> None:
        self.calls[name] += 1
        if self._failures[name]:
            self._failures[name] -= 1
            raise MachineError(f"{name}: the machine did not answer")


def png(size: tuple[int, int], pointer: tuple[int, int], seed: int) -> bytes:
    """A grey picture with a dark pointer; the seed is the shade of the first row."""
    width, height = size
    rows = [bytearray([0, *([200] * width)]) for _ in range(height)]
    rows[0][1:] = bytes((seed >> (8 * (x % 4))) & 255 for x in range(width))
    rows[pointer[1]][1 + pointer[0]] = 0
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

"""What the holder of a machine can do with it, whatever the machine is."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class Button(StrEnum):
    """A button of the mouse."""

    LEFT = "left"
    MIDDLE = "middle"
    RIGHT = "right"


class MoveTo(Struct, frozen=True, tag=True):
    """The pointer goes to a place on the screen, in pixels from the upper left corner."""

    x: int
    y: int


class Press(Struct, frozen=True, tag=True):
    """A mouse button goes down, or up."""

    button: Button = Button.LEFT
    down: bool = True


class Scroll(Struct, frozen=True, tag=True):
    """The wheel turns by so many clicks: `dy` above 0 is up, `dx` above 0 is to the right."""

    dx: int = 0
    dy: int = 0


class Key(Struct, frozen=True, tag=True):
    """A key goes down, or up. Names are those of PyAutoGUI, such as `a`, `enter`, `ctrlleft`, `f5`."""

    name: str
    down: bool = True


class Text(Struct, frozen=True, tag=True):
    """Text is typed."""

    text: str


class Pause(Struct, frozen=True, tag=True):
    """Nothing happens for a moment."""

    seconds: float


Input = MoveTo | Press | Scroll | Key | Text | Pause


class Executed(Struct, frozen=True, kw_only=True):
    """How a command ended on the machine. `returncode` is None if it was stopped at its time limit."""

    returncode: int | None
    stdout: str = ""
    stderr: str = ""


class Computer(Protocol):
    """A machine in the hands of its holder. What it cannot do raises `MachineRefusal`, and nothing is done then.

    A machine that is lost raises `MachineError`.
    Looking may be repeated; `input` and `execute` are carried out at most once: if the answer is lost, they raise.
    """

    @property
    def screen_size(self) -> tuple[int, int]:
        """Width and height in pixels; (0, 0): it has no screen."""

    async def screenshot(self) -> bytes:
        """The screen as PNG."""

    async def input(self, events: Sequence[Input]) -> None:
        """Mouse and keyboard, in this order."""

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        """Run a command in the machine, a text by its shell, and wait for its end; 127: there is no such program."""

    async def launch(self, command: Sequence[str] | str) -> None:
        """Start a program in the machine and leave it running."""

    async def read_file(self, path: str) -> bytes | None:
        """A file of the machine; None if there is none."""

    async def write_file(self, path: str, data: bytes) -> None: ...

    async def accessibility_tree(self) -> str:
        """What is on the screen as XML, for those who cannot see it."""

    async def terminal_text(self) -> str | None:
        """What stands in the terminal that is in front, if there is one."""

"""What a kind of machine brings: making one, resetting it, proving it clean, finding it again, ending it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from outrider.pool.computer import Computer

Address = Mapping[str, Any]
"""How a provider finds a machine again, in a form that the journal keeps."""


class Ability(StrEnum):
    """Something that all machines of a kind can do."""

    SCREEN = "screen"
    """It has a picture, a mouse and a keyboard."""

    COMMANDS = "commands"
    """It runs programs, and its files can be read and written."""

    TREE = "accessibility tree"
    TERMINAL = "terminal text"
    DEVTOOLS = "browser"
    """Its address has `devtools`, where its browser speaks Chromium's protocol until the lease is over."""


class RunningMachine(Protocol):
    """A machine that exists. Every method has an end: those that wait for the machine raise `MachineError` in time."""

    @property
    def address(self) -> Address: ...

    @property
    def computer(self) -> Computer: ...

    async def reset(self) -> str | None:
        """Back to the clean state it was made with. Its `address` may be another afterwards.

        Where the usual way failed and another was taken, it returns why: the journal keeps it.
        """

    async def probe(self) -> None:
        """Raise `MachineError` unless it answers and is fit to be used."""

    async def plant(self, marker: str) -> None:
        """Leave a mark in it that a reset must take away: where a user's work would be left."""

    async def has(self, marker: str) -> bool:
        """Whether the mark is still there."""

    async def wait_until_dead(self) -> str:
        """Return, with the reason, as soon as it is known to be dead; it may never be."""

    async def destroy(self) -> None:
        """End it and all that belongs to it; once more changes nothing."""


class Provider(Protocol):
    """A kind of machine."""

    @property
    def name(self) -> str: ...

    @property
    def abilities(self) -> frozenset[Ability]: ...

    async def check(self, n_machines: int) -> None:
        """Raise `InvalidInput` if so many cannot be run here: what is missing and how to get it, or the arithmetic."""

    async def create(self, machine_id: str, owner: str) -> RunningMachine:
        """Make a machine for this pool. What was begun is ended if this fails or is cancelled."""

    async def adopt(self, machine_id: str, address: Address) -> RunningMachine | None:
        """The machine at this address, if it is still there and is the same one."""

    async def owned(self, owner: str) -> tuple[Address, ...]:
        """All machines of this owner that are on this host, whoever made them: to find what was left behind."""

    async def close(self) -> None:
        """Let go of what all its machines share. They are ended before."""

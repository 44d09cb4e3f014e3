"""The time of the database, by which machines whose clocks differ agree on when a lease ends.

Invariants:
- Leases are granted and renewed by the server's own clock, in the statement that does it. The wall clock of a client
  is never looked at.
- Timestamps that decide nothing are the server's time as a client knows it from its last look.
- Every look compares the server's clock with the monotonic clock here. Leases are taken away only by a time that was
  looked at and found to be no jump; a jump moves the times of all live attempts along, once for all clients.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from outrider.core.clock import Clock, SystemClock
from outrider.store.jumps import JUMP_SECONDS, tell
from outrider.store.postgres.driver import Link
from outrider.store.postgres.links import Links
from outrider.store.postgres.queries import SQL
from outrider.store.rows import WORKER_SILENT_SECONDS


@dataclass(frozen=True, slots=True)
class Look:
    """The server's time, looked at between two readings of the monotonic clock, and what else was seen then."""

    before: float
    after: float
    there: float
    jumped: float
    """By how much the server's clock is known to have jumped."""
    next_expiry: float | None

    def monotonic_of(self, at: float) -> float:
        """A moment of the server in monotonic time here."""
        return self.after + at - self.there


@dataclass(frozen=True, slots=True)
class Jump:
    """How far the server's clock has jumped between two looks; it cannot be told apart from a pause of this process."""

    seconds: float
    last: Look
    look: Look

    @property
    def between(self) -> tuple[float, float]:
        """Server times that there were not, if the clock has jumped forward: nobody can have been heard of then."""
        passed = self.look.after - self.last.before + JUMP_SECONDS
        known = self.look.jumped - self.last.jumped  # jumps that others have followed since the last look
        return self.last.there + known + passed, self.look.there - passed


class DatabaseClock:
    """The server's clock, as this process knows it. A clock that a test moves stands for the server's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = 0.0
        self._last: Look | None = None

    def now(self) -> float:
        """About the server's time, for timestamps."""
        return self._clock.time() if self.given is not None else self._clock.monotonic() + self._offset

    @property
    def given(self) -> float | None:
        """The time by which statements decide on leases; None for the server's own."""
        return None if type(self._clock) is SystemClock else self._clock.time()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def look(self, link: Link) -> Look:
        """Look at the server's clock and at the leases."""
        before = self._clock.monotonic()
        row = await link.fetchrow(SQL["look"], self.given)
        assert row is not None
        there, jumped, next_expiry = row
        look = Look(before, self._clock.monotonic(), there, jumped, next_expiry)
        self._offset = there - (look.before + look.after) / 2
        self._last = self._last or look
        return look

    async def shorten_leases(self, link: Link) -> None:
        """No lease is longer than its term, though the server's clock may have gone back while nobody looked."""
        await link.execute(SQL["shorten_leases"], self.given, JUMP_SECONDS)

    def jump_before(self, look: Look) -> Jump | None:
        """The jump that must be followed before this look may be gone by; without one, the next is compared with it."""
        last = self._last or look
        passed = look.there - look.jumped - (last.there - last.jumped)
        least, most = look.before - last.after, look.after - last.before
        if least - JUMP_SECONDS <= passed <= most + JUMP_SECONDS:
            self._last = look
            return None
        return Jump(passed - (least + most) / 2, last, look)

    async def follow(self, links: Links, jump: Jump) -> None:
        """Move the times of live attempts along with the server's clock, if it has jumped and nobody else has."""
        match await links.transact(partial(_followed, jump=jump)):
            case Followed.NOW:
                self._last = replace(jump.look, jumped=jump.look.jumped + jump.seconds)
                tell("the clock of the PostgreSQL server", jump.seconds)
            case Followed.NO_JUMP:
                self._last = jump.look
            case Followed.BEFORE:  # which the next look will see
                pass


class Followed(Enum):
    """Whether the times in the store were moved along with the server's clock."""

    NOW = auto()
    BEFORE = auto()
    NO_JUMP = auto()


async def _followed(link: Link, jump: Jump) -> Followed:
    # Whoever writes to a rollout just now is done before, or does it after.
    await link.execute(SQL["hold_rollouts"])
    if await link.fetchval(SQL["hold_clock"]) != jump.look.jumped:
        return Followed.BEFORE
    first, last = jump.between
    if jump.seconds > 0 and (first >= last or await link.fetchval(SQL["heard_between"], first, last)):
        return Followed.NO_JUMP  # the server's time has passed; it is this process that stood still
    now, passed = jump.look.there, jump.look.after - jump.last.before
    since = now - passed - JUMP_SECONDS, now + JUMP_SECONDS
    await link.execute(SQL["move_live"], jump.seconds, *since)
    silent_before = now - max(jump.seconds, 0.0) - WORKER_SILENT_SECONDS
    await link.execute(SQL["move_workers"], jump.seconds, *since, silent_before)
    await link.execute(SQL["note_jump"], jump.seconds)
    return Followed.NOW

"""The time of the database, so that machines whose clocks differ agree on when a lease ends."""

from outrider.core.clock import Clock, SystemClock
from outrider.store.postgres.driver import Link
from outrider.store.postgres.queries import SQL

LOOKS = 3


class DatabaseClock:
    """This machine's clock plus its measured distance to the database's. A clock that a test moves is left alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = 0.0

    def now(self) -> float:
        return self._clock.time() + self._offset

    def here(self, seconds: float) -> float:
        """A time of the database on this machine's clock."""
        return seconds - self._offset

    async def measure(self, link: Link) -> None:
        """Look at the database's clock; a difference smaller than the look took is no difference."""
        if type(self._clock) is not SystemClock:
            return
        looks = [await self._look(link) for _ in range(LOOKS)]
        duration, offset = min(looks)
        if abs(offset - self._offset) > duration:
            self._offset = offset

    async def _look(self, link: Link) -> tuple[float, float]:
        """How long a look took, and how far the database's clock is ahead."""
        before = self._clock.time()
        there = await link.fetchval(SQL["clock"])
        after = self._clock.time()
        return after - before, there - (before + after) / 2

"""What went wrong in a pool, and what follows from it: pauses that grow, and holders who get no machine. Pure."""

from outrider.pool.config import PoolConfig

N_REMEMBERED_HOLDERS = 10_000
"""Of so many holders it is known how many machines they have cost; the oldest are forgotten."""

_MAX_DOUBLINGS = 20


class Setbacks:
    """Failures of machines, by whom and when."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._kills: dict[str, int] = {}
        self._last: tuple[float, str] | None = None
        self.n_unmade = 0
        """How many machines in a row could not be made."""
        self.resume_at = 0.0
        """When the next one may be tried."""

    def note(self, reason: str, now: float) -> None:
        self._last = (now, reason)

    def last(self, now: float) -> str:
        """What went wrong last and when, in words; empty if nothing did."""
        return "" if self._last is None else f"; last trouble, {now - self._last[0]:.1f} s ago: {self._last[1]}"

    def unmade(self, reason: str, now: float) -> None:
        """A machine was not made, or was lost before anyone used it. Those that fail together count once."""
        self.note(reason, now)
        if now >= self.resume_at:
            self.n_unmade += 1
            self.resume_at = now + self.pause(self.n_unmade)

    def made(self) -> None:
        self.n_unmade = 0

    def pause(self, n_failures: int) -> float:
        """How long to wait after so many failures in a row."""
        doublings = min(n_failures - 1, _MAX_DOUBLINGS)
        return min(self._config.pause_seconds * 2.0**doublings, self._config.max_pause_seconds)

    def blame(self, holder: str | None) -> bool:
        """A machine was lost under this holder; whether that was one too many."""
        if not holder:
            return False
        self._kills[holder] = self._kills.pop(holder, 0) + 1
        if len(self._kills) > N_REMEMBERED_HOLDERS:
            del self._kills[next(iter(self._kills))]
        return self.is_poison(holder)

    def is_poison(self, holder: str) -> bool:
        return self._kills.get(holder, 0) >= self._config.max_kills

    def verdict(self, holder: str) -> str:
        return (
            f"{holder} gets no further machine: {self._kills[holder]} were lost while it had them, "
            f"so that its task is taken for the cause{self._cause()}"
        )

    def _cause(self) -> str:
        return "" if self._last is None else f" (last: {self._last[1]})"

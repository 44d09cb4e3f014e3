"""How many calls an endpoint gets at once: decided from refusals and from latency. Pure; the waiting is in `gate`."""

START = 32
"""Where the limit begins, and the least that slow answers alone can bring it to."""

REFUSED_FACTOR = 0.7
SLOW_FACTOR = 0.9
HOLD_ABOVE = 4.0
"""Answers so many times slower than the fastest window stop the growth."""

CUT_ABOVE = 8.0
FLOOR_DRIFT = 1.02
"""How much the floor rises with each window, so that a workload of longer answers becomes the new normal."""


class ConcurrencyLimit:
    """Additive increase, multiplicative decrease.

    The limit doubles with each round of saturated answers until the first refusal, then grows by one a round.
    A refusal cuts it once, whatever was already under way then. Answers are averaged over a window of as many calls
    as the limit allows: windows far slower than the fastest one hold the growth, then cut.
    """

    def __init__(self, ceiling: int, start: int = START) -> None:
        self._ceiling = max(1, ceiling)
        self._start = min(start, self._ceiling)
        self._limit = float(self._start)
        self._is_probing = True
        self._cut_at = float("-inf")
        self._floor_seconds: float | None = None
        self._slowness = 1.0
        self._open_window()

    @property
    def limit(self) -> int:
        return int(self._limit)

    def succeeded(self, *, began_at: float, ended_at: float, is_saturated: bool) -> None:
        """A call was answered. `is_saturated`: the limit, not the demand, was what held calls back."""
        seconds = max(0.0, ended_at - began_at)
        self._observe(seconds, ended_at)
        if not is_saturated or max(self._slowness, self._times_floor(seconds)) >= HOLD_ABOVE:
            return
        self._limit = min(self._limit + (1.0 if self._is_probing else 1.0 / self._limit), float(self._ceiling))

    def refused(self, *, began_at: float, ended_at: float) -> None:
        """The endpoint had too much to do for this call."""
        if began_at >= self._cut_at:
            self._cut(REFUSED_FACTOR, 1, ended_at)

    def _observe(self, seconds: float, now: float) -> None:
        self._window_seconds += seconds
        self._n_window += 1
        if self._n_window < self._window_size:
            return
        mean = self._window_seconds / self._n_window
        self._open_window()
        self._floor_seconds = mean if self._floor_seconds is None else min(mean, self._floor_seconds * FLOOR_DRIFT)
        self._slowness = self._times_floor(mean)
        if self._slowness >= CUT_ABOVE:
            self._cut(SLOW_FACTOR, self._start, now)

    def _times_floor(self, seconds: float) -> float:
        return seconds / self._floor_seconds if self._floor_seconds else 1.0

    def _open_window(self) -> None:
        self._window_size = self.limit
        self._window_seconds = 0.0
        self._n_window = 0

    def _cut(self, factor: float, least: int, now: float) -> None:
        self._is_probing = False
        self._limit = min(self._limit, max(self._limit * factor, float(least)))
        self._cut_at = now
        self._open_window()

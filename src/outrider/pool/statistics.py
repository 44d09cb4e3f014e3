"""What a pool counts and measures about itself."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from outrider.core.machine import MachineState

N_REMEMBERED = 4096
"""How many of the latest durations quantiles are taken from."""


class Quantiles(Struct, frozen=True, kw_only=True):
    """Of the latest durations, in seconds; `n` counts all that there ever were."""

    n: int
    p50: float
    p95: float
    p99: float
    greatest: float


class PoolStatistics(Struct, frozen=True, kw_only=True):
    """A pool since it was started."""

    states: Mapping[str, int]
    """How many machines are in each state."""
    n_machines: int
    """M."""
    n_waiting: int
    n_wanted: int
    """How many machines those who wait ask for together."""
    n_leases: int
    n_created: int
    n_resets: int
    n_quarantines: int
    n_revokes: int
    n_deaths: int
    n_recycled: int
    n_failures: Mapping[str, int]
    """What failed: create, reset, destroy."""
    n_refused: int
    """Waiters who were sent away, or left: too late, cancelled, or refused."""
    n_leaks: int
    """Machines that could not be ended when the pool was closed."""
    wait_seconds: Quantiles | None
    hold_seconds: Quantiles | None
    reset_seconds: Quantiles | None
    create_seconds: Quantiles | None
    utilisation: float | None
    """leased / (leased + not leased while somebody waits for it), in machine-seconds; None before the first lease.

    A machine that is being reset while somebody waits counts as not leased, as does a place of M that is empty.
    """
    busy_seconds: float = 0.0
    """The machine-seconds of which `utilisation` is a part."""


class Durations:
    """The latest durations of one kind."""

    def __init__(self) -> None:
        self.n = 0
        self._latest: deque[float] = deque(maxlen=N_REMEMBERED)

    def add(self, seconds: float) -> None:
        self.n += 1
        self._latest.append(seconds)

    def quantiles(self) -> Quantiles | None:
        if not self._latest:
            return None
        ordered = sorted(self._latest)
        p50, p95, p99 = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.95, 0.99))
        return Quantiles(n=self.n, p50=p50, p95=p95, p99=p99, greatest=ordered[-1])


class Counts:
    """The running figures, kept by the fleet."""

    def __init__(self) -> None:
        self.wait, self.hold, self.reset, self.create = Durations(), Durations(), Durations(), Durations()
        self.failures: Counter[str] = Counter()
        self.n_quarantines = self.n_revokes = self.n_deaths = self.n_recycled = self.n_refused = self.n_leaks = 0
        self.n_leases = 0
        self._leased_seconds = 0.0
        self._idle_seconds = 0.0
        self._at: float | None = None

    def moved(self, before: MachineState, state: MachineState, seconds: float, *, is_fresh: bool) -> None:
        """A machine went from one state to another after so many seconds."""
        match before, state:
            case MachineState.CREATING, MachineState.RESETTING:
                self.create.add(seconds)
            case MachineState.RESETTING, MachineState.READY if not is_fresh:
                self.reset.add(seconds)
            case _, MachineState.LEASED:
                self.n_leases += 1
            case MachineState.LEASED, _:
                self.hold.add(seconds)
            case _:
                pass
        self.n_quarantines += state is MachineState.QUARANTINED

    def pass_time(self, now: float, *, n_leased: int, n_free: int, n_wanted: int) -> None:
        """It was like this since the last call: so many places leased, so many not, so many machines asked for."""
        seconds = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        self._leased_seconds += n_leased * seconds
        self._idle_seconds += min(max(n_free, 0), n_wanted) * seconds

    def summary(
        self, states: Iterable[MachineState], *, n_machines: int, n_waiting: int, n_wanted: int
    ) -> PoolStatistics:
        busy = self._leased_seconds + self._idle_seconds
        return PoolStatistics(
            states=dict(Counter(str(state) for state in states)),
            n_machines=n_machines,
            n_waiting=n_waiting,
            n_wanted=n_wanted,
            n_leases=self.n_leases,
            n_created=self.create.n,
            n_resets=self.reset.n,
            n_quarantines=self.n_quarantines,
            n_revokes=self.n_revokes,
            n_deaths=self.n_deaths,
            n_recycled=self.n_recycled,
            n_failures=dict(self.failures),
            n_refused=self.n_refused,
            n_leaks=self.n_leaks,
            wait_seconds=self.wait.quantiles(),
            hold_seconds=self.hold.quantiles(),
            reset_seconds=self.reset.quantiles(),
            create_seconds=self.create.quantiles(),
            utilisation=self._leased_seconds / busy if busy else None,
            busy_seconds=busy,
        )

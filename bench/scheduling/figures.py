"""What a run is judged by."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduling.workload import TOKENS_PER_SECOND
from scheduling.world import Record

WARM_UP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Sums over the steps after the warm-up, so that those of several runs can be added up."""

    n_steps: int
    """All of them, those of the warm-up too."""
    deadlock: str | None = None
    n_trained: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0
    waits: tuple[float, ...] = ()
    staleness: Counter[int] = field(default_factory=Counter)
    """Trajectories by how many versions their first turn is behind."""
    staleness_most: int = 0
    """Of any trajectory, those of the warm-up too."""
    token_staleness: Counter[int] = field(default_factory=Counter)
    n_turns_trained: int = 0
    n_offered: int = 0
    n_turns_offered: int = 0
    work_trained: float = 0.0
    work_wasted: float = 0.0
    work_filtered: float = 0.0
    process_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Trained trajectories a second; none, if the run came to a standstill."""
        return 0.0 if self.deadlock or not self.seconds else self.n_trained / self.seconds

    @property
    def length_bias(self) -> float:
        if not self.n_trained or not self.n_offered:
            return 0.0
        return (self.n_turns_trained / self.n_trained) / (self.n_turns_offered / self.n_offered)

    @property
    def waste(self) -> float:
        """The share of the model's work that is neither trained on nor dropped by the filter."""
        return self.work_wasted / self._work if self._work else 0.0

    @property
    def filtered(self) -> float:
        """The share of the model's work that the filter drops."""
        return self.work_filtered / self._work if self._work else 0.0

    @property
    def _work(self) -> float:
        return self.work_trained + self.work_wasted + self.work_filtered

    @property
    def idle(self) -> float:
        return self.idle_seconds / self.seconds if self.seconds else 1.0


def figures_of(record: Record, deadlock: str | None = None, warm_up: int = WARM_UP) -> Figures:
    """The figures of a run from the last delivery of its warm-up to its last delivery."""
    counted = record.deliveries[warm_up:]
    most = max((one.version - each.versions[0] for one in record.deliveries for each in one.trajectories), default=0)
    if not counted:
        return Figures(n_steps=len(record.deliveries), deadlock=deadlock, staleness_most=most)
    began, ended = record.deliveries[warm_up - 1].at if warm_up else 0.0, counted[-1].at
    staleness: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    trained = [(delivery, one) for delivery in counted for one in delivery.trajectories]
    for delivery, one in trained:
        staleness[delivery.version - one.versions[0]] += 1
        for version, work in one.tokens:
            tokens[delivery.version - version] += round(work * TOKENS_PER_SECOND)
    offered = [n_turns for at, n_turns in record.offered if began < at <= ended]
    waits = [delivery.at - delivery.asked_at for delivery in counted]
    return Figures(
        n_steps=len(record.deliveries),
        deadlock=deadlock,
        n_trained=len(trained),
        seconds=ended - began,
        idle_seconds=sum(waits),
        waits=tuple(waits),
        staleness=staleness,
        staleness_most=most,
        token_staleness=tokens,
        n_turns_trained=sum(len(one.plan.turns) for _, one in trained),
        n_offered=len(offered),
        n_turns_offered=sum(offered),
        work_trained=sum(one.work_done for _, one in trained),
        work_wasted=sum(work for at, work in record.waste if began < at <= ended),
        work_filtered=sum(work for at, work in record.filtered if began < at <= ended),
    )


def mean(counts: Counter[int]) -> float:
    return sum(value * n for value, n in counts.items()) / max(counts.total(), 1)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0

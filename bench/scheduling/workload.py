"""The workloads of SCHED: how long each trajectory takes, turn by turn, and the most that any scheduler can reach.

Every figure is drawn from a generator of its own, seeded by run, group, member and try: all schedulers see the same
latencies, in whatever order they start what there is to do.
"""

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

GROUP_SIZE = 8
BATCH_GROUPS = 32
BATCH = GROUP_SIZE * BATCH_GROUPS
SLOTS = 256
ENGINE_SPEED = 128.0
"""How many requests the engine serves at full speed; more share it."""

TRAINER_SHARE = 0.7
SYNC_SECONDS = 2.0
BURST_EVERY = 10
BURST_FACTOR = 5.0
TOKENS_PER_SECOND = 50.0


class Fault(StrEnum):
    """What an environment does instead of answering."""

    HANG = "hang"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Plan:
    """A trajectory to be: seconds of its reset, and of the model's work and the environment's step in each turn."""

    reset: float
    turns: tuple[tuple[float, float], ...]
    fault: Fault | None = None
    fault_turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked of a scheduler. Times of a group are multiplied by the scale of its tag."""

    name: str
    turns_fixed: int | None = None
    env_sigma: float | None = None
    """Environment steps N(10, sigma) instead of lognormal ones."""
    hang: float = 0.0
    exception: float = 0.0
    bursts: bool = False
    """Every tenth step, resets take `BURST_FACTOR` times as long."""
    filtered: float = 0.0
    """The share of groups whose rewards are all the same."""
    scales: tuple[tuple[str, float], ...] = (("heavy", 1.0),)
    seed: int = 0

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag, _ in self.scales)

    def tag_of(self, group: int) -> str:
        """Groups take the tags in turn."""
        return self.scales[group % len(self.scales)][0]

    def is_filtered(self, group: int) -> bool:
        return self.filtered > 0 and self._random(group).random() < self.filtered

    def reward(self, group: int, member: int) -> float:
        return 1.0 if self.is_filtered(group) else self._random(group, member).random()

    def reset_factor(self, version: int) -> float:
        return BURST_FACTOR if self.bursts and version % BURST_EVERY == BURST_EVERY - 1 else 1.0

    def plan(self, group: int, member: int, attempt: int) -> Plan:
        """What is slow by nature is as slow in every attempt: only the fault depends on which one it is."""
        scale = self.scales[group % len(self.scales)][1]
        mean = math.exp(self._random(group, -1).gauss(math.log(6), 0.7))
        rng = self._random(group, member, 0)
        n_turns = self.turns_fixed or min(max(round(rng.gauss(mean, math.sqrt(mean))), 1), 60)
        reset = 4.0 * rng.lognormvariate(0.0, 1.0) * scale
        turns = tuple((2.0 * rng.lognormvariate(0.0, 0.7) * scale, self._env(rng) * scale) for _ in range(n_turns))
        rng = self._random(group, member, attempt, 1)
        luck, fault_turn = rng.random(), rng.randrange(n_turns)
        if luck < self.hang:
            return Plan(reset, turns, Fault.HANG, fault_turn)
        if luck < self.hang + self.exception:
            return Plan(reset, turns, Fault.EXCEPTION, fault_turn)
        return Plan(reset, turns)

    def _env(self, rng: random.Random) -> float:
        if self.env_sigma is None:
            return 0.8 * rng.lognormvariate(0.0, 1.2)
        return max(rng.gauss(10.0, self.env_sigma), 0.0)

    def _random(self, *key: int) -> random.Random:
        return random.Random(hash((self.seed, *key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """X*, in trajectories a second, and what follows from it."""

    by_slots: float
    by_engine: float
    train_seconds: float

    @property
    def by_trainer(self) -> float:
        return BATCH / self.train_seconds

    @property
    def rate(self) -> float:
        return min(self.by_slots, self.by_engine, self.by_trainer)


def bound(workload: Workload, *, slots: int = SLOTS, speed: float = ENGINE_SPEED) -> Bound:
    """X* = min(slots / E[duration], S / E[work], batch / trainer), of what may be trained on.

    What a filter drops counts as work for nothing. A trajectory that fails counts once more, as far as it came; a reset
    in a burst counts as long as it is. One that hangs counts as if it had not: no scheduler need wait for it.
    """
    turns = _expected_turns(workload)
    scale = sum(scale for _, scale in workload.scales) / len(workload.scales)
    work = turns * 2.0 * math.exp(0.7**2 / 2) * scale
    resets = 4.0 * math.exp(0.5) * scale
    if workload.bursts:
        resets *= 1 + (BURST_FACTOR - 1) / BURST_EVERY
    duration = resets + work + turns * _expected_env(workload) * scale
    kept = 1 - workload.filtered
    tries = 1 + workload.exception / 2
    by_slots, by_engine = kept * slots / (duration * tries), kept * speed / (work * tries)
    return Bound(by_slots=by_slots, by_engine=by_engine, train_seconds=TRAINER_SHARE * BATCH / min(by_slots, by_engine))


@lru_cache(maxsize=16)
def _expected_turns(workload: Workload) -> float:
    """By quantiles of the difficulty, and the exact mean of the rounded and clipped number at each."""
    if workload.turns_fixed is not None:
        return float(workload.turns_fixed)
    standard, n_points = NormalDist(), 2000
    total = 0.0
    for point in range(n_points):
        mean = math.exp(math.log(6) + 0.7 * standard.inv_cdf((point + 0.5) / n_points))
        turns = NormalDist(mean, math.sqrt(mean))
        total += 60 - sum(turns.cdf(n + 0.5) for n in range(1, 60))
    return total / n_points


def _expected_env(workload: Workload) -> float:
    if workload.env_sigma is None:
        return 0.8 * math.exp(1.2**2 / 2)
    z = 10.0 / workload.env_sigma
    standard = NormalDist()
    return 10.0 * standard.cdf(z) + workload.env_sigma * standard.pdf(z)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="heavy"),
        Workload(name="gauss sigma=1", turns_fixed=10, env_sigma=1.0),
        Workload(name="gauss sigma=5", turns_fixed=10, env_sigma=5.0),
        Workload(name="gauss sigma=10", turns_fixed=10, env_sigma=10.0),
        Workload(name="faults", hang=0.001, exception=0.01, bursts=True),
        Workload(name="filter", filtered=0.3),
        Workload(name="mix", scales=(("fast", 0.2), ("slow", 2.0))),
    )
}

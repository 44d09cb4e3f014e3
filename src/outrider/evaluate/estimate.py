"""Estimates with their uncertainty: pass@k without bias, and means of rewards whose samples come in clusters.

The samples of one task are alike, so a run of 10 tasks with 100 samples each knows little more than 10 things. So the
variance is that of the tasks' sums (a ratio estimator, as surveys use it), and the critical value is Student's with one
degree of freedom less than there are tasks. For rewards of 0 and 1 alone the interval is Wilson's, with the number of
samples that would give the same variance if they were independent: it stays within 0 and 1, and does not shrink to
nothing when all samples agree.
"""

import math
from statistics import NormalDist

from msgspec import Struct

CONFIDENCE = 0.95


class Estimate(Struct, frozen=True, kw_only=True):
    """A mean over `n`, and its 95 % confidence interval where there are clusters enough to tell: two or more."""

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


class ClusteredMean:
    """The mean of values that come in clusters, from sums alone. Memory does not grow."""

    def __init__(self) -> None:
        self.n = 0
        self.n_clusters = 0
        self._is_binary = True
        self._origin: float | None = None
        self._sum = self._squares = self._products = self._sizes = 0.0

    def add(self, values: list[float]) -> None:
        """Add all values of one cluster."""
        if not values:
            return
        if self._origin is None:
            # Sums are kept about a first value, lest squares of great numbers drown their differences.
            self._origin = values[0]
        size, total = len(values), math.fsum(value - self._origin for value in values)
        self.n += size
        self.n_clusters += 1
        self._is_binary = self._is_binary and all(value in (0.0, 1.0) for value in values)
        self._sum += total
        self._squares += total * total
        self._products += total * size
        self._sizes += size * size

    def estimate(self) -> Estimate | None:
        """None while there is no value."""
        if self._origin is None:
            return None
        offset = self._sum / self.n
        mean = self._origin + offset
        if self.n_clusters < 2:  # noqa: PLR2004 one cluster has no spread
            return Estimate(mean=mean, n=self.n)
        spread = max(self._squares - 2 * offset * self._products + offset * offset * self._sizes, 0.0)
        error = math.sqrt(spread * self.n_clusters / (self.n_clusters - 1)) / self.n
        critical = student_critical(self.n_clusters - 1)
        if self._is_binary:
            low, high = wilson(mean, self._independent(mean, error), critical)
        else:
            low, high = mean - critical * error, mean + critical * error
        return Estimate(mean=mean, n=self.n, low=low, high=high)

    def _independent(self, mean: float, error: float) -> float:
        """How many independent samples would tell as much: at most all; if no cluster differs, one of each."""
        if error == 0.0:
            return float(self.n_clusters)
        return min(max(mean * (1 - mean) / (error * error), 1.0), float(self.n))


def wilson(mean: float, n: float, critical: float) -> tuple[float, float]:
    """Wilson's interval of a share."""
    square = critical * critical
    centre = (mean + square / (2 * n)) / (1 + square / n)
    half = critical / (1 + square / n) * math.sqrt(mean * (1 - mean) / n + square / (4 * n * n))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def pass_at(k: int, n: int, n_correct: int) -> float:
    """The chance that among `k` of a task's `n` samples one is correct: 1 - C(n - c, k) / C(n, k), without bias."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples, not {n}")
    return 1.0 - math.comb(n - n_correct, k) / math.comb(n, k)


def pass_sizes(samples_per_task: int) -> tuple[int, ...]:
    """The powers of two up to the number of samples, and that number."""
    powers = [1 << power for power in range(samples_per_task.bit_length())]
    return tuple(sorted({*powers, samples_per_task}))


def student_critical(degrees: int) -> float:
    """The two-sided 95 % critical value of Student's t: exact up to 2 degrees, then within 0.2 % (Cornish-Fisher)."""
    share = 0.5 + CONFIDENCE / 2
    if degrees == 1:
        return math.tan(math.pi * (share - 0.5))
    if degrees == 2:  # noqa: PLR2004 the one other case with a closed form
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(degrees) ** power for power, term in enumerate(terms))

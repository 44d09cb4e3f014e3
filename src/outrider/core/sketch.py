"""Quantiles of a stream in bounded memory: counts in buckets that grow by a fixed ratio, as DDSketch does it.

A quantile is within 2 % of the true one. A bucket also remembers its least and greatest value, so that small whole
numbers, each alone in its bucket, come back exactly.
"""

import math
from collections.abc import Iterator

RATIO = 1.02
"""How much greater than its least value the greatest of a bucket may be."""

_LOG_RATIO = math.log(RATIO)
_LEAST = 1e-9


class Sketch:
    """Counts, sum, extremes and quantiles of numbers from 0 up; at most some 2,000 buckets up to 10**9."""

    def __init__(self) -> None:
        self.n = 0
        self.total = 0.0
        self._buckets: dict[int, list[float]] = {}

    def add(self, value: float) -> None:
        key = math.ceil(math.log(max(value, _LEAST)) / _LOG_RATIO)
        bucket = self._buckets.setdefault(key, [0, value, value])
        bucket[0] += 1
        bucket[1] = min(bucket[1], value)
        bucket[2] = max(bucket[2], value)
        self.n += 1
        self.total += value

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    @property
    def least(self) -> float | None:
        return self._buckets[min(self._buckets)][1] if self.n else None

    @property
    def greatest(self) -> float | None:
        return self._buckets[max(self._buckets)][2] if self.n else None

    def quantile(self, q: float) -> float | None:
        """The value that a share `q` of all lie at or below; None while there is none."""
        rank = max(math.ceil(q * self.n), 1)
        for count, low, high in self.buckets():
            if rank <= count:
                return low + (high - low) * (rank - 0.5) / count
            rank -= count
        return None

    def buckets(self) -> Iterator[tuple[int, float, float]]:
        """Count, least and greatest value of each bucket, in order."""
        for key in sorted(self._buckets):
            count, low, high = self._buckets[key]
            yield int(count), low, high

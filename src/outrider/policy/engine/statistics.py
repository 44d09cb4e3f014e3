"""What a policy over an engine did so far."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """`sizes`: how many batches of each size there were. Times are sums, `queue_seconds` over requests that were sent.

    `n_tokenised` messages and counted texts went to the tokenizer, whole or what was new of them; `n_hits` were known.
    """

    sizes: Mapping[int, int]
    n_failed: int
    queue_seconds: float
    engine_seconds: float
    n_tokenised: int
    n_hits: int

    @property
    def n_batches(self) -> int:
        return sum(self.sizes.values())

    @property
    def n_requests(self) -> int:
        return sum(size * n_batches for size, n_batches in self.sizes.items())

    @property
    def mean_batch(self) -> float:
        return self.n_requests / max(self.n_batches, 1)

    @property
    def mean_queue_seconds(self) -> float:
        return self.queue_seconds / max(self.n_requests, 1)

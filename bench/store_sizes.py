"""How much the store benchmark does in a short and in a full round."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much to do. `matrix_ns` are run by 1, 4 and 16 claimers, one by one and in batches; `large_n` by 16 only.

    A sample of a case with few rollouts does it again and again until it has done `least_pairs`, or `least_runs` by a
    runner: a thousand pairs take 50 ms, in which a process that was just woken is not yet up to speed.
    `rounds_compared` are those of the cases in which a baseline runs too. A supervisor that has nothing to do is
    looked at for `idle_seconds`, after it had `settle_seconds` to start its worker.
    """

    rounds: int
    matrix_ns: tuple[int, ...]
    large_n: int
    processes_n: int
    http_n: int
    depths: tuple[int, ...]
    claims_at_depth: int
    idle_samples: int
    idle_samples_of_them: int
    memory_n: int
    query_rows: int
    ended_rows: int
    tags: int
    runner_ns: tuple[int, ...]
    least_pairs: int = 1
    least_runs: int = 1
    rounds_compared: int = 1
    settle_seconds: float = 0.0
    idle_seconds: float = 0.1


QUICK = Sizes(
    rounds=3,
    matrix_ns=(1_000,),
    large_n=10_000,
    processes_n=4_000,
    http_n=200,
    depths=(20_000,),
    claims_at_depth=1_000,
    idle_samples=20,
    idle_samples_of_them=3,
    memory_n=3_000,
    query_rows=5_000,
    ended_rows=100_000,
    tags=1_000,
    runner_ns=(20, 1_000),
    least_pairs=5_000,
    least_runs=1_000,
    settle_seconds=3.0,
    idle_seconds=3.0,
)
FULL = Sizes(
    rounds=3,
    matrix_ns=(1_000, 10_000),
    large_n=10_000,
    processes_n=10_000,
    http_n=1_000,
    depths=(100_000, 1_000_000),
    claims_at_depth=4_000,
    idle_samples=200,
    idle_samples_of_them=9,
    memory_n=10_000,
    query_rows=50_000,
    ended_rows=2_000_000,
    tags=10_000,
    runner_ns=(20, 1_000),
    least_pairs=5_000,
    least_runs=1_000,
    rounds_compared=5,
    settle_seconds=5.0,
    idle_seconds=10.0,
)

"""Two runs on the same tasks, compared task by task.

Each task that both runs have scored is a pair: the mean reward of its samples in one run and in the other. If all
rewards are 0 or 1, with one sample a task, McNemar's exact test looks at the tasks on which the runs disagree. Else the
means of the differences in resampled sets of tasks tell how likely such a difference is by chance (paired bootstrap).
The interval of the difference is by the bootstrap in both cases.
"""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from outrider.evaluate.estimate import CONFIDENCE, Estimate
from outrider.evaluate.results import ResultLine

MCNEMAR, BOOTSTRAP = "McNemar's exact test", "paired bootstrap"
MOST_RESAMPLES, FEWEST_RESAMPLES, DRAWS = 10_000, 1_000, 2_000_000


class TaskPair(Struct, frozen=True, kw_only=True):
    """A task in both runs: mean rewards of `n_a` and `n_b` samples, and what the first samples answered."""

    task_id: str
    a: float
    b: float
    n_a: int
    n_b: int
    answer_a: Any = None
    answer_b: Any = None

    @property
    def difference(self) -> float:
        return self.b - self.a


class Comparison(Struct, frozen=True, kw_only=True):
    """Run `b` against run `a`. `difference` is b less a; `p` is how likely a difference as large is by chance.

    `differing` are pairs whose id stands for another question or expected answer in each run: two files, perhaps.
    `only_a` and `only_b` are the tasks that one run alone has; `unscored` are those that one of them has not scored.
    """

    a: str
    b: str
    mean_a: float
    mean_b: float
    difference: Estimate
    test: str
    p: float
    n_better: int
    n_worse: int
    n_same: int
    tasks: Sequence[TaskPair]
    differing: Sequence[str]
    only_a: Sequence[str]
    only_b: Sequence[str]
    unscored: Sequence[str]


def compare(a: Iterable[ResultLine], b: Iterable[ResultLine], *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Pair the tasks of two runs; the greatest difference comes first."""
    by_a, by_b = _by_task(a), _by_task(b)
    both = [task_id for task_id in by_a if task_id in by_b]
    pairs = [pair for task_id in both if (pair := _pair(task_id, by_a[task_id], by_b[task_id])) is not None]
    paired = {pair.task_id for pair in pairs}
    differences = [pair.difference for pair in pairs]
    is_binary = all({pair.a, pair.b} <= {0.0, 1.0} and pair.n_a == pair.n_b == 1 for pair in pairs)
    n_better, n_worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    estimate, p = bootstrap(differences)
    return Comparison(
        a=names[0],
        b=names[1],
        mean_a=_mean([pair.a for pair in pairs]),
        mean_b=_mean([pair.b for pair in pairs]),
        difference=estimate,
        test=MCNEMAR if is_binary else BOOTSTRAP,
        p=mcnemar(n_better, n_worse) if is_binary else p,
        n_better=n_better,
        n_worse=n_worse,
        n_same=len(pairs) - n_better - n_worse,
        tasks=sorted(pairs, key=lambda pair: -abs(pair.difference)),
        differing=[pair.task_id for pair in pairs if not _is_same(by_a[pair.task_id][0], by_b[pair.task_id][0])],
        only_a=[task_id for task_id in by_a if task_id not in by_b],
        only_b=[task_id for task_id in by_b if task_id not in by_a],
        unscored=[task_id for task_id in both if task_id not in paired],
    )


def mcnemar(n_better: int, n_worse: int) -> float:
    """The two-sided exact p of so many tasks that only one run has solved: how fair coins would fall."""
    n = n_better + n_worse
    tail = math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        for k in range(min(n_better, n_worse) + 1)
    )
    return min(2 * tail, 1.0)


def bootstrap(differences: Sequence[float], *, seed: int = 0) -> tuple[Estimate, float]:
    """The mean difference with its interval, and the two-sided p; the same each time it is asked."""
    n = len(differences)
    mean = _mean(differences)
    if n < 2 or not any(differences):  # noqa: PLR2004 one task has no spread
        return Estimate(mean=mean, n=n, low=None if n < 2 else mean, high=None if n < 2 else mean), 1.0  # noqa: PLR2004
    rng = random.Random(seed)
    n_resamples = min(max(DRAWS // n, FEWEST_RESAMPLES), MOST_RESAMPLES)
    means = sorted(math.fsum(rng.choices(differences, k=n)) / n for _ in range(n_resamples))
    outside = (1 - CONFIDENCE) / 2
    low, high = means[int(outside * n_resamples)], means[int((1 - outside) * n_resamples) - 1]
    slack = 1e-12 * max(abs(mean), 1.0)
    n_as_far = sum(abs(one - mean) >= abs(mean) - slack for one in means)
    return Estimate(mean=mean, n=n, low=low, high=high), (n_as_far + 1) / (n_resamples + 1)


def _by_task(lines: Iterable[ResultLine]) -> dict[str, list[ResultLine]]:
    found: dict[str, list[ResultLine]] = {}
    for line in lines:
        found.setdefault(line.task_id, []).append(line)
    return found


def _pair(task_id: str, a: Sequence[ResultLine], b: Sequence[ResultLine]) -> TaskPair | None:
    rewards_a = [line.reward for line in a if line.reward is not None]
    rewards_b = [line.reward for line in b if line.reward is not None]
    if not (rewards_a and rewards_b):
        return None
    return TaskPair(
        task_id=task_id,
        a=_mean(rewards_a),
        b=_mean(rewards_b),
        n_a=len(rewards_a),
        n_b=len(rewards_b),
        answer_a=a[0].output,
        answer_b=b[0].output,
    )


def _is_same(a: ResultLine, b: ResultLine) -> bool:
    """Whether both had the same question and answer; of lines without a digest, whether the answer is the same."""
    if a.task_digest and b.task_digest:
        return a.task_digest == b.task_digest
    return bool(a.expected == b.expected)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

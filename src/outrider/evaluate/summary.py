"""The numbers of a run, counted line by line in memory that does not grow with the number of rollouts.

What has no reward never leaves the denominator: each score is given twice, over what was *scored*, and over *all*,
where what has none counts as nothing reached. pass@k counts a failure of the agent's own (its code, a limit) as a
sample that did not pass. What the infrastructure lost or somebody cancelled is no sample, so a task may have too few
left for a k, and `n` says how many tasks a value is about; over *all*, it is a sample that did not pass.

What was spent is counted whole: by attempts that were tried again, by rollouts that have not ended, and by samples that
a retry has replaced.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.causes import Cause, Causes
from outrider.core.sketch import Sketch
from outrider.core.status import RolloutStatus
from outrider.evaluate.estimate import ClusteredMean, Estimate, pass_at, pass_sizes
from outrider.evaluate.results import ResultLine
from outrider.evaluate.retries import is_retry
from outrider.evaluate.spans import Spans

SUCCESS_AT = 1.0
MAX_GROUPS = 40
"""A field with more values than this does not group anything."""

HISTOGRAM_BARS = 24


class Quantiles(Struct, frozen=True, kw_only=True):
    """How a measure is spread over the rollouts."""

    mean: float
    p50: float
    p95: float
    max: float


class Bar(Struct, frozen=True, kw_only=True):
    """A bar of a histogram: how many lie from `low` to below `high`."""

    low: float
    high: float
    n: int


class Scored(Struct, frozen=True, kw_only=True):
    """A score over what was scored, and over all."""

    scored: Estimate | None
    all: Estimate | None


class GroupSummary(Struct, frozen=True, kw_only=True):
    """What a set of rollouts came to. `failures` counts them by boundary.

    `infrastructure` is how many of those say nothing about the agent; `retries` are attempts after the first,
    `call_retries` model calls that were repeated. Tokens, calls and seconds are those of all attempts, but for the
    spreads: `seconds`, `turns` and `tokens` are about the attempts that ended rollouts.
    """

    n: int
    n_tasks: int
    n_scored: int
    statuses: Mapping[str, int]
    failures: Mapping[str, int]
    infrastructure: int
    reward: Scored
    pass_at: Mapping[int, Scored]
    seconds: Quantiles | None
    turns: Quantiles | None
    tokens: Quantiles | None
    prompt_tokens: int
    completion_tokens: int
    model_calls: int
    model_seconds: float
    attempt_seconds: float
    retries: int
    call_retries: int


class Summary(Struct, frozen=True, kw_only=True):
    """The numbers of a run. `wall_seconds` is the time in which rollouts ran; a pause before a resume is not in it.

    `n_planned` is how many rollouts were to be run, `n_begun` how many were, and `total.n` how many have ended.
    `n_replaced` are samples in whose place their retries are counted. `money` is what the tokens cost, if prices
    were given.
    """

    total: GroupSummary
    by: Mapping[str, Mapping[str, GroupSummary]]
    not_grouped: Sequence[str]
    success_at: float
    started_at: datetime | None
    ended_at: datetime | None
    wall_seconds: float
    rollouts_per_second: float | None
    tokens_per_second: float | None
    histograms: Mapping[str, Sequence[Bar]]
    causes: Sequence[Cause] = ()
    """Why rollouts failed, the most frequent cause first."""
    n_planned: int | None = None
    n_begun: int = 0
    n_replaced: int = 0
    money: float | None = None


@dataclass(slots=True)
class _Task:
    """The outcomes of one task's samples so far; a reward of None is a failure, or no score."""

    groups: tuple[tuple[str, str], ...]
    rewards: list[float | None] = field(default_factory=list)
    n_missing: int = 0


class _Scores:
    """What needs all samples of a task at once."""

    def __init__(self) -> None:
        self.n_tasks = 0
        self.scored = ClusteredMean()
        self.all = ClusteredMean()
        self.passed: dict[int, tuple[ClusteredMean, ClusteredMean]] = {}

    def add(self, task: _Task, sizes: Sequence[int], success_at: float) -> None:
        self.n_tasks += 1
        self.scored.add([reward for reward in task.rewards if reward is not None])
        self.all.add([0.0 if reward is None else reward for reward in task.rewards])
        n_all = len(task.rewards)
        n_correct = sum(1 for reward in task.rewards if reward is not None and reward >= success_at)
        for k in sizes:
            known, all_tasks = self.passed.setdefault(k, (ClusteredMean(), ClusteredMean()))
            if k <= n_all - task.n_missing:
                known.add([pass_at(k, n_all - task.n_missing, n_correct)])
            if k <= n_all:
                all_tasks.add([pass_at(k, n_all, n_correct)])

    def __copy__(self) -> "_Scores":
        other = _Scores()
        other.n_tasks = self.n_tasks
        other.scored, other.all = copy(self.scored), copy(self.all)
        other.passed = {k: (copy(known), copy(every)) for k, (known, every) in self.passed.items()}
        return other


class _Group:
    """The counts of one set of rollouts."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.n_infrastructure = self.n_scored = self.n_calls = 0
        self.n_retries = self.n_call_retries = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.model_seconds = self.attempt_seconds = 0.0
        self.seconds, self.turns, self.tokens = Sketch(), Sketch(), Sketch()
        self.scores = _Scores()

    def add(self, line: ResultLine) -> None:
        self.statuses[line.status] += 1
        self.n_scored += line.reward is not None
        if line.failure is not None and line.status is RolloutStatus.FAILED:
            self.failures[line.failure.boundary] += 1
            self.n_infrastructure += line.failure.infrastructure
        if line.seconds is not None:
            self.seconds.add(line.seconds)
            self.turns.add(line.n_turns)
            self.tokens.add(line.tokens)

    def spend(self, line: ResultLine) -> None:
        spent = line.spent
        self.n_retries += max(line.n_attempts - 1, 0)
        self.n_calls += spent.calls
        self.n_call_retries += spent.call_retries
        self.prompt_tokens += spent.prompt_tokens
        self.completion_tokens += spent.completion_tokens
        self.model_seconds += spent.model_seconds
        self.attempt_seconds += spent.seconds

    def summary(self, open_tasks: Iterable[_Task], sizes: Sequence[int], success_at: float) -> GroupSummary:
        scores = copy(self.scores)
        for task in open_tasks:
            scores.add(task, sizes, success_at)
        return GroupSummary(
            n=self.statuses.total(),
            n_tasks=scores.n_tasks,
            n_scored=self.n_scored,
            statuses=dict(sorted(self.statuses.items())),
            failures=dict(self.failures.most_common()),
            infrastructure=self.n_infrastructure,
            reward=Scored(scored=scores.scored.estimate(), all=scores.all.estimate()),
            pass_at={
                k: Scored(scored=_share(known), all=_share(every))
                for k, (known, every) in sorted(scores.passed.items())
                if k in sizes
            },
            seconds=_quantiles(self.seconds),
            turns=_quantiles(self.turns),
            tokens=_quantiles(self.tokens),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            model_calls=self.n_calls,
            model_seconds=round(self.model_seconds, 6),
            attempt_seconds=round(self.attempt_seconds, 6),
            retries=self.n_retries,
            call_retries=self.n_call_retries,
        )


class Scoreboard:
    """Counts result lines, each once. With `samples_per_task` a task whose samples have all ended is let go of.

    `prices` are those of a million tokens, in prompts and completions.
    """

    def __init__(
        self,
        *,
        samples_per_task: int | None = None,
        success_at: float = SUCCESS_AT,
        prices: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._samples_per_task = samples_per_task
        self._success_at = success_at
        self._prices = prices
        self._n_open = self._n_replaced = 0
        self._total = _Group()
        self._groups: dict[str, dict[str, _Group]] = {}
        self._crowded: set[str] = set()
        self._open: dict[str, _Task] = {}
        self._most_samples = samples_per_task or 0
        self._spans = Spans()
        self._causes = Causes()
        self._rewards = 0.0

    @property
    def n(self) -> int:
        return self._total.statuses.total()

    @property
    def mean_reward(self) -> float | None:
        """The mean over what was scored so far, at no cost."""
        return self._rewards / self._total.n_scored if self._total.n_scored else None

    def add_open(self, line: ResultLine) -> None:
        """Count what a rollout took that has begun and not ended. An open retry is of a sample that is counted."""
        self._n_open += not is_retry(line.rollout_id)
        self._spend(line, self._keys(line))

    def add_replaced(self, line: ResultLine) -> None:
        """Count what a sample took in whose place a retry of it is counted."""
        self._n_replaced += 1
        self._spend(line, self._keys(line))

    def _spend(self, line: ResultLine, keys: Iterable[tuple[str, str]]) -> None:
        for group in (self._total, *(self._group(*key) for key in keys)):
            group.spend(line)
        for began_at, ended_at in line.spent.spans:
            self._spans.add(began_at.timestamp(), ended_at.timestamp())

    def add(self, line: ResultLine) -> None:
        keys = self._keys(line)
        for group in (self._total, *(self._group(*key) for key in keys)):
            group.add(line)
        self._spend(line, keys)
        if line.reward is not None:
            self._rewards += line.reward
        if line.failure is not None and line.status is RolloutStatus.FAILED:
            self._causes.add(line.full_name, line.failure)
        task = self._open.setdefault(line.task_id, _Task(groups=keys))
        task.rewards.append(line.reward)
        task.n_missing += line.is_missing
        self._most_samples = max(self._most_samples, len(task.rewards))
        if self._samples_per_task is not None and len(task.rewards) >= self._samples_per_task:
            self._close(self._open.pop(line.task_id))

    def summary(self, *, n_planned: int | None = None) -> Summary:
        """What has been counted so far, tasks with samples still to come included."""
        sizes = pass_sizes(self._most_samples) if self._most_samples else ()
        total = self._total.summary(self._open.values(), sizes, self._success_at)
        by = {
            name: {
                value: group.summary(
                    [task for task in self._open.values() if (name, value) in task.groups], sizes, self._success_at
                )
                for value, group in sorted(groups.items())
            }
            for name, groups in self._groups.items()
        }
        wall = self._spans.covered
        return Summary(
            total=total,
            by=by,
            not_grouped=sorted(self._crowded),
            success_at=self._success_at,
            started_at=self._spans.first_at,
            ended_at=self._spans.last_at,
            wall_seconds=round(wall, 6),
            rollouts_per_second=total.n / wall if wall else None,
            tokens_per_second=total.completion_tokens / wall if wall else None,
            histograms={"seconds": _histogram(self._total.seconds), "tokens": _histogram(self._total.tokens)},
            causes=self._causes.most_common(),
            n_planned=n_planned,
            n_begun=total.n + self._n_open,
            n_replaced=self._n_replaced,
            money=self._money(total),
        )

    def _money(self, total: GroupSummary) -> float | None:
        prompt_price, completion_price = self._prices
        if not (prompt_price or completion_price):
            return None
        return (total.prompt_tokens * prompt_price + total.completion_tokens * completion_price) / 1e6

    def _keys(self, line: ResultLine) -> tuple[tuple[str, str], ...]:
        """The groups that a line belongs to; a field with too many values stops grouping, and what it had goes."""
        named = {**({} if line.tag is None else {"tag": line.tag}), **line.kinds}
        keys = []
        for name, value in named.items():
            if name in self._crowded:
                continue
            values = self._groups.setdefault(name, {})
            if value not in values and len(values) >= MAX_GROUPS:
                self._crowded.add(name)
                del self._groups[name]
                continue
            keys.append((name, value))
        return tuple(keys)

    def _group(self, name: str, value: str) -> _Group:
        return self._groups[name].setdefault(value, _Group())

    def _close(self, task: _Task) -> None:
        sizes = pass_sizes(self._samples_per_task or 1)
        self._total.scores.add(task, sizes, self._success_at)
        for name, value in task.groups:
            if name in self._groups:
                self._groups[name][value].scores.add(task, sizes, self._success_at)


def _share(mean: ClusteredMean) -> Estimate | None:
    """An estimate of a share: its interval ends at 0 and 1."""
    estimate = mean.estimate()
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))


def _quantiles(sketch: Sketch) -> Quantiles | None:
    mean, middle, slow, most = sketch.mean, sketch.quantile(0.5), sketch.quantile(0.95), sketch.greatest
    if mean is None or middle is None or slow is None or most is None:
        return None
    return Quantiles(mean=mean, p50=middle, p95=slow, max=most)


def _histogram(sketch: Sketch) -> list[Bar]:
    """Bars of equal ratio, for what spreads over orders of magnitude."""
    low, high = sketch.least, sketch.greatest
    if low is None or high is None or high <= 0:
        return []
    low = max(low, high / 1e4)
    n_bars = max(min(math.ceil(math.log(high / low) / math.log(1.04)), HISTOGRAM_BARS), 1)
    edges = [low * (high / low) ** (step / n_bars) for step in range(n_bars)] + [high]
    counts = [0] * n_bars
    for count, least, most in sketch.buckets():
        middle = max((least + most) / 2, low)
        place = 0 if high == low else int(math.log(middle / low) / math.log(high / low) * n_bars)
        counts[min(place, n_bars - 1)] += count
    return [Bar(low=edges[i], high=edges[i + 1], n=counts[i]) for i in range(n_bars)]

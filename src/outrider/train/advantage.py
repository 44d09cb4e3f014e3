"""Advantages: how much better a sample was than what was to be expected, from the rewards of its group or batch.

A row is a sample. Rows are compared within their key: their group, their group and agent, or those and the round of
their team. If each trajectory counts once, a row weighs one over the number of rows that its trajectory has in the key,
so a trajectory that was split into many samples has no more say than one that was not.

With r a row's reward, m the mean of its key, s the standard deviation there, n the number of rows or trajectories:

- `grpo`: (r - m) / (s + epsilon), or r - m with `scale="none"`.
- `rloo`: r minus the mean of the others, which leave out the row, or its whole trajectory if each counts once.
- `reinforce++`: (r - M) / (S + epsilon), M and S over the whole batch, or over the part of each agent, or round.
- `reinforce++-baseline`: (r - m) / (S + epsilon), S that of all r - m in the batch, or in that part.

Where all rewards of a key are equal, there is nothing to learn from comparing: `grpo`, `rloo` and
`reinforce++-baseline` give exactly 0 there, not what rounding leaves. So they do where a key has one member only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from outrider.core.bounds import Amount, check_bounds
from outrider.core.errors import InvalidInput
from outrider.train.arrays import NDArray, np

LARGEST_REWARD = 1e30
"""No sum or square of such rewards is too large to compute with, and no advantage for 32 bits."""

Doubles = NDArray[np.float64]
Codes = NDArray[np.intp]


class Estimator(StrEnum):
    """With what a reward is compared."""

    GRPO = "grpo"
    RLOO = "rloo"
    REINFORCE_PLUS_PLUS = "reinforce++"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce++-baseline"


class Scale(StrEnum):
    """By which standard deviation a difference is divided, if by any."""

    SAMPLE = "sample"
    """That of a sample, over n - 1, as trainers compute it."""

    POPULATION = "population"
    """That of the members themselves, over n."""

    NONE = "none"


class GroupKey(StrEnum):
    """Which rows are compared with each other."""

    GROUP = "group"
    GROUP_AND_AGENT = "group+agent"
    GROUP_AGENT_AND_ROUND = "group+agent+round"


class Weighting(StrEnum):
    """What counts once."""

    TRAJECTORY = "trajectory"
    ROW = "row"


class AdvantageRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How advantages are computed. `scale` and `epsilon` do not concern `rloo`."""

    estimator: Estimator = Estimator.GRPO
    scale: Scale = Scale.SAMPLE
    epsilon: Amount = 1e-6
    key: GroupKey = GroupKey.GROUP
    weighting: Weighting = Weighting.TRAJECTORY

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            given = getattr(self, name)
            if given not in list(kind):
                raise InvalidInput(f"{name} is {given!r}; it may be {', '.join(kind)}")
            force_setattr(self, name, kind(given))
        check_bounds(self)


_CHOICES: dict[str, type[StrEnum]] = {
    "estimator": Estimator,
    "scale": Scale,
    "key": GroupKey,
    "weighting": Weighting,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """One value for each row. A key is a group and a part of it: nothing, an agent, or agent and round as `agent.0`."""

    values: NDArray[np.float32]
    n_keys: int
    zero_variance: tuple[tuple[str, str], ...]
    """Keys with several members whose rewards are all equal."""
    single: tuple[tuple[str, str], ...]
    """Keys with one member."""


def advantages_of(
    rewards: Sequence[float] | Doubles,
    groups: Sequence[str],
    *,
    trajectories: Sequence[Any] | None = None,
    agents: Sequence[str] | None = None,
    rounds: Sequence[int] | None = None,
    rule: AdvantageRule | None = None,
) -> Advantages:
    """The advantage of each row. Without `trajectories` each row is one; without `agents` or `rounds` there is one."""
    rule = rule or AdvantageRule()
    n_rows = len(rewards)
    _check_lengths(n_rows, groups=groups, trajectories=trajectories, agents=agents, rounds=rounds)
    parts = _parts(rule.key, [""] * n_rows if agents is None else agents, [0] * n_rows if rounds is None else rounds)
    rows = _checked(rewards, groups, trajectories, parts)
    if rows.rewards.size == 0:
        return Advantages(values=np.empty(0, np.float32), n_keys=0, zero_variance=(), single=())
    key, first = _codes(rows.groups * (rows.parts.max() + 1) + rows.parts)
    by_row = rule.weighting is Weighting.ROW
    members = _Members(rows.rewards, key, np.arange(key.size) if by_row else rows.trajectories)
    values = _estimate(members, _Members(rows.rewards, rows.parts, members.counted), rule)
    names = [(str(groups[row]), parts[row]) for row in first]
    return Advantages(
        values=values.astype(np.float32),
        n_keys=len(names),
        zero_variance=tuple(names[code] for code in np.flatnonzero(members.is_flat & ~members.is_single)),
        single=tuple(names[code] for code in np.flatnonzero(members.is_single)),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rewards, and what each row belongs to as numbers from 0."""

    rewards: Doubles
    groups: Codes
    trajectories: Codes
    parts: Codes


class _Members:
    """Rows by the key they are compared in. `counted` numbers what counts once: rows, or trajectories."""

    def __init__(self, rewards: Doubles, key: Codes, counted: Codes) -> None:
        self.rewards = rewards
        self.key = key
        self.counted = counted
        n_keys = int(key.max()) + 1
        self.member, _ = _codes(counted * n_keys + key)
        n_rows = np.bincount(self.member)[self.member]
        self.weights = 1.0 / n_rows
        self.n: Doubles = np.rint(np.bincount(key, self.weights))
        self.is_single = self.n == 1
        self.means: Doubles = np.bincount(key, self.weights * rewards) / self.n
        lowest, highest = np.full(n_keys, np.inf), np.full(n_keys, -np.inf)
        np.minimum.at(lowest, key, rewards)
        np.maximum.at(highest, key, rewards)
        self.is_flat = lowest == highest

    def deviations(self, scale: Scale) -> Doubles:
        """The standard deviation in each key."""
        squares = np.bincount(self.key, self.weights * (self.rewards - self.means[self.key]) ** 2)
        deviations: Doubles = np.sqrt(squares / np.maximum(self.n - (scale is Scale.SAMPLE), 1))
        return deviations

    def means_of_others(self) -> Doubles:
        """For each row the mean of its key without what the row counts as."""
        own = np.bincount(self.member, self.weights * self.rewards)[self.member]
        n = self.n[self.key]
        means: Doubles = (self.means[self.key] * n - own) / np.maximum(n - 1, 1)
        return means

    def silenced(self, values: Doubles) -> Doubles:
        """The values, exactly 0 where a key has nothing to compare."""
        return np.where((self.is_flat | self.is_single)[self.key], 0.0, values)


def _estimate(members: _Members, batch: _Members, rule: AdvantageRule) -> Doubles:
    """`batch` holds the same rows with the whole batch, or their part of it, as their key."""
    if rule.estimator is Estimator.RLOO:
        return members.silenced(members.rewards - members.means_of_others())
    if rule.estimator is Estimator.REINFORCE_PLUS_PLUS:
        return batch.silenced(_scaled(members.rewards - batch.means[batch.key], batch, rule))
    differences = members.silenced(members.rewards - members.means[members.key])
    if rule.estimator is Estimator.GRPO:
        return _scaled(differences, members, rule)
    return _scaled(differences, _Members(differences, batch.key, batch.counted), rule)


def _scaled(differences: Doubles, members: _Members, rule: AdvantageRule) -> Doubles:
    if rule.scale is Scale.NONE:
        return differences
    divisors = (members.deviations(rule.scale) + rule.epsilon)[members.key]
    return np.divide(differences, divisors, out=np.zeros_like(differences), where=divisors > 0)


def _check_lengths(n_rows: int, **given: Sequence[Any] | None) -> None:
    for name, values in given.items():
        if values is not None and len(values) != n_rows:
            raise InvalidInput(f"there are {n_rows} rewards and {len(values)} {name}; give one for each row")


def _parts(key: GroupKey, agents: Sequence[str], rounds: Sequence[int]) -> list[str]:
    """The part of its group that each row is compared in."""
    if key is GroupKey.GROUP:
        return [""] * len(agents)
    if key is GroupKey.GROUP_AND_AGENT:
        return [str(agent) for agent in agents]
    return [f"{agent}.{number}" for agent, number in zip(agents, rounds, strict=True)]


def _checked(
    rewards: Sequence[float] | Doubles,
    groups: Sequence[str],
    trajectories: Sequence[Any] | None,
    parts: Sequence[str],
) -> _Rows:
    values = np.asarray(rewards, np.float64)
    wrong = np.flatnonzero(~(np.abs(values) <= LARGEST_REWARD))
    if wrong.size:
        raise InvalidInput(
            f"the reward of row {wrong[0]} is {values[wrong[0]]}; give a finite number, {LARGEST_REWARD:g} at most"
        )
    trajectory = np.arange(values.size) if trajectories is None else _numbered(trajectories)
    return _Rows(values, _numbered(groups), trajectory, _numbered(parts))


def _numbered(names: Sequence[Any]) -> Codes:
    """A number for each different name, from 0 on in the order they come up."""
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.intp, len(names))


def _codes(values: Codes) -> tuple[Codes, Codes]:
    """For each value the number of its kind, and for each kind the first row that has it, in that order."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    return ranks[inverse], first[order]

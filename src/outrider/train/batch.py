"""A batch: whole groups of trajectories with their samples, advantages and ages, and the arrays that a trainer takes.

Rows are the samples that have tokens, group by group and trajectory by trajectory. Samples of text have an advantage
and count in the baselines; they are no rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from outrider.core.errors import InvalidInput
from outrider.train.advantage import AdvantageRule, Advantages, GroupKey, Weighting, advantages_of
from outrider.train.arrays import Floats, Ints, NDArray, np
from outrider.train.padding import Layout, Overlong, Pad, token_arrays
from outrider.train.sample import Sample, SampledTrajectory, SampleReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories that share task, configuration and seed."""

    group_id: str
    tag: str | None
    seed: int | None
    trajectories: tuple[SampledTrajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccount:
    """Where the tokens of a batch went: what the policy wrote is in the loss, known as text only, or not used."""

    trained: int
    masked: int
    """Context: prompts, observations, templates, and completions that another sample trains."""
    text: int
    """Written, but without ids, as the server counted."""
    unused: int
    """Written in calls that a team's program went on without, as the server counted."""
    without_logprobs: int
    """Of those in the loss."""

    @property
    def generated(self) -> int:
        return self.trained + self.text + self.unused

    @property
    def warning(self) -> str | None:
        """What keeps a trainer from learning of what the policy wrote, if something does."""
        if self.text:
            return (
                f"{self.text:,} of {self.generated:,} tokens are known as text only, since the endpoint gave no token "
                f"ids; {self.trained:,} are in the loss"
            )
        if self.without_logprobs:
            return f"{self.without_logprobs:,} of {self.trained:,} tokens in the loss have no log-probability"
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Made by `Batch.of`. `version` is that of the policy that is about to be trained on it."""

    groups: tuple[Group, ...]
    version: int
    rule: AdvantageRule
    advantages: Advantages
    """One value for each of `samples`."""
    _table: "_Table" = field(repr=False)

    @classmethod
    def of(
        cls,
        trajectories: Iterable[SampledTrajectory],
        *,
        version: int = 0,
        rule: AdvantageRule | None = None,
        group_size: int | None = None,
    ) -> "Batch":
        """The batch of these trajectories, groups in the order they come up; without a group each is its own.

        Each sample is compared by its own reward, which is its trajectory's unless you have given it another.
        Refuses a trajectory without a reward, given twice, or newer than `version`; a group of mixed tags or seeds, and
        one of another size than `group_size`, if that is given.
        """
        rule = rule or AdvantageRule()
        groups = _grouped(trajectories)
        _check(groups, version, group_size)
        table = _Table(groups)
        return cls(groups=groups, version=version, rule=rule, advantages=_advantages(groups, table, rule), _table=table)

    @property
    def trajectories(self) -> tuple[SampledTrajectory, ...]:
        return self._table.trajectories

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All of them, those of text too."""
        return self._table.samples

    @property
    def rows(self) -> tuple[Sample, ...]:
        """Those that have tokens: row i of every array is the i-th."""
        return tuple(self.samples[index] for index in self._table.rows)

    @property
    def agents(self) -> tuple[str, ...]:
        return self._table.agents

    @property
    def tags(self) -> tuple[str | None, ...]:
        """Of the groups."""
        return tuple(group.tag for group in self.groups)

    @property
    def staleness(self) -> Ints:
        """For each trajectory how many versions old the policy of its first turn is; 0 if it has no turn."""
        firsts = (one.first_version for one in self.trajectories)
        ages = (0 if first is None else self.version - first for first in firsts)
        return np.fromiter(ages, np.int32, len(self.trajectories))

    @property
    def weights(self) -> Floats:
        """For each of `samples` what it counts in a loss: 1, or its share if each trajectory counts once.

        If agents are compared apart, those of a trajectory have equal shares in it, however often each has spoken.
        """
        if self.rule.weighting is Weighting.ROW:
            return np.ones(len(self.samples), np.float32)
        trajectory = self._table.trajectory
        agent = np.zeros_like(trajectory) if self.rule.key is GroupKey.GROUP else self._table.agent
        part = trajectory * np.int64(len(self.agents)) + agent
        n_samples = np.bincount(part)[part]
        n_parts = np.rint(np.bincount(trajectory, 1 / n_samples))[trajectory]
        shares: Floats = (1 / (n_samples * n_parts)).astype(np.float32)
        return shares

    @property
    def report(self) -> SampleReport:
        """How turns went into samples, over all trajectories."""
        return sum((one.report for one in self.trajectories), SampleReport())

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that its samples are by; the empty name is the run's own."""
        return tuple(dict.fromkeys(sample.policy for sample in self.samples))

    def by_policy(self) -> dict[str, "Batch"]:
        """A batch for the trainer of each policy, under its name: its samples alone, compared among themselves.

        Groups and trajectories in which it has said nothing are not in it, but for those in which nobody has.
        """
        return {
            name: Batch.of(
                [one.of_policy(name) for one in self.trajectories if not one.samples or name in one.policies],
                version=self.version,
                rule=self.rule,
            )
            for name in self.policies
        }

    def with_rule(self, rule: AdvantageRule) -> "Batch":
        """The same batch with its advantages computed in another way."""
        return Batch.of(self.trajectories, version=self.version, rule=rule)

    def token_accounting(self) -> TokenAccount:
        report = self.report
        return TokenAccount(
            trained=report.n_trained,
            masked=report.n_masked,
            text=report.n_text,
            unused=report.n_unused_tokens,
            without_logprobs=report.n_without_logprobs,
        )

    def to_numpy(
        self,
        *,
        pad: Pad | None = "right",
        pad_id: int = 0,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        overlong: Overlong = "error",
    ) -> dict[str, NDArray[Any]]:
        """The rows as arrays, all new.

        For each token, of shape (rows, longest), or end to end with `pad=None`: `tokens`, `loss_mask`, `logprobs` (of
        the token itself; 0 outside the loss, NaN where the engine gave none), `advantages` (0 outside the loss),
        `versions` (-1 where no policy made the token), `staleness` (0 there), `position_ids`; padded also
        `attention_mask`. Packed rows lie between neighbouring elements of `cu_seqlens`.

        For each row: `lengths`, `is_cut`, `row_trajectory`, `row_group`, `row_agent` (indices into `trajectories`,
        `groups`, `agents`), `row_round`, `row_reward`, `row_advantage`, `row_weight`, `row_staleness`.

        A row of more than `max_length` tokens is an error, or with `overlong="truncate"` loses its end: `is_cut` marks
        it, and `n_cut` counts the tokens of the loss that were lost.
        """
        layout = Layout(
            pad=pad, pad_id=pad_id, max_length=max_length, pad_to_multiple_of=pad_to_multiple_of, overlong=overlong
        )
        rows = self.rows
        arrays = token_arrays(rows, layout)
        arrays |= self._row_arrays()
        mask, advantage = arrays["loss_mask"], arrays["row_advantage"]
        spread = np.repeat(advantage, arrays["lengths"]) if pad is None else advantage[:, None]
        arrays["advantages"] = np.where(mask, spread, np.float32(0))
        arrays["staleness"] = np.where(arrays["versions"] < 0, np.int32(0), np.int32(self.version) - arrays["versions"])
        n_in_loss = sum(int(row.loss_mask.sum()) for row in rows)
        arrays["n_cut"] = np.array(n_in_loss - int(mask.sum()), np.int64)
        return arrays

    def to_torch(self, *, from_numpy: Callable[[NDArray[Any]], Any] | None = None, **layout: Any) -> dict[str, Any]:
        """The arrays of `to_numpy`, which takes the same options, as tensors that share their memory.

        `from_numpy` is `torch.from_numpy` unless another is given. Tensors keep the types of the arrays: ids are int32.
        """
        convert = from_numpy or _torch_from_numpy()
        return {name: convert(array) for name, array in self.to_numpy(**layout).items()}

    def _row_arrays(self) -> dict[str, NDArray[Any]]:
        table, rows = self._table, self._table.rows
        trajectory = table.trajectory[rows]
        return {
            "row_trajectory": trajectory,
            "row_group": table.group[trajectory],
            "row_agent": table.agent[rows],
            "row_round": table.round[rows],
            "row_reward": table.rewards[rows].astype(np.float32),
            "row_advantage": self.advantages.values[rows],
            "row_weight": self.weights[rows],
            "row_staleness": self.staleness[trajectory],
        }


def _torch_from_numpy() -> Callable[[NDArray[Any]], Any]:
    try:
        import torch  # type: ignore[import-not-found] # noqa: PLC0415 what most users of a batch bring along
    except ImportError as exc:
        raise InvalidInput("to_torch needs PyTorch: pip install torch") from exc
    convert: Callable[[NDArray[Any]], Any] = torch.from_numpy
    return convert


class _Table:
    """A batch laid out flat: for each sample its trajectory, for each trajectory its group, as indices."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.trajectories = tuple(chain.from_iterable(group.trajectories for group in groups))
        self.samples = tuple(chain.from_iterable(one.samples for one in self.trajectories))
        self.agents = tuple(dict.fromkeys(sample.agent for sample in self.samples))
        places = {agent: place for place, agent in enumerate(self.agents)}
        sizes = [len(group.trajectories) for group in groups]
        n_samples = [len(one.samples) for one in self.trajectories]
        self.group = np.repeat(np.arange(len(groups), dtype=np.int32), sizes)
        self.trajectory = np.repeat(np.arange(len(self.trajectories), dtype=np.int32), n_samples)
        self.agent = np.fromiter((places[sample.agent] for sample in self.samples), np.int32, len(self.samples))
        self.round = np.fromiter((sample.round for sample in self.samples), np.int32, len(self.samples))
        self.rewards = np.array([sample.reward for sample in self.samples], np.float64)
        self.rows = np.flatnonzero([not sample.is_text for sample in self.samples])


def _grouped(trajectories: Iterable[SampledTrajectory]) -> tuple[Group, ...]:
    groups: dict[str, list[SampledTrajectory]] = {}
    for one in trajectories:
        groups.setdefault(one.rollout_id if one.group_id is None else one.group_id, []).append(one)
    return tuple(
        Group(group_id=group_id, tag=members[0].tag, seed=members[0].seed, trajectories=tuple(members))
        for group_id, members in groups.items()
    )


def _check(groups: tuple[Group, ...], version: int, group_size: int | None) -> None:
    for group in groups:
        if group_size is not None and len(group.trajectories) != group_size:
            raise InvalidInput(f"group {group.group_id!r} has {len(group.trajectories)} trajectories, not {group_size}")
        for one in group.trajectories:
            if (one.tag, one.seed) != (group.tag, group.seed):
                raise InvalidInput(f"group {group.group_id!r} mixes tags or seeds; its members share both")
            _check_one(one, version)
    counts = Counter(one.rollout_id for group in groups for one in group.trajectories)
    if twice := [rollout_id for rollout_id, count in counts.items() if count > 1]:
        raise InvalidInput(f"rollout {twice[0]!r} is given {counts[twice[0]]} times; train on it once")


def _check_one(one: SampledTrajectory, version: int) -> None:
    if one.reward is None or any(sample.reward is None for sample in one.samples):
        raise InvalidInput(
            f"rollout {one.rollout_id!r} has no reward; leave it out, or give it one: sampled(trajectory, reward=…)"
        )
    if one.last_version is not None and one.last_version > version:
        raise InvalidInput(
            f"rollout {one.rollout_id!r} was played by policy version {one.last_version}, and the batch is for "
            f"version {version}; give the version that is trained next"
        )


def _advantages(groups: tuple[Group, ...], table: _Table, rule: AdvantageRule) -> Advantages:
    """Of the samples. A trajectory without any counts in the baseline all the same, as one row."""
    empty = [index for index, one in enumerate(table.trajectories) if not one.samples]
    trajectory = np.concatenate([table.trajectory, np.array(empty, np.int32)])
    names = [sample.agent for sample in table.samples] + [""] * len(empty)
    rounds = [*table.round.tolist(), *(0 for _ in empty)]
    rewards = np.concatenate(
        [table.rewards, np.array([table.trajectories[index].reward for index in empty], np.float64)]
    )
    ids = [groups[index].group_id for index in table.group[trajectory]]
    found = advantages_of(rewards, ids, trajectories=trajectory.tolist(), agents=names, rounds=rounds, rule=rule)
    return Advantages(
        values=found.values[: len(table.samples)],
        n_keys=found.n_keys,
        zero_variance=found.zero_variance,
        single=found.single,
    )

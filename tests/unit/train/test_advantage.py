"""Advantages against cases worked out by hand, and against slow implementations that share no code."""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InvalidInput
from outrider.train import AdvantageRule, Estimator, GroupKey, Scale, Weighting, advantages_of

SQRT2 = math.sqrt(2)


def values(rewards: Sequence[float], groups: str, **rule: object) -> list[float]:
    given = {name: rule.pop(name) for name in ("trajectories", "agents") if name in rule}
    chosen = AdvantageRule(**{"epsilon": 0.0, **rule})
    return advantages_of(rewards, list(groups), rule=chosen, **given).values.tolist()


def close(found: Sequence[float], expected: Sequence[float]) -> bool:
    return np.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        # Group a: mean 1, deviations -1 and 1; group b: mean 4, deviations -2, 0, 2.
        (Scale.NONE, [-1, 1, -2, 0, 2]),
        (Scale.SAMPLE, [-1 / SQRT2, 1 / SQRT2, -1, 0, 1]),
        (Scale.POPULATION, [-1, 1, -math.sqrt(1.5), 0, math.sqrt(1.5)]),
    ],
)
def test_grpo_by_hand(scale: Scale, expected: list[float]):
    assert close(values([0, 2, 2, 4, 6], "aabbb", scale=scale), expected)


def test_grpo_adds_epsilon_to_the_deviation():
    assert close(values([0, 2], "aa", scale=Scale.POPULATION, epsilon=1.0), [-0.5, 0.5])


def test_rloo_by_hand():
    # The others' means: 3, 2, 1 for rewards 0, 2, 4; and each the other's for two.
    assert close(values([0, 2, 4, 1, 5], "aaabb", estimator=Estimator.RLOO), [-3, 0, 3, -4, 4])


def test_reinforce_plus_plus_by_hand():
    # The batch: mean 3, deviations -3, -1, 1, 3, population deviation the root of 5.
    rule = {"estimator": "reinforce++", "scale": "population"}
    assert close(values([0, 2, 4, 6], "aabb", **rule), [x / math.sqrt(5) for x in (-3, -1, 1, 3)])
    # With the groups' baselines: -1, 1, -1, 1, whose population deviation is 1.
    assert close(values([0, 2, 4, 6], "aabb", **{**rule, "estimator": "reinforce++-baseline"}), [-1, 1, -1, 1])


def test_a_trajectory_of_many_rows_counts_once():
    # Two trajectories with rewards 0 and 3; the second has three rows.
    rows = {"trajectories": [0, 1, 1, 1], "scale": "none"}
    assert close(values([0, 3, 3, 3], "aaaa", **rows, weighting="trajectory"), [-1.5, 1.5, 1.5, 1.5])
    assert close(values([0, 3, 3, 3], "aaaa", **rows, weighting="row"), [-2.25, 0.75, 0.75, 0.75])


def test_rloo_leaves_out_the_whole_trajectory():
    rows = {"trajectories": [0, 1, 1, 1, 2], "estimator": "rloo"}
    assert close(values([0, 3, 3, 3, 6], "aaaaa", **rows), [-4.5, 0, 0, 0, 4.5])
    assert close(values([0, 3, 3, 3, 6], "aaaaa", **rows, weighting="row"), [-3.75, 0, 0, 0, 3.75])


def test_agents_are_compared_among_themselves_if_wanted():
    rows = {"agents": ["x", "y", "x", "y"], "trajectories": [0, 0, 1, 1], "scale": "none"}
    assert close(values([0, 10, 2, 20], "aaaa", **rows), [-8, 2, -6, 12])
    assert close(values([0, 10, 2, 20], "aaaa", **rows, key="group+agent"), [-1, -5, 1, 5])


def test_the_batch_of_an_agent_is_its_own():
    rows = {"agents": ["x", "y", "x", "y"], "estimator": "reinforce++", "scale": "none"}
    assert close(values([0, 10, 2, 20], "abcd", **rows, key="group+agent"), [-1, -5, 1, 5])


@pytest.mark.parametrize("estimator", list(Estimator))
@pytest.mark.parametrize("scale", list(Scale))
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_equal_rewards_give_exactly_zero_and_are_reported(estimator: Estimator, scale: Scale, epsilon: float):
    rule = AdvantageRule(estimator=estimator, scale=scale, epsilon=epsilon)
    tenth = [0.1] * 3  # whose mean is not 0.1
    result = advantages_of([*tenth, *tenth], list("aaabbb"), rule=rule)
    assert result.values.tolist() == [0.0] * 6
    assert result.zero_variance == (("a", ""), ("b", ""))
    assert result.n_keys == 2


def test_a_flat_group_stays_zero_beside_one_that_is_not():
    for estimator in (Estimator.GRPO, Estimator.RLOO, Estimator.REINFORCE_PLUS_PLUS_BASELINE):
        result = advantages_of([0.1, 0.1, 0.1, 0, 1], list("aaabb"), rule=AdvantageRule(estimator=estimator))
        assert result.values[:3].tolist() == [0, 0, 0]
        assert result.values[3] < 0 < result.values[4]
        assert result.zero_variance == (("a", ""),)


def test_who_is_alone_has_no_baseline_and_is_reported():
    for estimator in (Estimator.GRPO, Estimator.RLOO, Estimator.REINFORCE_PLUS_PLUS_BASELINE):
        result = advantages_of([5, 0, 1], list("abb"), rule=AdvantageRule(estimator=estimator))
        assert result.values[0] == 0
        assert (result.single, result.zero_variance) == ((("a", ""),), ())


def test_one_trajectory_of_many_rows_is_alone_too():
    assert advantages_of([5, 6], list("aa"), trajectories=[0, 0]).single == (("a", ""),)
    assert advantages_of([5, 6], list("aa"), trajectories=[0, 0], rule=AdvantageRule(weighting="row")).single == ()


def test_keys_name_their_agent_if_agents_are_apart():
    result = advantages_of([1, 1, 1], list("aaa"), agents=["x", "y", "x"], rule=AdvantageRule(key="group+agent"))
    assert (result.zero_variance, result.single) == ((("a", "x"),), (("a", "y"),))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused(wrong: float):
    with pytest.raises(InvalidInput, match=f"the reward of row 1 is {wrong}"):
        advantages_of([0, wrong], list("aa"))


def test_rounds_are_compared_apart_if_wanted_and_named():
    rule = AdvantageRule(key="group+agent+round", scale="none")
    agents, rounds = ["x", "x", "x", "x", "y"], [0, 1, 0, 1, 0]
    result = advantages_of(
        [0, 1, 1, 1, 5], list("aaaaa"), trajectories=[0, 0, 1, 1, 1], agents=agents, rounds=rounds, rule=rule
    )
    assert result.values.tolist() == [-0.5, 0, 0.5, 0, 0]
    assert result.zero_variance == (("a", "x.1"),)
    assert result.single == (("a", "y.0"),)


def test_rewards_too_large_to_compute_with_are_refused():
    with pytest.raises(InvalidInput, match=r"row 2 is 1e\+31; give a finite number, 1e\+30 at most"):
        advantages_of([1e30, -1e30, 1e31], list("aaa"))
    for estimator in Estimator:
        result = advantages_of([1e30, -1e30, 1e30], list("aaa"), rule=AdvantageRule(estimator=estimator))
        assert np.isfinite(result.values).all()
        assert result.values[1] < 0 < result.values[0]


def test_rows_without_a_group_are_refused():
    with pytest.raises(InvalidInput, match="3 rewards and 2 groups"):
        advantages_of([1, 2, 3], list("ab"))
    with pytest.raises(InvalidInput, match="2 rewards and 1 agents"):
        advantages_of([1, 2], list("ab"), agents=["x"])


@pytest.mark.parametrize(
    ("field", "message"),
    [({"estimator": "gae"}, "grpo, rloo"), ({"scale": "std"}, "sample"), ({"epsilon": -1.0}, "epsilon is -1.0")],
)
def test_a_rule_that_there_is_not_is_refused(field: dict[str, object], message: str):
    with pytest.raises(InvalidInput, match=message):
        AdvantageRule(**field)


def test_no_rows_have_no_advantages():
    assert advantages_of([], []).values.tolist() == []


# The slow way: plain Python over dictionaries, each trajectory as its list of rewards.


Row = tuple[float, str, int, str, int]
N_IN_PART = {GroupKey.GROUP: 0, GroupKey.GROUP_AND_AGENT: 1, GroupKey.GROUP_AGENT_AND_ROUND: 2}


def slow(rows: list[Row], rule: AdvantageRule) -> list[float]:
    found = []
    for index, (reward, group, trajectory, *whose) in enumerate(rows):
        n = N_IN_PART[rule.key]

        def in_batch(row: Row, n: int = n, part: tuple[object, ...] = tuple(whose[:n])) -> bool:
            return row[3 : 3 + n] == part

        def in_key(row: Row, group: str = group, in_batch: Any = in_batch) -> bool:
            return row[1] == group and in_batch(row)

        own = index if rule.weighting is Weighting.ROW else trajectory
        found.append(
            slow_one(reward, own, members(rows, in_key, rule), members(rows, in_batch, rule), rule, rows, in_batch)
        )
    return found


def members(rows, chosen, rule) -> dict[int, list[float]]:
    counted: dict[int, list[float]] = {}
    for index, row in enumerate(rows):
        if chosen(row):
            counted.setdefault(index if rule.weighting is Weighting.ROW else row[2], []).append(row[0])
    return counted


def mean(counted: dict[int, list[float]]) -> float:
    return fmean(fmean(rewards) for rewards in counted.values())


def deviation(counted: dict[int, list[float]], rule: AdvantageRule) -> float:
    middle = mean(counted)
    squares = sum(fmean((reward - middle) ** 2 for reward in rewards) for rewards in counted.values())
    return math.sqrt(squares / max(len(counted) - (rule.scale is Scale.SAMPLE), 1))


def is_idle(counted: dict[int, list[float]]) -> bool:
    return len(counted) < 2 or len({reward for rewards in counted.values() for reward in rewards}) < 2


def slow_one(reward, own, key, batch, rule, rows, in_batch) -> float:  # noqa: PLR0917
    def scaled(value: float, counted: dict[int, list[float]]) -> float:
        if rule.scale is Scale.NONE:
            return value
        return value / (deviation(counted, rule) + rule.epsilon)

    if rule.estimator is Estimator.REINFORCE_PLUS_PLUS:
        return 0.0 if is_idle(batch) else scaled(reward - mean(batch), batch)
    if is_idle(key):
        return 0.0
    if rule.estimator is Estimator.RLOO:
        return reward - mean({number: rewards for number, rewards in key.items() if number != own})
    if rule.estimator is Estimator.GRPO:
        return scaled(reward - mean(key), key)
    plain = AdvantageRule(estimator="grpo", scale="none", key=rule.key, weighting=rule.weighting)
    centred = [(value, *row[1:]) for value, row in zip(slow(rows, plain), rows, strict=True)]
    return scaled(reward - mean(key), members(centred, in_batch, rule))


tables = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.5, 1.0, -2.0]),
        st.sampled_from("ab"),
        st.integers(0, 3),
        st.sampled_from("xy"),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=9,
).map(lambda rows: [(reward, group, number + 10 * (group == "b"), *whose) for reward, group, number, *whose in rows])
rules = st.builds(
    AdvantageRule,
    estimator=st.sampled_from(Estimator),
    scale=st.sampled_from(Scale),
    epsilon=st.sampled_from([1e-6, 0.5]),
    key=st.sampled_from(GroupKey),
    weighting=st.sampled_from(Weighting),
)


@given(tables, rules)
def test_the_fast_way_and_the_slow_way_agree(rows: list[Row], rule: AdvantageRule):
    rewards, groups, trajectories, agents, rounds = zip(*rows, strict=True)
    found = advantages_of(rewards, groups, trajectories=trajectories, agents=agents, rounds=rounds, rule=rule).values
    assert np.allclose(found, slow(rows, rule), rtol=1e-4, atol=1e-5)


@given(tables)
def test_one_row_a_trajectory_is_the_same_by_row_and_by_trajectory(rows: list[Row]):
    rewards, groups, *_ = zip(*rows, strict=True)
    one, other = (advantages_of(rewards, groups, rule=AdvantageRule(weighting=each)).values for each in Weighting)
    assert np.array_equal(one, other)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_grpo_is_the_standard_score_of_the_statistics_module(rewards: list[float]):
    for scale, deviation_of in (("sample", stdev), ("population", pstdev)):
        found = values(rewards, "g" * len(rewards), scale=scale, epsilon=1e-3)
        expected = [(reward - fmean(rewards)) / (deviation_of(rewards) + 1e-3) for reward in rewards]
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)

"""The numbers of a run, checked against straightforward counting over all lines."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import wire
from outrider.core.status import RolloutStatus
from outrider.evaluate.results import FailureLine, ResultLine, Spent
from outrider.evaluate.summary import MAX_GROUPS, Scoreboard, Summary

AT = datetime(2025, 6, 1, tzinfo=UTC)
OUTCOMES = ("pass", "half", "zero", "unscored", "agent", "infrastructure", "cancelled")


def line(task: str, sample: int, outcome: str, **facts: Any) -> ResultLine:
    reward = {"pass": 1.0, "half": 0.5, "zero": 0.0}.get(outcome)
    failed = outcome in ("agent", "infrastructure")
    status = RolloutStatus.FAILED if failed else RolloutStatus.SUCCEEDED
    failure = FailureLine(
        boundary="agent" if outcome == "agent" else "policy",
        kind="Error",
        message="",
        infrastructure=outcome == "infrastructure",
    )
    defaults = {"seconds": 1.0, "n_attempts": 1, "n_turns": 2, "prompt_tokens": 10, "completion_tokens": 5}
    return ResultLine(
        rollout_id=f"{task}:{sample}",
        task_id=task,
        sample=sample,
        status=RolloutStatus.CANCELLED if outcome == "cancelled" else status,
        reward=reward,
        failure=failure if failed else None,
        **{**defaults, **facts},
    )


def summary_of(lines: list[ResultLine], **settings: Any) -> Summary:
    board = Scoreboard(**settings)
    for result in lines:
        board.add(result)
    return board.summary()


runs = st.lists(st.lists(st.sampled_from(OUTCOMES), min_size=4, max_size=4), min_size=1, max_size=6)


@given(runs, st.randoms(use_true_random=False))
def test_scores_over_scored_and_over_all_are_what_counting_gives(run: list[list[str]], shuffle: random.Random):
    lines = [line(f"t{task}", i, outcome) for task, samples in enumerate(run) for i, outcome in enumerate(samples)]
    shuffle.shuffle(lines)

    total = summary_of(lines, samples_per_task=4).total

    rewards = [result.reward for result in lines]
    scored = [reward for reward in rewards if reward is not None]
    assert (total.n, total.n_tasks, total.n_scored) == (len(lines), len(run), len(scored))
    assert (total.reward.scored is None) == (not scored)
    if total.reward.scored is not None:
        assert total.reward.scored.mean == pytest.approx(fmean(scored))
    assert total.reward.all is not None
    assert total.reward.all.mean == pytest.approx(fmean(reward or 0.0 for reward in rewards))
    assert total.infrastructure == sum(outcome == "infrastructure" for samples in run for outcome in samples)
    for k in (1, 2, 4):
        for missing, found in ((("infrastructure", "cancelled"), total.pass_at[k].scored), ((), total.pass_at[k].all)):
            shares = []
            for samples in run:
                known = [outcome == "pass" for outcome in samples if outcome not in missing]
                if len(known) >= k:
                    choices = list(combinations(known, k))
                    shares.append(sum(map(any, choices)) / len(choices))
            assert (found is None) == (not shares)
            if found is not None:
                assert (found.mean, found.n) == (pytest.approx(fmean(shares)), len(shares))


@given(runs, st.randoms(use_true_random=False))
def test_neither_the_order_of_ends_nor_letting_go_of_whole_tasks_changes_a_number(
    run: list[list[str]], shuffle: random.Random
):
    lines = [
        line(f"t{task}", i, outcome, tag="ab"[task % 2])
        for task, samples in enumerate(run)
        for i, outcome in enumerate(samples)
    ]
    kept, let_go = summary_of(lines), summary_of(lines, samples_per_task=4)
    assert wire.to_json(kept) == wire.to_json(let_go)
    shuffle.shuffle(lines)
    again = summary_of(lines, samples_per_task=4).total.reward.scored
    assert (again is None) == (kept.total.reward.scored is None)
    if again is not None and kept.total.reward.scored is not None:
        assert again.mean == pytest.approx(kept.total.reward.scored.mean)
        assert again.low == pytest.approx(kept.total.reward.scored.low, abs=1e-9)


def test_a_summary_in_the_middle_counts_tasks_whose_samples_are_still_to_come_and_changes_nothing():
    board = Scoreboard(samples_per_task=2)
    board.add(line("a", 0, "pass"))
    first = board.summary()
    assert (first.total.n_tasks, first.total.pass_at[1].scored, board.mean_reward) == (
        1,
        first.total.pass_at[1].all,
        1.0,
    )
    assert first.total.pass_at[2].all is None
    assert wire.to_json(board.summary()) == wire.to_json(first)
    board.add(line("a", 1, "zero"))
    last = board.summary().total
    assert last.pass_at[2].all is not None
    assert (last.n_tasks, last.pass_at[2].all.mean, board.mean_reward) == (1, 1.0, 0.5)


def test_only_tasks_under_way_are_remembered():
    board = Scoreboard(samples_per_task=2)
    for number in range(500):
        board.add(line(f"t{number}", 0, "pass"))
        board.add(line(f"t{number}", 1, "zero"))
        assert len(board._open) == 0
    assert board.summary().total.n_tasks == 500


def test_groups_are_told_apart_by_tag_and_by_kind():
    lines = [
        line("a", 0, "pass", tag="math", kinds={"level": "1"}),
        line("b", 0, "zero", tag="math", kinds={"level": "2"}),
    ]
    found = summary_of(lines)
    assert {name: list(groups) for name, groups in found.by.items()} == {"tag": ["math"], "level": ["1", "2"]}
    means = {value: group.reward.scored.mean for value, group in found.by["level"].items() if group.reward.scored}
    assert means == {"1": 1.0, "2": 0.0}


def test_a_field_with_a_value_for_every_task_groups_nothing():
    lines = [line(f"t{n}", 0, "pass", tag="math", kinds={"topic": str(n)}) for n in range(MAX_GROUPS + 5)]
    for samples_per_task in (None, 1):
        found = summary_of(lines, samples_per_task=samples_per_task)
        assert (list(found.by), found.not_grouped) == (["tag"], ["topic"])
        assert found.by["tag"]["math"].n == len(lines)


def test_the_success_threshold_can_be_chosen():
    lines = [line("a", 0, "half"), line("b", 0, "zero")]
    for success_at, share in ((1.0, 0.0), (0.5, 0.5)):
        found = summary_of(lines, success_at=success_at).total.pass_at[1].scored
        assert found is not None
        assert found.mean == share


def test_work_is_summed_and_a_pause_between_two_runs_does_not_count():
    lines = [
        line(
            "a", 0, "pass", started_at=AT, ended_at=AT + timedelta(seconds=10), n_attempts=3, n_retries=2, seconds=10.0
        ),
        line("b", 0, "pass", started_at=AT + timedelta(hours=5), ended_at=AT + timedelta(hours=5, seconds=10)),
    ]
    found = summary_of(lines)
    assert (found.wall_seconds, found.rollouts_per_second, found.tokens_per_second) == (20.0, 0.1, 0.5)
    total = found.total
    assert (total.prompt_tokens, total.completion_tokens, total.model_calls) == (20, 10, 4)
    assert (total.retries, total.call_retries) == (2, 2)
    assert total.seconds is not None
    assert (total.seconds.mean, total.seconds.max) == (5.5, 10.0)
    assert (found.started_at, found.ended_at) == (AT, AT + timedelta(hours=5, seconds=10))


def test_a_histogram_counts_each_rollout_once():
    random_ = random.Random(1)
    lines = [line(f"t{n}", 0, "pass", seconds=random_.lognormvariate(0, 2)) for n in range(300)]
    bars = summary_of(lines).histograms["seconds"]
    assert sum(bar.n for bar in bars) == 300
    assert all(before.high == pytest.approx(after.low) for before, after in pairwise(bars))
    counts: defaultdict[int, int] = defaultdict(int)
    for result in lines:
        counts[next(i for i, bar in enumerate(bars) if (result.seconds or 0) <= bar.high * 1.03)] += 1
    assert abs(counts[len(bars) // 2] - bars[len(bars) // 2].n) <= 20


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_rollouts_that_all_took_the_same_time_have_a_histogram_too(seconds: float):
    bars = summary_of([line("a", n, "pass", seconds=seconds) for n in range(3)]).histograms["seconds"]
    assert [bar.n for bar in bars] == ([3] if seconds else [])


def test_nothing_counted_is_a_summary_of_nothing():
    found = summary_of([])
    assert (found.total.n, found.total.reward.scored, found.total.pass_at, found.by) == (0, None, {}, {})
    assert (found.wall_seconds, found.rollouts_per_second) == (0, None)


def test_what_was_spent_is_counted_whole():
    spent = Spent(calls=3, prompt_tokens=100, completion_tokens=50, call_retries=1, model_seconds=2.0, seconds=4.0)
    board = Scoreboard(prices=(2.0, 8.0))
    board.add(line("a", 0, "pass", n_attempts=2, others=spent))
    board.add_open(line("b", 0, "unscored"))
    board.add_replaced(line("c", 0, "agent"))
    found = board.summary(n_planned=5)
    total = found.total
    assert (total.model_calls, total.prompt_tokens, total.completion_tokens) == (2 + 3 + 2 + 2, 130, 65)
    assert (total.retries, total.call_retries, total.attempt_seconds) == (1, 1, 7.0)
    assert (found.n_planned, found.n_begun, total.n, found.n_replaced) == (5, 2, 1, 1)
    assert found.money == pytest.approx((130 * 2 + 65 * 8) / 1e6)
    assert (total.n_scored, total.statuses) == (1, {"succeeded": 1})

"""Paired comparisons, checked against numbers that are known."""

import math
import random

import pytest

from outrider.core.status import RolloutStatus
from outrider.evaluate.compare import BOOTSTRAP, FEWEST_RESAMPLES, MCNEMAR, bootstrap, compare, mcnemar
from outrider.evaluate.compare_page import compare_page
from outrider.evaluate.results import ResultLine


def lines(rewards: dict[str, list[float | None]]) -> list[ResultLine]:
    return [
        ResultLine(
            rollout_id=f"{task}:{sample}", task_id=task, sample=sample, status=RolloutStatus.SUCCEEDED, reward=reward
        )
        for task, samples in rewards.items()
        for sample, reward in enumerate(samples)
    ]


_EXACT = 2 * sum(math.comb(2200, k) for k in range(1001)) / 2**2200


@pytest.mark.parametrize(
    ("n_better", "n_worse", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (10, 2, 0.03857421875), (6, 6, 1.0), (1200, 1000, _EXACT)],
)
def test_mcnemars_p_is_that_of_fair_coins(n_better: int, n_worse: int, p: float):
    assert mcnemar(n_better, n_worse) == mcnemar(n_worse, n_better) == pytest.approx(p, rel=1e-9)


def test_single_samples_of_0_and_1_are_compared_by_mcnemar():
    a = lines({f"t{n}": [0.0] for n in range(12)})
    b = lines({f"t{n}": [1.0 if n < 10 else 0.0] for n in range(12)})
    found = compare(a, b)
    assert (found.test, found.n_better, found.n_worse, found.n_same) == (MCNEMAR, 10, 0, 2)
    assert found.p == pytest.approx(2 / 2**10)
    assert (found.mean_a, found.mean_b) == (0.0, pytest.approx(10 / 12))


def test_other_rewards_and_several_samples_are_compared_by_resampling_tasks():
    rng = random.Random(0)
    base = {f"t{n}": rng.random() for n in range(60)}
    a = lines({task: [value, value] for task, value in base.items()})
    better = lines({task: [value + 0.05 + 0.1 * (n % 2)] for n, (task, value) in enumerate(base.items())})
    same = lines({task: [value + 0.1 * (-1) ** n] for n, (task, value) in enumerate(base.items())})
    found = compare(a, better)
    assert (found.test, found.p < 0.01) == (BOOTSTRAP, True)
    assert found.difference.low is not None
    assert found.difference.low < 0.1 < (found.difference.high or 0)
    assert compare(a, better) == found, "asked again it says the same"
    assert compare(a, same).p > 0.05


def test_the_bootstrap_rejects_by_chance_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outrider.evaluate.compare.MOST_RESAMPLES", FEWEST_RESAMPLES)
    rng = random.Random(1)
    ps = [bootstrap([rng.gauss(0, 1) for _ in range(40)], seed=n)[1] for n in range(200)]
    assert 0.02 < sum(p < 0.05 for p in ps) / len(ps) < 0.11


def test_tasks_of_one_run_alone_and_without_a_score_are_named_and_left_out():
    a = lines({"both": [1.0], "only a": [1.0], "lost": [None]})
    b = lines({"both": [0.0], "only b": [1.0], "lost": [1.0]})
    found = compare(a, b, names=("old", "new"))
    assert [pair.task_id for pair in found.tasks] == ["both"]
    assert (list(found.only_a), list(found.only_b), list(found.unscored)) == (["only a"], ["only b"], ["lost"])
    page = compare_page(found)
    assert "1 tasks are in old alone" in page
    assert "new against old" in page


def test_what_models_said_is_text_in_the_page():
    hostile = [
        ResultLine(rollout_id="r", task_id="<b>t</b>", status=RolloutStatus.SUCCEEDED, reward=1.0, output="<script>x")
    ]
    page = compare_page(compare(hostile, hostile, names=("<i>", "b")))
    assert "<script" not in page
    assert "&lt;script&gt;x" in page
    assert "<b>t" not in page

"""Plans: the same rollouts whenever they are made, and no going on with another one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutConfig
from outrider.core.seeds import derived_seed
from outrider.core.task import Task
from outrider.evaluate.plan import Plan, check_goes_on, safe_name

TASKS = (Task(task_id="q1", question="1 + 1?", answer="2"), Task(task_id="q 2", question="2 + 2?", answer="4"))
PLAN = Plan(
    run="math-1", tasks=TASKS, samples_per_task=2, seed=7, tag="math", settings={"scorer": "math", "model": "m"}
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=120)


def test_rollouts_are_samples_of_tasks_with_ids_that_can_be_typed():
    requests = list(PLAN.requests())
    assert len(PLAN) == len(requests) == 4
    assert requests[0].rollout_id == "math-1/q1:0"
    assert requests[1].rollout_id == "math-1/q1:1"
    assert re.fullmatch(r"math-1/q-2=[0-9a-f]{16}:0", requests[2].rollout_id or "")
    assert requests[0].metadata == {"run": "math-1", "task_id": "q1", "sample": 0}
    assert requests[0].input == TASKS[0].as_input()
    assert {request.group_id for request in requests[:2]} == {"math-1/q1"}
    assert {request.tag for request in requests} == {"math"}
    assert len({request.seed for request in requests}) == 4


def test_making_a_plan_again_gives_the_same_rollouts_and_the_same_identity():
    again = Plan(run="math-1", tasks=TASKS, samples_per_task=2, seed=7, tag="math", settings=PLAN.settings)
    assert list(again.requests()) == list(PLAN.requests())
    assert again.identity() == PLAN.identity()
    check_goes_on(PLAN.identity(), again)


def test_seeds_do_not_depend_on_the_process():
    assert [derived_seed(0, "q1", sample) for sample in range(3)] == [286648398, 1880980924, 745470699]


@given(st.integers(-(2**63), 2**63), texts, st.integers(0, 1000))
def test_a_seed_fits_every_generator(seed: int, task_id: str, sample: int):
    assert 0 <= derived_seed(seed, task_id, sample) < 2**31


@given(st.lists(texts, min_size=2, max_size=8, unique=True))
def test_names_are_plain_short_and_never_the_same_for_two(names: list[str]):
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._=-]{1,100}", name) for name in safe)


def test_a_name_that_looks_like_a_mended_one_stays_another():
    assert safe_name(safe_name("a b")) != safe_name("a b")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (replace(PLAN, tasks=TASKS[:1]), "the tasks are not the same (2 then, 1 now)"),
        (replace(PLAN, tasks=(TASKS[0], replace(TASKS[1], answer="5"))), "the tasks are not the same (2 then, 2 now)"),
        (replace(PLAN, samples_per_task=1), "samples_per_task was 2, now it is 1"),
        (replace(PLAN, tasks=(TASKS[1], TASKS[0])), "the tasks are not the same (2 then, 2 now)"),
        (replace(PLAN, seed=8), "seed was 7, now it is 8"),
        (replace(PLAN, tag="py"), 'tag was "math", now it is "py"'),
        (replace(PLAN, settings={"scorer": "f1", "model": "m"}), 'scorer was "math", now it is "f1"'),
        (replace(PLAN, settings={"model": "m"}), 'scorer was "math", now it is not given'),
        (replace(PLAN, config=RolloutConfig(max_attempts=9)), "max_attempts was 3, now it is 9"),
    ],
)
def test_going_on_with_another_plan_is_refused_and_what_differs_is_said(plan: Plan, says: str):
    with pytest.raises(InvalidInput, match="was begun with another plan") as caught:
        check_goes_on(PLAN.identity(), plan)
    assert says in str(caught.value)
    assert "; " not in str(caught.value), "one thing differs"


def test_a_plan_may_be_extended_by_samples_and_by_tasks_behind_those_it_had():
    more = replace(PLAN, tasks=(*TASKS, Task(task_id="q9", question="?")), samples_per_task=5)
    check_goes_on(PLAN.identity(), more)
    assert {r.rollout_id for r in PLAN.requests()} < {r.rollout_id for r in more.requests()}


@pytest.mark.parametrize("wrong", [{"samples_per_task": 0}, {"run": ""}])
def test_a_plan_of_nothing_is_refused(wrong: dict[str, object]):
    with pytest.raises(InvalidInput):
        replace(PLAN, **wrong)

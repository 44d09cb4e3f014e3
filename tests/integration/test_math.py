"""Math with its real parts: the symbolic library in its own processes, and the script that solves the bundled tasks."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from judging import agreeing
from leaks import no_leaks
from outrider.core.chat import Message
from outrider.core.errors import InvalidInput, PolicyUnusable, ScoreError
from outrider.core.task import Task
from outrider.env import Environments, Score
from outrider.env.registry import bundled_tasks, environments_of
from outrider.env.scoring import ScorerConfig, scorer_of
from outrider.env.scoring.math import MathScorer
from outrider.policy import ChatPolicy
from outrider.policy.scripted.math import MathScript
from outrider.policy.scripted.policy import ScriptedPolicy, options_of
from outrider.policy.spec import PolicySpec
from outrider.testing import ModelServer, eventually
from outrider.testing.environment import check_environment

ENDLESS = r"\boxed{9^{9^{9^9}}}"


def task(expected: object) -> Task:
    return Task(task_id="t", question="?", answer=expected)


@pytest.fixture
async def scorer() -> AsyncIterator[MathScorer]:
    made = MathScorer(ScorerConfig(check_seconds=10))
    yield made
    await made.close()


def children() -> set[int]:
    """The processes that this one has started and that still are."""
    found: set[int] = set()
    for each in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (each / "children").read_text().split()))
    return found


async def play(environments: Environments, task: Task, policy: ChatPolicy) -> Score:
    """One episode, as an agent plays it."""
    env = environments.make(task)
    messages: list[Message] = [*await env.reset(1)]
    for _ in range(5):
        completion = await policy.complete(messages, tools=env.tools, session=task.task_id)
        step = await env.step(completion.message)
        messages += [completion.message, *step.observation]
        if step.terminated:
            break
    score = await env.score()
    await env.close()
    assert score is not None
    return score


async def mean_reward(model: str, tasks: list[Task], **config: object) -> tuple[float, float]:
    """The mean reward over the tasks, and the mean number of tool calls."""
    environments = environments_of("math", config)
    await environments.check()
    policy = ScriptedPolicy({"math": MathScript()}, name=model, options=options_of(model))
    scores = [await play(environments, each, policy) for each in tasks]
    await environments.close()
    n_calls = sum(score.metrics["tool_calls"] for score in scores)
    return sum(score.reward for score in scores) / len(scores), n_calls / len(scores)


async def test_the_solver_solves_every_bundled_task_with_the_calculator():
    before = children()
    async with no_leaks():
        reward, n_calls = await mean_reward("builtin:solver", bundled_tasks("math"))
    assert reward == 1.0
    assert n_calls > 0.8
    assert children() <= before


async def test_the_solver_needs_no_calculator_since_a_calculation_equals_its_result():
    tasks = bundled_tasks("math")[::4]
    assert await mean_reward("builtin:solver", tasks, calculator=False) == (1.0, 0.0)


async def test_one_who_guesses_gets_next_to_nothing():
    reward, _ = await mean_reward("builtin:random", bundled_tasks("math"))
    assert reward < 0.05


async def test_the_environment_keeps_the_contract_whatever_a_model_says():
    environments = environments_of("math", {"scorer_config": {"check_seconds": 5}})
    question = Task(task_id="sum", question="What is 40 + 2?", answer="42")
    await check_environment(lambda: environments.make(question), actions=[r"\boxed{42}"])
    await environments.close()


EQUAL: list[tuple[object, str]] = [
    ("x^2 + 2x + 1", "(x+1)**2"),
    (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt{2}}}"),
    (r"2\pi", "2*pi"),
    (r"2\pi", "6.283185"),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
    (r"\{1, 2\}", "x = 2 or x = 1"),
    (r"(-\infty, 5)", "x < 5"),
    ("x < 5", "(-inf, 5)"),
    ("[1, 2)", r"\left[ 1, 2 \right)"),
    ("(7, 3)", "x = 7, y = 3"),
    ("90", "90°"),
    ("e^x", "exp(x)"),
    ("12", "3 · 4"),
    ("10!", "3628800"),
    ("A", r"\boxed{\text{(A)}}"),
    ("2x + 3y = 5", "3y + 2x = 5"),
    ("sin(x) + 1", "1 + sin x"),
    ("x + 1", r"So it is \(1 + x\), as was to be shown."),
    ("x^2 + 1", "So we get 1 + x^2 in the end."),
    (["7", "x + 1"], "1 + x"),
    ("5", "5 m"),
    ("5m", "m + 4m"),
]

DIFFERENT: list[tuple[object, str]] = [
    ("x^2 + 2x + 1", "(x+1)^3"),
    ("5", "5x"),
    ("5", "the total is 5x"),
    ("3", "x^2 + 1"),
    ("(1, 2)", "(2, 1)"),
    ("[1, 2)", "(1, 2)"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    ("12ab", "12"),
    ("5m", "5"),
    (r"\log 2", r"\ln 2"),
    ("A", "B"),
    ("x", r"\boxed{(x+1)^{100000}}"),
    ("5", "\\boxed{\x00}"),
    ("x^2", "\ud800"),
    ("5", "9**9**9**9"),
    ("x", "nonsense \\frac{{{ $$ \\"),
    ("5", "x" * 10_000),
]


async def test_answers_count_by_what_they_mean(scorer: MathScorer):
    pairs = EQUAL + DIFFERENT
    scores = await asyncio.gather(*(scorer.score(given, task(expected)) for expected, given in pairs))
    right = [pair for pair, score in zip(pairs, scores, strict=True) if score.reward == 1.0]
    assert right == EQUAL


async def test_a_formula_without_end_ends_in_a_clear_result_and_the_next_is_scored_as_ever():
    scorer = MathScorer(ScorerConfig(check_seconds=1, max_processes=1))
    async with no_leaks(), asyncio.timeout(60):
        score = await scorer.score(ENDLESS, task("5"))
        assert score.reward == 0.0
        assert "takes more than 1 s" in score.explanation
        score = await MathScorer(ScorerConfig()).score("5", task("5"))
        assert score.reward == 1.0
        await scorer.close()


async def test_others_are_scored_while_one_takes_long_and_a_cancelled_one_leaves_no_process():
    before = children()
    scorer = MathScorer(ScorerConfig(check_seconds=100))
    async with no_leaks(), asyncio.timeout(60):
        slow = asyncio.create_task(scorer.score(ENDLESS, task("5")))
        assert (await scorer.score("1 + x", task("x + 1"))).reward == 1.0
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert len(children() - before) == 1
        await scorer.close()
    assert children() <= before


async def test_an_expected_answer_that_cannot_be_read_is_a_failure_of_scoring(scorer: MathScorer):
    with pytest.raises(ScoreError, match=r"expected answer .* cannot be read"):
        await scorer.score("5", task("\\"))


async def test_a_process_that_is_killed_is_replaced(scorer: MathScorer):
    before = children()
    assert (await scorer.score("1 + x", task("x + 1"))).reward == 1.0
    [pid] = children() - before
    os.kill(pid, signal.SIGKILL)
    assert (await scorer.score("2 + x", task("x + 2"))).reward == 1.0


async def test_a_closed_scorer_stops_what_is_under_way_and_starts_nothing_new():
    before = children()
    scorer = MathScorer(ScorerConfig(check_seconds=100, max_processes=1))
    async with no_leaks(), asyncio.timeout(60):
        slow = asyncio.create_task(scorer.score(ENDLESS, task("5")))

        async def started() -> bool:
            return children() > before

        await eventually(started, within_seconds=30)
        await scorer.close()
        with pytest.raises(ScoreError, match=r"closed|cannot start"):
            await slow
        with pytest.raises(ScoreError, match="closed"):
            await scorer.score("1 + x", task("x + 1"))
    assert children() <= before


def test_scoring_works_on_an_event_loop_outside_of_the_main_thread():
    rewards: list[float] = []

    async def score() -> None:
        scorer = MathScorer(ScorerConfig(check_seconds=10))
        rewards.append((await scorer.score("1 + x", task("x + 1"))).reward)
        await scorer.close()

    thread = threading.Thread(target=lambda: asyncio.run(score()))
    thread.start()
    thread.join(60)
    assert rewards == [1.0]


def test_what_scores_and_searches_loads_its_libraries_only_when_they_are_needed():
    modules = "outrider.env.scoring, outrider.env.math, outrider.env.rag, outrider.policy.scripted.math"
    heavy = "{'sympy', 'math_verify', 'numpy', 'bm25s', 'aiohttp'}"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "set()\n"


async def test_a_missing_library_is_found_before_a_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install -e \S+\[math\]"):
        await environments_of("math").check()


async def test_a_judge_behind_a_real_endpoint_is_asked_and_paid_for():
    async with no_leaks(), ModelServer(agreeing) as server:
        spec = PolicySpec(model="test-model", base_urls=(server.base_url,))
        scorer = scorer_of("judge", ScorerConfig(judge=spec))
        await scorer.check()
        score = await scorer.score("The capital is Paris", task("Paris"))
        await scorer.close()
    assert score.reward == 1.0
    assert score.metrics["judge_prompt_tokens"] > 0
    assert score.metrics["judge_completion_tokens"] > 0


async def test_a_judge_that_cannot_be_used_is_found_before_a_run_and_stops_it():
    async with ModelServer(agreeing, key="secret") as server:
        spec = PolicySpec(model="test-model", base_urls=(server.base_url,), api_key_env=("none",))
        scorer = scorer_of("judge", ScorerConfig(judge=spec))
        with pytest.raises(InvalidInput, match="No key was sent"):
            await scorer.check()
        with pytest.raises(PolicyUnusable):
            await scorer.score("Paris", task("Paris"))
        await scorer.close()

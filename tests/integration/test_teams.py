"""The ready-made teams at work: on real environments, played by the built-in policies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider.core.chat import Role
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.registry import bundled_tasks, environments_of
from outrider.orchestra import (
    BaseOrchestra,
    BatchResult,
    Orchestra,
    Performance,
    SearchMultiAgentOrchestra,
    Team,
)
from outrider.orchestra.teams import (
    READY_MADE,
    debate,
    proposer_solver,
    router,
    search_critic,
    solver_verifier,
    team_of,
)
from outrider.orchestra.teams.solver_verifier import SOLVER
from outrider.policy import PolicySpec, open_policy
from playing import Speaker

PLAYED = [
    ("search-critic", "rag", 25),
    ("router", "rag", 25),
    ("solver-verifier", "math", 6),
    ("debate", "math", 6),
    ("proposer-solver", "math", 6),
    ("planner-actor", "math", 6),
    ("planner-actor", "py", 4),
    ("planner-actor", "FrozenLake", 4),
]


async def play(
    team: BaseOrchestra, mode: str | None, tasks: list[Task], model: str, seed: int = 1, **further: str
) -> BatchResult:
    """Without a mode nothing is scored, and the last words are the output."""
    opened = {name: await open_policy(PolicySpec(model=each)) for name, each in {"": model, **further}.items()}
    environments = None if mode is None else environments_of(mode)
    try:
        policies = {name: each for name, each in opened.items() if name}
        return await team.run(tasks, policy=opened[""], policies=policies, environments=environments, seed=seed)
    finally:
        if environments is not None:
            await environments.close()


def test_every_ready_made_team_is_played():
    assert {team for team, _, _ in PLAYED} == set(READY_MADE)


@pytest.mark.parametrize(("team", "mode", "n"), PLAYED)
async def test_the_solver_plays_every_part_of_a_ready_made_team(team: str, mode: str, n: int):
    result = await play(team_of(f"team:{team}"), mode, bundled_tasks(mode, limit=n, seed=3), "builtin:solver")
    assert [outcome.failure for outcome in result.outcomes] == [None] * n
    assert [outcome.reward for outcome in result.outcomes] == [1.0] * n


@pytest.mark.parametrize(("team", "mode", "n"), PLAYED)
@pytest.mark.parametrize("model", ["builtin:random", "builtin:noisy?p=0.5"])
async def test_a_team_that_errs_still_comes_to_an_end(team: str, mode: str, n: int, model: str):
    result = await play(team_of(f"team:{team}"), mode, bundled_tasks(mode, limit=min(n, 4), seed=3), model)
    assert [outcome.failure for outcome in result.outcomes] == [None] * min(n, 4)


async def right(team: BaseOrchestra, model: str, **further: str) -> float:
    """The share of all math tasks, three times, that come to the answer of one who knows."""
    tasks = bundled_tasks("math")
    known = await play(alone(), None, tasks, "builtin:solver")
    played = [await play(team, None, tasks, model, seed, **further) for seed in range(3)]
    return sum(
        outcome.output == answer.output
        for result in played
        for outcome, answer in zip(result.outcomes, known.outcomes, strict=True)
    ) / (len(tasks) * len(played))


def alone() -> Orchestra:
    async def program(team: Team) -> str:
        return (await team.call("solver")).text

    return Orchestra([SOLVER], program)


async def test_a_team_is_right_more_often_than_one_of_its_agents_alone():
    noisy = "builtin:noisy?p=0.5"
    single = await right(alone(), noisy)
    assert single == pytest.approx(0.5, abs=0.1)
    assert await right(solver_verifier(), noisy) > single + 0.1
    assert await right(debate(), noisy) > single + 0.1


async def test_more_rounds_and_a_better_verifier_help():
    noisy = "builtin:noisy?p=0.6"
    once = await right(solver_verifier(max_rounds=1), noisy)
    often = await right(solver_verifier(max_rounds=6), noisy)
    settings = {"max_rounds": 6, "agents": {"verifier": {"policy": "sure"}}}
    best = await right(team_of("team:solver-verifier", settings), noisy, sure="builtin:solver")
    assert once < often - 0.1 < best - 0.2


async def test_rows_say_who_spoke_why_and_what_they_had_read():
    def says(prompt: str, _: int) -> str:
        if "You are the verifier" in prompt:
            return f"<verify>{'approve' if 'round 2' in prompt else 'reject'}</verify>"
        return "\\boxed{1}"

    result = await solver_verifier().run(["What is 1?"], policy=Speaker(says))
    assert [(row.call_id, row.verdict, row.reads) for row in result.rows] == [
        ("solver.0.0", "", ()),
        ("verifier.0.0", "reject", ("solver.0.0",)),
        ("solver.1.0", "", ("solver.0.0", "verifier.0.0")),
        ("verifier.1.0", "approve", ("solver.0.0", "solver.1.0")),
    ]


def unsure(prompt: str, _: int) -> str:
    """Finds nothing good enough, ever."""
    if "You are the verifier" in prompt or "You are the critic" in prompt:
        return "<verify>no</verify>"
    return "<search>Halden Bridge</search>" if "You are the searcher" in prompt else "Answer: Ottilie Verane"


@pytest.mark.parametrize(
    ("team", "agents", "route"),
    [
        (router(max_steps=3), "verifier search verifier search verifier answer", "out of steps"),
        (search_critic(max_rounds=2), "search critic search critic answer", "out of rounds"),
        (SearchMultiAgentOrchestra(max_rounds=1), "search critic answer", "out of rounds"),
    ],
)
async def test_a_last_no_still_yields_an_answer(team: BaseOrchestra, agents: str, route: str):
    environments = environments_of("rag")
    result = await team.run(bundled_tasks("rag", limit=1), policy=Speaker(unsure), environments=environments)
    await environments.close()
    assert [row.agent for row in result.rows] == agents.split()
    assert (result.rows[-1].route, result.outcomes[0].reward) == (route, 1.0)
    assert "Ottilie Verane" in result.rows[-1].request[-1].content
    assert result.rows[-1].request[-1].role is Role.USER


async def test_a_team_that_searches_needs_something_to_search():
    result = await play(router(), "math", bundled_tasks("math", limit=1), "builtin:solver")
    failure = result.outcomes[0].failure
    assert failure is not None
    assert "no tool 'search'; rag has one" in failure.message


async def test_a_judge_who_names_nobody_leaves_it_to_the_majority():
    values = iter(["1", "7", "7"] * 2)
    speaker = Speaker(lambda prompt, _: "all" if "You are the judge" in prompt else f"\\boxed{{{next(values)}}}")
    result = await debate().run(["What is 7?"], policy=speaker)
    assert result.outcomes[0].output == "\\boxed{7}"
    assert [row.route for row in result.rows if row.agent == "judge"] == ["no agreement"]


async def test_to_say_nothing_is_not_to_agree():
    silent = Speaker(lambda *_: "I do not know")
    debated = await debate().run(["What is 7?"], policy=silent)
    assert [row.agent for row in debated.rows].count("judge") == 1
    proposed = await proposer_solver().run(["What is 7?"], policy=silent)
    assert [row.agent for row in proposed.rows] == ["proposer"]
    solved = await proposer_solver().run(
        ["What is 7?"], policy=Speaker(lambda prompt, _: "<task>Why?</task>" if "proposer." in prompt else "so")
    )
    assert [outcome.reward for result in (proposed, solved) for outcome in result.outcomes] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["solver-verifier", "debate", "proposer-solver", "planner-actor", "router"])
async def test_switches_change_nothing_that_a_ready_made_team_says(name: str):
    mode = "rag" if name == "router" else None
    tasks = bundled_tasks(mode or "math", limit=6)
    plain = await play(team_of(f"team:{name}"), mode, tasks, "builtin:noisy?p=0.5")
    off = {"enable_early_termination": False, "enable_parallel_agents": False, "enable_preprocessing_cache": False}
    for switches in (off, {"batch_synchronous": True}, {**off, "batch_synchronous": True, "enable_agent_skip": False}):
        other = await play(team_of(f"team:{name}", {"performance": switches}), mode, tasks, "builtin:noisy?p=0.5")
        assert (other.rows, other.outcomes) == (plain.rows, plain.outcomes), switches


OWN = """
from outrider.orchestra import Agent, BaseOrchestra, Orchestra

AGENTS = [Agent(name="only", prompt="<question>{question}</question>\\n\\nSolve it, in \\\\boxed{}.")]

async def play(team):
    return (await team.call("only")).text

def build(greeting="hello", **more):
    return Orchestra(AGENTS, play)

ready = Orchestra(AGENTS, play)

class Mine(BaseOrchestra):
    def __init__(self, *, max_rounds=1):
        super().__init__(AGENTS)
        self.max_rounds = max_rounds

    async def play(self, team):
        return await play(team)

def strict(n=1):
    return Orchestra(AGENTS, play)

def wrong():
    return 7

number = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_teams.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("build", {"greeting": "hi", "other": 1}), ("ready", {}), ("Mine", {"max_rounds": 3}), ("strict", {"n": 2})],
)
def test_a_team_of_ones_own_is_named_by_its_module(name: str, settings: Mapping[str, Any]):
    switches = {"performance": {"enable_parallel_agents": False, "max_context_length": 500}}
    changes = {"agents": {"only": {"policy": "big", "max_context_tokens": 90, "sampling": {"temperature": 0.5}}}}
    team = team_of(f"team:own_teams:{name}", {**settings, **switches, **changes})
    assert team.performance == Performance(enable_parallel_agents=False, max_context_length=500)
    only = team.agents["only"]
    assert (only.policy, only.max_context_tokens, only.sampling.temperature) == ("big", 90, 0.5)
    assert team_of(f"team:own_teams:{name}", settings).agents["only"].policy == ""


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("team:debat", {}, "no team 'debat'; did you mean team:debate?"),
        ("team:x", {}, "there are search-critic, router, solver-verifier, planner-actor, debate, proposer-solver"),
        ("team:router", {"max_step": 2}, "team:router has no setting 'max_step'; did you mean max_steps?"),
        ("team:router", {"max_steps": 0}, "max_steps is 0; give a whole number, 1 or more"),
        ("team:router", {"max_steps": "two"}, "max_steps is 'two'"),
        ("team:router", {"max_turns": 2}, "has no setting 'max_turns'"),
        ("team:router", {"performance": {"enable_paralel_agents": True}}, "did you mean enable_parallel_agents?"),
        ("team:router", {"performance": {"max_context_length": 0}}, "max_context_length is 0"),
        ("team:router", {"agents": {"verifer": {}}}, "has no agent 'verifer'; did you mean 'verifier'?"),
        ("team:router", {"agents": {"verifier": {"polcy": "x"}}}, "did you mean policy?"),
        ("team:own_teams:ready", {"n": 1}, "is made already and takes no n"),
        ("team:own_teams:strict", {"m": 1}, "has no setting 'm'; it takes n, performance, agents"),
        ("team:own_teams:wrong", {}, "makes a int; return an Orchestra"),
        ("team:own_teams:number", {}, "is a int; name a team"),
        ("team:own_teams:nothing", {}, "has no 'nothing'"),
    ],
)
def test_a_team_that_is_not_there_or_settings_that_it_has_not_are_named(
    name: str, settings: Mapping[str, Any], says: str
):
    with pytest.raises(InvalidInput, match=says.replace("?", r"\?")):
        team_of(name, settings)

"""Proposer and solvers: one writes a new task, several solve it at the same time; how far they agree decides."""

from typing import Any

from outrider.agent.protocol import Result
from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.agreement import most_said
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.verdict import Boxed, Tag

PROPOSER = Agent(
    name="proposer",
    parse=Tag("task"),
    prompt="""\
<question>{question}</question>

You are the proposer. Write another question of this kind, with all that is needed to answer it and with one right
answer, as <task>question</task>.""",
)

SOLVER = Agent(
    name="solver",
    reads=(PROPOSER.name,),
    parse=Boxed(),
    prompt=r"""<team>{context}</team>

You are a solver. Solve the task that the proposer has written, step by step.
Give the final answer, alone and in its simplest form, in \boxed{}.""",
)


def proposer_solver(n_solvers: int = 4, **settings: Any) -> Orchestra:
    """Needs no answers: the reward is the share of solvers who give the answer that most of them give."""
    at_least_one(n_solvers=n_solvers)

    async def play(team: Team) -> Result:
        task = await team.call("proposer")
        if task.value is None:
            return Result(reward=0.0, metrics={"proposed": 0.0})
        answer, n_agreed = most_said(await team.gather(*["solver"] * n_solvers))
        return Result(reward=n_agreed / n_solvers, output=answer.value, metrics={"proposed": 1.0})

    return Orchestra([PROPOSER, SOLVER], play, **settings)

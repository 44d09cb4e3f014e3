r"""Solver and verifier: a solution in `\boxed{}`, checked by another, and another until one is approved."""

from typing import Any

from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.verdict import Boxed, VerdictRule

SOLVER = Agent(
    name="solver",
    parse=Boxed(),
    prompt=r"""<question>{question}</question>

<team>{context}</team>

You are the solver. Solve the question step by step; if your last solution was rejected, find out why and do better.
Give the final answer, alone and in its simplest form, in \boxed{}.""",
)

VERIFIER = Agent(
    name="verifier",
    reads=(SOLVER.name,),
    parse=VerdictRule(),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You are the verifier. Work the question out yourself and compare with the last solution. Say what is wrong with it, if
anything is. Then write <verify>approve</verify> or <verify>reject</verify>.""",
)


def solver_verifier(max_rounds: int = 3, **settings: Any) -> Orchestra:
    """For questions with one right answer, such as math. The last solution is the answer, approved or not."""
    at_least_one(max_rounds=max_rounds)

    async def play(team: Team) -> str:
        for _ in team.rounds(max_rounds):
            solution = await team.call("solver")
            team.approve(await team.call("verifier"))
        return solution.text

    return Orchestra([SOLVER, VERIFIER], play, **settings)

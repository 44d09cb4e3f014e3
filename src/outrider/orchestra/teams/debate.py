"""A debate: several solve the question at the same time, read each other, solve again; a judge picks if they differ."""

from typing import Any

from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.agreement import most_said
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.verdict import Boxed, Tag

DEBATER = r"""<question>{question}</question>

<team>{context}</team>

You are one of several debaters. Weigh what the others have said and solve the question step by step.
Give the final answer, alone and in its simplest form, in \boxed{}."""

JUDGE = Agent(
    name="judge",
    parse=Tag("pick"),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You are the judge. Decide whose last answer is right, and name that debater as <pick>name</pick>.""",
)


def debate(n_debaters: int = 3, n_rounds: int = 2, **settings: Any) -> Orchestra:
    """For questions with one right answer, such as math. If the judge names nobody, what most of them say counts."""
    at_least_one(n_debaters=n_debaters, n_rounds=n_rounds)
    debaters = [Agent(name=f"debater-{n}", prompt=DEBATER, parse=Boxed()) for n in range(1, n_debaters + 1)]

    async def play(team: Team) -> str:
        for _ in team.rounds(n_rounds):
            replies = await team.gather(*(debater.name for debater in debaters))
            answer, n_agreed = most_said(replies)
            team.approve(n_agreed == n_debaters)
        if team.approved:
            return answer.text
        picked = (await team.call("judge", route="no agreement")).value
        return next((reply.text for reply in replies if reply.agent == picked), answer.text)

    return Orchestra([*debaters, JUDGE], play, **settings)

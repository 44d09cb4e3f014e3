"""A router: at each step a verifier decides whether to search on or to answer."""

from typing import Any

from outrider.orchestra.agent import PROGRAM, Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.teams.searching import ANSWER, SEARCH, look_up
from outrider.orchestra.verdict import VerdictRule

VERIFIER = Agent(
    name="verifier",
    reads=(SEARCH.name, PROGRAM),
    parse=VerdictRule(),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You are the verifier. Is what the search has found enough to answer the question? Write <verify>yes</verify> if it is,
and <verify>no</verify> if there is more to find.""",
)


def router(max_steps: int = 4, **settings: Any) -> Orchestra:
    """For environments with a tool `search`, such as rag. The last step is to answer, whatever the verifier says."""
    at_least_one(max_steps=max_steps)

    async def play(team: Team) -> str:
        for step in team.rounds(max_steps):
            is_enough = team.approve(await team.call("verifier"))
            if not is_enough and step < max_steps - 1:
                await look_up(team, await team.call("search", route="not enough"))
        return (await team.call("answer", route="enough" if team.approved else "out of steps")).text

    return Orchestra([VERIFIER, SEARCH, ANSWER], play, **settings)

"""Search with a critic: search, have a critic look at what was found, again until it is satisfied, then answer."""

from typing import Any

from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.teams.searching import ANSWER, SEARCH, look_up
from outrider.orchestra.verdict import VerdictRule

CRITIC = Agent(
    name="critic",
    parse=VerdictRule(),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You are the critic. Judge what the search has found: say what is still missing, if anything is. Then write
<verify>yes</verify> if the question can be answered from it, and <verify>no</verify> if not.""",
)

AGENTS = (SEARCH, CRITIC, ANSWER)


async def search_and_answer(team: Team, max_rounds: int) -> str:
    """Approved or not, there is an answer in the end."""
    for _ in team.rounds(max_rounds):
        await look_up(team, await team.call("search"))
        team.approve(await team.call("critic"))
    return (await team.call("answer", route="approved" if team.approved else "out of rounds")).text


def search_critic(max_rounds: int = 2, **settings: Any) -> Orchestra:
    """For environments with a tool `search`, such as rag. `settings` are those of every team."""
    at_least_one(max_rounds=max_rounds)
    return Orchestra(AGENTS, lambda team: search_and_answer(team, max_rounds), **settings)

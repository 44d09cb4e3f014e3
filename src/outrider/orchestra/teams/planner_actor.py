"""Planner, informant and actor: two think about the next action at the same time, the third takes it."""

from typing import Any

from outrider.agent.protocol import Result, StopReason
from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import Orchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.checks import at_least_one

_SO_FAR = """\
<opening>{opening}</opening>

<seen>{observation}</seen>
"""

INFO = Agent(
    name="info",
    prompt=f"""{_SO_FAR}
You inform the team. Name what matters for the next action in what was said and seen, as <info>facts</info>.""",
    reads=(),
)

PLANNER = Agent(
    name="planner",
    prompt=f"""{_SO_FAR}
You are the planner. Say how to go on from here, in a few lines, as <plan>steps</plan>.""",
    reads=(),
)

ACTOR = Agent(
    name="actor",
    reads=(INFO.name, PLANNER.name),
    prompt=f"""{_SO_FAR}
<team>{{context}}</team>

You act. Take the next action, in exactly the form that was asked for at the beginning.""",
)


def planner_actor(max_steps: int = 30, **settings: Any) -> Orchestra:
    """For any environment that takes text: what the actor writes is the action."""
    at_least_one(max_steps=max_steps)

    async def play(team: Team) -> Result:
        for _ in team.rounds(max_steps):
            await team.gather("info", "planner")
            action = await team.call("actor")
            step = await team.act(action)
            if step.terminated or step.truncated:
                return Result(output=action.text)
        return Result(output=action.text, stop_reason=StopReason.MAX_TURNS)

    return Orchestra([INFO, PLANNER, ACTOR], play, **settings)

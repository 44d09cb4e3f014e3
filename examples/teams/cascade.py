"""A team of one's own: a small model answers, a checker looks at it, and only what is rejected goes to a large model.

outrider run --mode math --agent team:cascade:build --model 'builtin:noisy?p=0.5' --policy large=builtin:solver

Extra: `math`.
"""

import asyncio

from outrider.env.registry import bundled_tasks
from outrider.orchestra import Agent, Boxed, Orchestra, Team, VerdictRule
from outrider.policy import PolicySpec, open_policy

QUESTION = "<question>{question}</question>\n\n<team>{context}</team>\n\n"

SMALL = Agent(name="small", prompt=QUESTION + "Solve the question. Give the answer in \\boxed{}.", parse=Boxed())
LARGE = Agent(
    name="large",
    policy="large",
    prompt=QUESTION + "The answer above was rejected. Solve the question. Give the answer in \\boxed{}.",
    parse=Boxed(),
    max_context_tokens=4000,
)
CHECKER = Agent(
    name="checker",
    prompt=QUESTION + "Check the last answer. Write <verify>approve</verify> or <verify>reject</verify>.",
    parse=VerdictRule(),
)


def build(n_checks: int = 1) -> Orchestra:
    """A team whose small model has `n_checks` tries before the large one is asked."""

    async def play(team: Team) -> str:
        for _ in team.rounds(n_checks):
            answer = await team.call("small")
            team.approve(await team.call("checker"))
        if not team.approved:
            answer = await team.call("large", route="rejected")
        return answer.text

    return Orchestra([SMALL, LARGE, CHECKER], play)


async def main() -> None:
    """All math tasks as one batch, without a run around it."""
    small, large = [await open_policy(PolicySpec(model=f"builtin:{name}")) for name in ("noisy?p=0.5", "solver")]
    result = await build().run(bundled_tasks("math"), policy=small, policies={"large": large})
    asked = sum(row.agent == "large" for row in result.rows)
    print(f"{len(result.outcomes)} questions, {len(result.rows)} calls, {asked} of them to the large model")


if __name__ == "__main__":
    asyncio.run(main())

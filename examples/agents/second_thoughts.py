"""Look at every move twice: `outrider run --mode FrozenLake --agent second_thoughts:SecondThoughts`."""

from typing import Any

from outrider import Context, Result
from outrider.core.chat import user


class SecondThoughts:
    """An agent with a setting: outrider makes it once per worker, and calls it for every rollout."""

    def __init__(self, *, max_turns: int = 20) -> None:
        self.max_turns = max_turns

    async def __call__(self, task: Any, ctx: Context) -> Result:  # noqa: ARG002 the opening has put it in words
        messages = list(ctx.opening)
        n_changed = 0
        for _ in range(self.max_turns):
            first = await ctx.policy.complete(messages, tools=ctx.env.tools)
            look_again = [*messages, first.message, user("Are you sure? Say it again, or better.")]
            second = await ctx.policy.complete(look_again, tools=ctx.env.tools)
            n_changed += second.message.content != first.message.content
            messages.append(second.message)
            step = await ctx.env.step(second.message)
            messages.extend(step.observation)
            if step.terminated or step.truncated:
                return Result(metrics={"changed": n_changed})
        return Result(metrics={"changed": n_changed}, stop_reason="max_turns")

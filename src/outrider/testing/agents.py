"""Agents to try things with: no model, no network."""

import asyncio
import random
from typing import Any

from outrider.agent import Context, Result


async def practise(task: Any, ctx: Context) -> Result:
    """Take a moment, as a model would, and answer with a reward that depends on the task alone."""
    rng = random.Random(repr(task))
    ctx.log("thinking", task=str(task)[:200])
    await asyncio.sleep(rng.uniform(0.02, 0.2))
    answer = f"answer to {task.get('prompt', task) if isinstance(task, dict) else task}"
    return Result(reward=round(rng.random(), 3), output=answer)

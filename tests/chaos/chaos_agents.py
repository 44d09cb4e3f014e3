"""The agents of the chaos tests."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from outrider import Context
from outrider.core.errors import PolicyRefused


async def trace(task: Any, ctx: Context) -> float:
    """Leaves a line in a file for every time it ran to its end."""
    await asyncio.sleep(task.get("seconds", random.uniform(0, 0.02)))
    ctx.log("ran")
    line = f"{ctx.rollout_id} {ctx.attempt_id}\n".encode()
    descriptor = os.open(task["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    return 1.0


async def trace_after_a_while(task: Any, ctx: Context) -> float:
    """The same, of which a few keep a worker in work without keeping its CPU busy."""
    await asyncio.sleep(random.uniform(0.03, 0.07))
    return await trace(task, ctx)


async def wait_for_file(task: Any, ctx: Context) -> float:
    file = Path(task["file"])
    while not file.exists():
        await asyncio.sleep(0.02)
    return 1.0


async def stumble(task: Any, ctx: Context) -> float:
    """Fails for good, at first with every second sample."""
    if ctx.rollout_id.endswith(":0"):
        raise PolicyRefused("not this time", stage="agent")
    return 1.0


async def toil(task: Any, ctx: Context) -> float:
    """One of them may take its worker along the first time, or block it."""
    ctx.log("begun")
    if ctx.rollout.n_attempts == 1 and task["harm"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.rollout.n_attempts == 1 and task["harm"] == "block":
        time.sleep(60)
    await asyncio.sleep(1.1)
    ctx.log("done")
    return float(task["id"][1:])

"""The agents of the chaos tests."""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

from outrider import Context


async def trace(task: Any, ctx: Context) -> float:
    """Leaves a line in a file for every time it ran to its end."""
    await asyncio.sleep(random.uniform(0, 0.02))
    ctx.log("ran")
    line = f"{ctx.rollout_id} {ctx.attempt_id}\n".encode()
    descriptor = os.open(task["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    return 1.0


async def wait_for_file(task: Any, ctx: Context) -> float:
    file = Path(task["file"])
    while not file.exists():
        await asyncio.sleep(0.02)
    return 1.0


async def toil(task: Any, ctx: Context) -> float:
    """One of them takes its worker along the first time."""
    ctx.log("begun")
    if task["deadly"] and ctx.rollout.n_attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(1.1)
    ctx.log("done")
    return float(task["id"][1:])

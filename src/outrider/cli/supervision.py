"""Workers under a command: run them beside the counting of what ends, drain on the first signal, kill on the second."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from outrider.cli.signals import listening
from outrider.runner.supervisor import Supervisor


async def supervise(supervisor: Supervisor, following: Coroutine[Any, Any, None], say: Callable[[str], None]) -> None:
    """Run the workers until they have ended, or `following`, which counts what they do, ends because all is done."""
    task = asyncio.ensure_future(following)
    task.add_done_callback(lambda _: supervisor.drain())
    with listening(_Stopping(supervisor, say), signal.SIGINT, signal.SIGTERM):
        try:
            await supervisor.run()
        finally:
            task.cancel()
            await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class _Stopping:
    """The first signal drains, the second kills."""

    def __init__(self, supervisor: Supervisor, say: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._say = say
        self._n_heard = 0

    def __call__(self) -> None:
        self._n_heard += 1
        if self._n_heard == 1:
            self._say("🛑 Stopping: running rollouts finish or are handed back; once more to stop at once")
            self._supervisor.drain()
        else:
            self._supervisor.kill()

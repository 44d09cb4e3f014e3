"""Workers under a command: run them beside the counting of what ends, drain on the first signal, kill on the second.

Workers that are tasks of the command may block its event loop, which then hears of no signal. A thread does, and ends
the process if the loop stays blocked for the workers' grace.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from outrider.cli.exit_code import ExitCode
from outrider.cli.output import echo
from outrider.cli.signals import listening, overhearing
from outrider.core.errors import StoreUnavailable
from outrider.runner.loop_watch import Blockage, LoopWatch
from outrider.runner.supervisor import Supervisor
from outrider.store import Store


async def supervise(
    store: Store, supervisor: Supervisor, following: Coroutine[Any, Any, None], say: Callable[[str], None]
) -> None:
    """Run the workers until they have ended, or `following`, which counts what they do, ends because all is done.

    Raises `StoreUnavailable` if they ended while the store is away: nobody can tell then what they have done.
    """
    task = asyncio.ensure_future(following)
    task.add_done_callback(lambda _: supervisor.drain())
    stopping = _Stopping(supervisor, say)
    with listening(stopping, signal.SIGINT, signal.SIGTERM), overhearing(stopping.end_if_blocked):
        try:
            await supervisor.run()
        finally:
            seconds = store.outage.seconds  # before those who wait for the store give up
            task.cancel()
            await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    elif seconds:
        raise StoreUnavailable(
            f"stopped while the store has been away for {seconds:.0f} s: what was running is retried once its leases "
            "have ended"
        )


class _Stopping:
    """The first signal drains, the second kills; both end a process whose event loop stays blocked."""

    def __init__(self, supervisor: Supervisor, say: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._say = say
        self._n_heard = self._n_overheard = 0
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._n_heard += 1
        if self._n_heard == 1:
            self._say("🛑 Stopping: running rollouts finish or are handed back; once more to stop at once")
            self._supervisor.drain()
        else:
            self._supervisor.kill()

    def end_if_blocked(self) -> None:
        """Called in a thread: the loop may never get to call this object."""
        self._n_overheard += 1
        seconds = self._supervisor.grace_seconds if self._n_overheard == 1 else 0.0
        LoopWatch.limit_all(self._loop, seconds, _exit_blocked)


def _exit_blocked(found: Blockage) -> None:
    echo(f"Stopped: {found.whose} blocks this process: {found.message}", err=True)
    echo("What was running goes back to the queue when its leases end", err=True)
    os._exit(ExitCode.STOPPED)

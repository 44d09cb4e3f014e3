"""Workers under a command: run them beside the counting of what ends, drain on the first signal, kill on the second."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from outrider.cli.signals import listening
from outrider.core.errors import StoreUnavailable
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
    with listening(_Stopping(supervisor, say), signal.SIGINT, signal.SIGTERM):
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

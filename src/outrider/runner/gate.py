"""Where attempts wait for leave to begin: all those of a worker together, however many they are.

Invariants:
- What has come up is asked for in one call, in the order it came; one waiting call looks out for all grants.
- An attempt that no longer waits is no longer looked for. What it had asked, the store forgets with the attempt.
- While the store cannot be reached, asking and looking are tried again; no attempt is let through by that.
"""

import asyncio

from outrider.core.clock import Clock, sleep
from outrider.core.errors import StoreUnavailable
from outrider.store import Store
from outrider.store.outage import RepeatedCall

LOOK_SECONDS = 30.0
"""How long one call waits for a grant."""

CALL_SECONDS = 30.0
"""How long the store may take to answer, beside what it waits."""

UNAVAILABLE_SECONDS = 1.0
"""The pause before trying a store again that could not be reached."""


class Gate:
    """`enter` waits for leave; `run` gets it. It asks nothing of the store before the first attempt comes up."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._asking, self._looking = RepeatedCall(store.outage), RepeatedCall(store.outage)
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._unasked: dict[str, str] = {}
        self._someone_waits = asyncio.Event()
        self._something_to_ask = asyncio.Event()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    async def enter(self, rollout_id: str, attempt_id: str) -> int:
        """Wait until this attempt may begin: the policy version that it begins with at least."""
        leave: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[attempt_id] = leave
        self._unasked[attempt_id] = rollout_id
        self._someone_waits.set()
        self._something_to_ask.set()
        try:
            return await leave
        finally:
            self._waiting.pop(attempt_id, None)
            self._unasked.pop(attempt_id, None)

    async def run(self) -> None:
        """Ask and look, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask())
            group.create_task(self._look())

    async def _ask(self) -> None:
        while True:
            await self._something_to_ask.wait()
            self._something_to_ask.clear()
            asked = tuple((rollout_id, attempt_id) for attempt_id, rollout_id in self._unasked.items())
            try:
                with self._asking:
                    async with asyncio.timeout(CALL_SECONDS):
                        await self._store.ask_to_begin(asked)
            except (StoreUnavailable, TimeoutError):
                self._something_to_ask.set()
                await sleep(self._clock, UNAVAILABLE_SECONDS)
            else:
                for _, attempt_id in asked:
                    self._unasked.pop(attempt_id, None)

    async def _look(self) -> None:
        while True:
            await self._someone_waits.wait()
            if not self._waiting:
                self._someone_waits.clear()
                continue
            try:
                with self._looking:
                    async with asyncio.timeout(LOOK_SECONDS + CALL_SECONDS):
                        granted = await self._store.grants(self._waiting.keys(), wait=LOOK_SECONDS)
            except (StoreUnavailable, TimeoutError):
                await sleep(self._clock, UNAVAILABLE_SECONDS)
                continue
            for attempt_id in [name for name in self._waiting if name in granted]:  # in the order they came
                leave = self._waiting.pop(attempt_id)
                if not leave.done():
                    leave.set_result(granted[attempt_id])

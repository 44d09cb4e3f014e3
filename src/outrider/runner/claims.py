"""The claims of one worker: as many rollouts as it has idle slots, fetched in one call."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from outrider.core.rollout import AttemptedRollout

Claimer = Callable[[int], Awaitable[Sequence[AttemptedRollout]]]
"""Claims up to so many rollouts; waits a while, then returns none."""


class Claims:
    """Slots wait in `next`; `run` claims for those that wait, never ahead of them."""

    def __init__(self, claim: Claimer, max_rollouts: int | None) -> None:
        self._claim = claim
        self._left = max_rollouts
        self._idle: deque[asyncio.Future[AttemptedRollout | None]] = deque()
        self._someone_idle = asyncio.Event()
        self._closed = False

    async def next(self) -> AttemptedRollout | None:
        """The next rollout for a slot, or None when there will be no more."""
        if self._closed:
            return None
        future: asyncio.Future[AttemptedRollout | None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        self._someone_idle.set()
        return await future

    async def run(self) -> None:
        """Claim until `max_rollouts` are reached or the caller cancels; then send the slots home."""
        try:
            while self._left is None or self._left > 0:
                await self._someone_idle.wait()
                wanted = len(self._idle) if self._left is None else min(len(self._idle), self._left)
                self._hand_out(await self._claim(wanted))
        finally:
            self._closed = True
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    def _hand_out(self, claimed: Sequence[AttemptedRollout]) -> None:
        for rollout in claimed:
            self._idle.popleft().set_result(rollout)
        if self._left is not None:
            self._left -= len(claimed)
        if not self._idle:
            self._someone_idle.clear()

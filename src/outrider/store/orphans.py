"""Claims whose caller was cancelled: nobody is left to run them, so they go back to the queue at once."""

import asyncio
from collections.abc import Callable
from typing import Any

from outrider.core.lifecycle import Signal
from outrider.core.rollout import AttemptedRollout
from outrider.store.steps import Report


class Orphans:
    """Hands back through `submit`, which takes a report and carries it out even if nobody awaits it."""

    def __init__(self, submit: Callable[[Report], "asyncio.Future[Any]"]) -> None:
        self._submit = submit

    async def awaited(self, claiming: "asyncio.Future[tuple[AttemptedRollout, ...]]") -> tuple[AttemptedRollout, ...]:
        """What was claimed. A caller cancelled between the answer and its next turn does not see it either."""
        try:
            return await claiming
        except asyncio.CancelledError:
            if not claiming.cancelled() and claiming.exception() is None:
                self.hand_back(claiming.result())
            raise

    def hand_back(self, claimed: tuple[AttemptedRollout, ...]) -> None:
        for rollout in claimed:
            attempt = rollout.attempt
            report = Report(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, signal=Signal.HAND_BACK)
            handed_back = self._submit(report)
            handed_back.add_done_callback(asyncio.Future.exception)  # refused: somebody else took it away

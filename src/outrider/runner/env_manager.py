"""One slot of a worker: runs one rollout after another, with no barrier to its neighbours."""

from collections.abc import Awaitable, Callable

from outrider.core.rollout import AttemptedRollout


class EnvManager:
    """`next_rollout` waits for a claim and returns None when there will be no more; `run` runs one to its end."""

    def __init__(
        self,
        next_rollout: Callable[[], Awaitable[AttemptedRollout | None]],
        run: Callable[[AttemptedRollout], Awaitable[None]],
    ) -> None:
        self._next_rollout = next_rollout
        self._run = run

    async def run_rollout_loop(self) -> None:
        while (claimed := await self._next_rollout()) is not None:
            await self._run(claimed)

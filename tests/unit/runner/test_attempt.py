"""How long an attempt tries to write its end while the store cannot be reached."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from outrider.agent import Context, Result
from outrider.agent.function import episodes_of
from outrider.core.errors import AgentError
from outrider.runner.admission import Admission
from outrider.runner.attempt import FINISH_RETRY_SECONDS, AttemptRun, StageLimits
from outrider.store import open_store
from outrider.testing import FakeClock
from outrider.testing.unreliable import Network, UnreliableStore
from store_moves import enqueue_and_claim

AWAY = Network(latency_seconds=0.0, lost_calls=1.0)
HOUR = 3600.0
STEP_SECONDS = 0.1


async def nothing(task: object, ctx: Context) -> Result:
    return Result()


async def seconds_of(
    clock: FakeClock, end: Callable[[AttemptRun], Awaitable[None]], *, jump: float, jump_after: float
) -> float:
    """How long an attempt tries to end on a store that is away, while the wall clock jumps."""
    async with open_store("memory://", clock=clock) as store:
        claimed = await enqueue_and_claim(store)
        away = UnreliableStore(store, random.Random(0), AWAY).as_store
        admission = Admission.to(away, clock)
        attempt = AttemptRun(
            claimed, away, episodes_of(nothing), admission=admission, clock=clock, limits=StageLimits()
        )
        began, has_jumped = clock.monotonic(), False
        ending = asyncio.ensure_future(end(attempt))
        while not ending.done():
            await clock.advance(STEP_SECONDS)
            if not has_jumped and clock.monotonic() - began >= jump_after:
                clock.jump(jump)
                has_jumped = True
            assert clock.monotonic() - began < HOUR / 10, "it goes on for the length of the jump"
        await ending
        return clock.monotonic() - began


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 0.0], ids=["forward", "back", "none"])
@pytest.mark.parametrize("jump_after", [0.0, 3.0])
@pytest.mark.parametrize("how", ["hand_back", "fail"])
async def test_an_end_is_tried_for_as_long_whether_or_not_the_wall_clock_jumps(
    clock: FakeClock, how: str, jump: float, jump_after: float
):
    def end(attempt: AttemptRun) -> Awaitable[None]:
        return attempt.hand_back() if how == "hand_back" else attempt.fail(AgentError("it hangs", stage="act"))

    lasted = await seconds_of(clock, end, jump=jump, jump_after=jump_after)
    assert lasted == pytest.approx(sum(FINISH_RETRY_SECONDS), abs=2 * STEP_SECONDS * len(FINISH_RETRY_SECONDS))

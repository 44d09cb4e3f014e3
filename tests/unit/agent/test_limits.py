import asyncio
import math

import pytest

from leaks import no_leaks
from outrider.agent.limits import Stopwatch, TurnLimits
from outrider.core.clock import sleep
from outrider.core.errors import InvalidInput, LimitError
from outrider.testing import FakeClock


async def timed(clock: FakeClock, watch: Stopwatch, stage: str, *, takes: float) -> float:
    """Let a call take so many seconds: those that were counted."""

    async def work() -> None:
        await sleep(clock, takes)

    call = asyncio.create_task(watch.time(stage, work))
    await clock.advance(takes)
    _, seconds = await call
    return seconds


async def test_without_limits_a_call_takes_as_long_as_it_takes(clock: FakeClock):
    watch = Stopwatch(TurnLimits(), clock)
    assert await timed(clock, watch, "env.step", takes=1e6) == 1e6


async def test_a_call_that_takes_too_long_is_cut_off_and_the_limit_named(clock: FakeClock):
    async with no_leaks():
        watch = Stopwatch(TurnLimits(turn_seconds=5), clock)
        assert await timed(clock, watch, "policy.complete", takes=4) == 4
        with pytest.raises(LimitError, match="longer than the turn_seconds of 5 s") as caught:
            await timed(clock, watch, "policy.complete", takes=6)
        assert caught.value.stage == "policy.complete"
        assert clock.n_timers == 0


async def test_the_sum_of_all_calls_is_bounded_and_waiting_between_them_is_not(clock: FakeClock):
    watch = Stopwatch(TurnLimits(turn_seconds=5, trajectory_seconds=10), clock)
    assert await timed(clock, watch, "policy.complete", takes=4) == 4
    await clock.advance(1000)
    assert await timed(clock, watch, "env.step", takes=4) == 4
    with pytest.raises(LimitError, match="trajectory_seconds of 10 s in all") as caught:
        await timed(clock, watch, "env.step", takes=4)
    assert caught.value.stage == "env.step"
    with pytest.raises(LimitError, match="trajectory_seconds"):
        await timed(clock, watch, "policy.complete", takes=0)


async def test_a_timeout_that_the_call_itself_raises_is_not_taken_for_the_limit(clock: FakeClock):
    async def impatient() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="own"):
        await Stopwatch(TurnLimits(turn_seconds=5), clock).time("env.step", impatient)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_limit_that_is_no_time_at_all_is_refused(seconds: float):
    with pytest.raises(InvalidInput, match="turn_seconds"):
        TurnLimits(turn_seconds=seconds)

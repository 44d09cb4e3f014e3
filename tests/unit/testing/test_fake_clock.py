import asyncio

import pytest

from outrider.core.clock import sleep
from outrider.testing import FakeClock, eventually


async def test_time_stands_still_until_it_is_moved():
    clock = FakeClock(100.0)
    assert clock.time() == clock.time() == 100.0
    await clock.advance(2.5)
    assert clock.time() == 102.5


async def test_calls_come_in_the_order_they_are_due():
    clock, called = FakeClock(), []
    for delay in (3, 1, 2, 1):
        clock.call_later(delay, lambda delay=delay: called.append(delay))
    await clock.advance(2)
    assert called == [1, 1, 2]
    await clock.advance(0.5)
    assert called == [1, 1, 2]
    await clock.advance(0.5)
    assert called == [1, 1, 2, 3]


async def test_a_cancelled_call_does_not_come():
    clock, called = FakeClock(), []
    for delay in (0, 1):
        clock.call_later(delay, lambda: called.append(1)).cancel()
    await clock.advance(2)
    assert (called, clock.n_timers) == ([], 0)


async def test_a_call_that_is_due_now_needs_no_move():
    clock, called = FakeClock(), []
    clock.call_later(0, lambda: called.append(1))
    await asyncio.sleep(0)
    assert called == [1]


async def test_what_a_move_wakes_has_run_when_it_returns():
    clock, steps = FakeClock(), []

    async def sleeper() -> None:
        for n in range(3):
            await sleep(clock, 1)
            steps.append((n, clock.time()))

    start = clock.time()
    task = asyncio.ensure_future(sleeper())
    await clock.advance(1)
    assert steps == [(0, start + 1)]
    await clock.advance(1)
    await clock.advance(1)
    assert [n for n, _ in steps] == [0, 1, 2]
    await task


async def test_eventually_waits_for_a_condition_and_not_for_ever():
    looks = []

    async def third_look() -> bool:
        looks.append(1)
        return len(looks) == 3

    async def never() -> bool:
        return False

    await eventually(third_look)
    assert len(looks) == 3
    with pytest.raises(TimeoutError):
        await eventually(never, within_seconds=0.01)


async def test_a_jump_of_the_wall_clock_moves_no_timer():
    clock, called = FakeClock(100.0), []
    clock.call_later(2, lambda: called.append(clock.time()))
    clock.jump(-50)
    assert (clock.time(), clock.monotonic()) == (50.0, 0.0)
    await clock.advance(1)
    assert called == []
    await clock.advance(1)
    assert called == [52.0]

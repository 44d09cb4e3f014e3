"""A time limit on a clock that tests can move."""

import asyncio

import pytest

from outrider.policy.openai.deadline import Deadline


async def started(coroutine):
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    return task


async def test_a_block_that_takes_too_long_ends_with_a_timeout(clock):
    async def work():
        async with Deadline(clock) as limit:
            limit.start(10.0)
            await asyncio.Event().wait()

    task = await started(work())
    await clock.advance(9.9)
    assert not task.done()
    await clock.advance(0.1)
    with pytest.raises(TimeoutError):
        await task
    assert clock.n_timers == 0


async def test_a_limit_can_be_moved_later_again_and_again_with_one_timer(clock):
    pieces = asyncio.Queue()

    async def work():
        async with Deadline(clock) as limit:
            while True:
                limit.start(10.0)
                await pieces.get()

    task = await started(work())
    for _ in range(5):
        await clock.advance(8.0)
        pieces.put_nowait("more")
        await clock.advance(0.0)
        assert clock.n_timers == 1
    assert not task.done()
    await clock.advance(10.0)
    with pytest.raises(TimeoutError):
        await task


async def test_without_a_start_there_is_no_limit(clock):
    async with Deadline(clock) as limit:
        await clock.advance(1e9)
        assert limit.left_seconds == float("inf")


async def test_a_cancellation_from_outside_is_not_taken_for_a_timeout(clock):
    async def work():
        async with Deadline(clock) as limit:
            limit.start(10.0)
            await asyncio.Event().wait()

    task = await started(work())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_in_the_same_moment_goes_before_the_timeout(clock):
    async def work():
        async with Deadline(clock) as limit:
            limit.start(10.0)
            await asyncio.Event().wait()

    task = await started(work())
    clock.call_later(10.0, task.cancel)
    await clock.advance(10.0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_limit_passes_through_an_inner_one(clock):
    async def work():
        async with Deadline(clock) as outer, Deadline(clock) as inner:
            outer.start(5.0)
            inner.start(5.0)
            await asyncio.Event().wait()

    task = await started(work())
    await clock.advance(5.0)
    with pytest.raises(TimeoutError):
        await task
    assert task.cancelling() == 0

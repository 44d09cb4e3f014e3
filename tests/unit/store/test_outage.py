"""What is said of a database that is away, and how calls wait for it."""

import asyncio
import gc

import pytest

from outrider.core.errors import InvalidInput, StoreUnavailable
from outrider.store.outage import PAUSE_SECONDS, Outage, RepeatedCall, insist
from outrider.testing import FakeClock


def fail(call: RepeatedCall, error: Exception) -> None:
    with pytest.raises(type(error)), call:
        raise error


def test_it_is_said_once_however_many_calls_fail_and_once_when_one_of_them_succeeds(caplog: pytest.LogCaptureFixture):
    clock = FakeClock()
    outage = Outage(clock)
    claiming, writing, reading = (RepeatedCall(outage) for _ in range(3))
    for _ in range(3):
        fail(claiming, StoreUnavailable("the disk is full"))
        fail(writing, TimeoutError())
        with reading:  # reads may go on all the time
            pass
    assert outage.seconds > 0
    with claiming:
        pass
    with writing:
        pass
    assert outage.seconds == 0
    away, back = caplog.messages
    assert away.startswith("the store is away since")
    assert away.endswith("the disk is full")
    assert back == "the store is back after 0 s"


def test_other_errors_and_calls_that_nobody_makes_any_more_are_no_outage(caplog: pytest.LogCaptureFixture):
    outage = Outage(FakeClock())
    fail(RepeatedCall(outage), InvalidInput("no such id"))
    assert not caplog.messages
    fail(RepeatedCall(outage), StoreUnavailable("away"))
    gc.collect()
    assert outage.seconds == 0


async def test_a_call_is_made_until_the_store_is_reached():
    clock = FakeClock()
    outage = Outage(clock)
    errors = [StoreUnavailable("away"), StoreUnavailable("away")]

    async def call() -> str:
        if errors:
            raise errors.pop()
        return "reached"

    waiting = asyncio.ensure_future(insist(outage, clock, call))
    for _ in range(2):
        await clock.advance(0)
        assert not waiting.done()
        assert outage.seconds > 0
        await clock.advance(PAUSE_SECONDS)
    assert await waiting == "reached"
    assert outage.seconds == 0

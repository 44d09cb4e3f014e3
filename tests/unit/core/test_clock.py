import asyncio
import time

from outrider.core.clock import SteadyClock, SystemClock, sleep, utc, wait, wall_offset
from outrider.testing import FakeClock


def test_the_system_clock_tells_the_time():
    before = time.time()
    assert before <= SystemClock().time() <= time.time()


async def test_the_system_clock_calls_later_and_can_be_stopped():
    called = asyncio.get_running_loop().create_future()
    SystemClock().call_later(0.0, lambda: called.done() or called.set_result(None))
    SystemClock().call_later(0.0, lambda: called.set_exception(AssertionError("was stopped"))).cancel()
    await asyncio.wait_for(called, 10)


def test_a_moment_is_an_aware_datetime():
    assert utc(0.5).isoformat() == "1970-01-01T00:00:00.500000+00:00"


async def test_waiting_for_a_future_tells_whether_it_came_in_time():
    clock, loop = FakeClock(), asyncio.get_running_loop()
    future = loop.create_future()
    waiting = asyncio.ensure_future(wait(clock, future, 5))
    await clock.advance(4)
    future.set_result(None)
    assert await waiting is True
    late = loop.create_future()
    waiting = asyncio.ensure_future(wait(clock, late, 5))
    await clock.advance(5)
    assert await waiting is False
    assert late.cancelled()
    assert clock.n_timers == 0


async def test_sleeping_can_be_cancelled_and_leaves_no_timer():
    clock = FakeClock()
    sleeping = asyncio.ensure_future(sleep(clock, 100))
    await clock.advance(1)
    assert clock.n_timers == 1
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert sleeping.cancelled()
    assert clock.n_timers == 0


async def test_sleeping_no_time_returns_at_once():
    await asyncio.wait_for(sleep(FakeClock(), -1), 10)


async def test_a_steady_clock_tells_wall_time_without_its_jumps():
    clock = FakeClock(100.0)
    steady = SteadyClock(clock)
    assert steady.time() == 100.0
    clock.jump(3600)
    await clock.advance(5)
    assert (steady.time(), steady.monotonic(), clock.time()) == (105.0, 5.0, 3705.0)


def test_how_far_wall_time_is_ahead_is_read_again_after_a_pause_between_two_readings():
    class Paused:
        """Stands still for a while at its second reading."""

        def __init__(self) -> None:
            self.now, self.readings = 0.0, 0

        def monotonic(self) -> float:
            self.readings += 1
            self.now += 7.0 if self.readings == 2 else 0.0
            return self.now

        def time(self) -> float:
            self.monotonic()
            return 1000.0 + self.now

        def call_later(self, delay_seconds, callback):
            raise AssertionError

    assert wall_offset(Paused()) == 1000.0

"""Permits: first come, first served, never lost."""

import asyncio
import random

import pytest

from outrider.policy.openai.gate import Gate
from outrider.policy.openai.limit import ConcurrencyLimit


@pytest.fixture
def gate(clock):
    return Gate(ConcurrencyLimit(ceiling=2), clock)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Caller:
    """Takes a permit and keeps it until told."""

    def __init__(self, gate, entered, name, *, again=False):
        self.done = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(gate, entered, name, again))

    async def _run(self, gate, entered, name, again):
        async with gate.permit(again=again):
            entered.append(name)
            await self.done.wait()


async def finish(*callers):
    for caller in callers:
        caller.done.set()
    await asyncio.gather(*(caller.task for caller in callers), return_exceptions=True)


async def test_no_more_get_in_than_the_limit_allows_and_in_the_order_they_came(gate):
    entered = []
    callers = [Caller(gate, entered, number) for number in range(6)]
    await settle()
    assert (entered, gate.n_in_flight, gate.load) == ([0, 1], 2, 6)
    for number in range(4):
        await finish(callers[number])
        await settle()
        assert entered == list(range(number + 3))
    await finish(*callers[4:])
    assert gate.load == 0


async def test_a_call_that_was_let_in_before_goes_first(gate):
    entered = []
    callers = [Caller(gate, entered, number) for number in range(4)]
    await settle()
    callers.append(Caller(gate, entered, "again", again=True))
    await settle()
    await finish(callers[0])
    await settle()
    assert entered == [0, 1, "again"]
    await finish(*callers)


async def test_a_waiter_that_is_cancelled_leaves_at_once_and_takes_no_turn(gate):
    entered = []
    callers = [Caller(gate, entered, number) for number in range(4)]
    await settle()
    callers[2].task.cancel()
    await settle()
    assert gate.load == 3
    await finish(callers[0])
    await settle()
    assert entered == [0, 1, 3]
    await finish(*callers)
    assert gate.load == 0


async def test_a_permit_given_in_the_moment_of_cancellation_is_passed_on(gate):
    entered = []
    callers = [Caller(gate, entered, number) for number in range(4)]
    await settle()
    gate.release()  # as if one had ended: the permit goes to 2, whose task has not run yet
    callers[2].task.cancel()
    await settle()
    assert entered == [0, 1, 3]
    assert gate.n_in_flight == 2
    gate._n_in_flight += 1  # the one that had not really ended
    await finish(*callers)
    assert gate.load == 0


async def test_a_permit_freed_in_the_moment_of_cancellation_goes_to_the_next(gate):
    entered = []
    callers = [Caller(gate, entered, number) for number in range(4)]
    await settle()
    callers[2].task.cancel()
    callers[0].done.set()
    await settle()
    assert entered == [0, 1, 3]
    await finish(*callers)
    assert gate.load == 0


async def test_a_pause_holds_everyone_back_for_as_long_as_was_asked(gate, clock):
    entered = []
    gate.hold(5.0)
    gate.hold(2.0)
    callers = [Caller(gate, entered, number) for number in range(2)]
    await clock.advance(4.9)
    assert entered == []
    await clock.advance(0.1)
    assert entered == [0, 1]
    await finish(*callers)


async def test_a_pause_without_measure_is_cut_short(gate, clock):
    entered = []
    gate.hold(86_400.0)
    caller = Caller(gate, entered, 0)
    await clock.advance(60.0)
    assert entered == [0]
    await finish(caller)


async def test_closing_leaves_no_timer(gate, clock):
    gate.hold(5.0)
    gate.close()
    assert clock.n_timers == 0


async def test_no_permit_is_lost_however_calls_end(clock):
    gate = Gate(ConcurrencyLimit(ceiling=8), clock)
    rng = random.Random(7)
    most = 0

    async def call():
        nonlocal most
        async with gate.permit(again=rng.random() < 0.2) as permit:
            most = max(most, gate.n_in_flight)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                permit.refused()
                raise ValueError
            permit.succeeded()

    tasks = []
    for _ in range(2000):
        tasks.append(asyncio.ensure_future(call()))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.2:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.load == 0
    assert most <= 8
    async with asyncio.timeout(30), gate.permit():
        assert gate.n_in_flight == 1

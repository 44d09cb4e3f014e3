"""When batches go, who is in them, and that every request ends whatever the engine does. On virtual time."""

import asyncio
from functools import wraps

import pytest

from outrider.core.errors import ContextOverflow, PolicyError, PolicyUnusable
from outrider.policy.engine import TokenReply
from outrider.policy.engine.calling import calls_of
from outrider.policy.engine.coalescer import Coalescer
from outrider.testing import LoopClock, run_virtual
from token_engine import AsyncEngine, request, says


def virtual(test):
    """A hang is a `Deadlock`."""

    @wraps(test)
    def run(*args, **kwargs):
        run_virtual(test(*args, **kwargs), limit_seconds=100_000)

    return run


def coalescer(engine, *, max_batch=4, wait_seconds=1.0, max_waiting=100, deadline_seconds=600.0):
    return Coalescer(
        calls_of(engine),
        max_batch=max_batch,
        wait_seconds=wait_seconds,
        max_waiting=max_waiting,
        deadline_seconds=deadline_seconds,
        clock=LoopClock(),
    )


async def ask_at(made, *times):
    """Ask at each of these times: what comes back, replies or errors."""

    async def ask(number, time):
        await asyncio.sleep(time)
        return await made.ask(request(number))

    return await asyncio.gather(*(ask(number, time) for number, time in enumerate(times)), return_exceptions=True)


@virtual
async def test_a_batch_goes_when_its_first_request_has_waited():
    engine = AsyncEngine()
    answered = await ask_at(coalescer(engine), 0.0, 0.25, 0.75, 1.5)
    assert engine.batches == [(1.0, 3), (2.5, 1)]
    assert [queued for _, queued in answered] == pytest.approx([1.0, 0.75, 0.25, 1.0])


@virtual
async def test_a_full_batch_goes_at_once():
    engine = AsyncEngine()
    made = coalescer(engine)
    await ask_at(made, 0.0, 0.0, 0.25, 0.5, 0.75)
    assert engine.batches == [(0.5, 4), (1.75, 1)]
    assert (dict(made.sizes), made.queue_seconds) == ({4: 1, 1: 1}, pytest.approx(0.5 + 0.5 + 0.25 + 1.0))


@virtual
async def test_the_next_batch_is_collected_while_one_runs():
    engine = AsyncEngine(seconds=5.0)
    made = coalescer(engine)
    await ask_at(made, 0.0, 1.5, 2.0, 4.0)
    assert engine.batches == [(1.0, 1), (6.0, 3)]
    assert made.engine_seconds == pytest.approx(10.0)


@virtual
async def test_a_batch_that_has_not_waited_when_the_engine_is_free_waits_on():
    engine = AsyncEngine(seconds=5.0)
    await ask_at(coalescer(engine), 0.0, 5.75, 6.5)
    assert engine.batches == [(1.0, 1), (6.75, 2)]


@virtual
async def test_more_than_a_batch_goes_in_several_in_the_order_of_arrival():
    engine = AsyncEngine(lambda asked: TokenReply(ids=[asked.prompt_ids[0]]), seconds=5.0)
    answered = await ask_at(coalescer(engine), *([0.0] * 10))
    assert engine.batches == [(0.0, 4), (5.0, 4), (10.0, 2)]
    assert [asked.prompt_ids[0] for asked in engine.requests] == list(range(10))
    assert [reply.ids for reply, _ in answered] == [[number] for number in range(10)]


@virtual
async def test_with_no_wait_what_comes_at_once_goes_together():
    engine = AsyncEngine(seconds=0.5)
    await ask_at(coalescer(engine, wait_seconds=0.0), 0.0, 0.0, 0.25, 0.75)
    assert engine.batches == [(0.0, 2), (0.5, 1), (1.0, 1)]


@virtual
async def test_who_is_cancelled_before_the_batch_goes_is_not_in_it():
    engine = AsyncEngine()
    made = coalescer(engine)
    asked = [asyncio.ensure_future(made.ask(request(number))) for number in range(3)]
    await asyncio.sleep(0.5)
    asked[0].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert [one.prompt_ids[0] for one in engine.requests] == [1, 2]


@virtual
async def test_nothing_goes_if_all_are_cancelled_and_the_next_waits_its_own_time():
    engine = AsyncEngine()
    made = coalescer(engine)
    asked = asyncio.ensure_future(made.ask(request(0)))
    await asyncio.sleep(0.5)
    asked.cancel()
    await asyncio.sleep(0.25)
    await made.ask(request(1))
    assert engine.batches == [(1.75, 1)]


@virtual
async def test_who_is_cancelled_later_gets_nothing_and_the_others_their_replies():
    engine = AsyncEngine(seconds=5.0)
    made = coalescer(engine)
    asked = [asyncio.ensure_future(made.ask(request(number))) for number in range(3)]
    await asyncio.sleep(2.0)
    asked[1].cancel()
    first, second, third = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(second, asyncio.CancelledError)
    assert (first, third) == ((says("yes"), 1.0), (says("yes"), 1.0))


@virtual
async def test_an_error_for_one_request_fails_that_one_alone():
    wrong = {1: ValueError("no such token"), 2: ContextOverflow("too long"), 3: "words"}
    engine = AsyncEngine(lambda asked: wrong.get(asked.prompt_ids[0], says("yes")))
    made = coalescer(engine)
    first, *others = await ask_at(made, 0.0, 0.0, 0.0, 0.0)
    assert first[0] == says("yes")
    assert [type(error) for error in others] == [PolicyError, ContextOverflow, PolicyError]
    assert [str(error) for error in others] == [
        "the engine failed: ValueError: no such token",
        "too long",
        "the engine returned str in place of a TokenReply",
    ]
    assert made.n_failed == 3


class Failing(AsyncEngine):
    """Fails as a whole, once."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    async def generate(self, requests):
        replies = await super().generate(requests)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return replies


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RuntimeError("out of memory"), PolicyError, "RuntimeError: out of memory"),
        (PolicyUnusable("no such model"), PolicyUnusable, "no such model"),
        (ContextOverflow("one of them"), PolicyError, "one of them"),  # whose it is, nobody knows
        (asyncio.CancelledError(), PolicyError, "cancelled"),
    ],
)
@virtual
async def test_an_error_of_the_whole_call_fails_its_requests_and_the_engine_is_asked_again(error, kind, said):
    made = coalescer(Failing(error))
    *failed, answered = await ask_at(made, 0.0, 0.0, 2.0)
    assert [type(one) for one in failed] == [kind, kind]
    assert failed[0] is not failed[1]
    assert said in str(failed[0])
    assert answered[0] == says("yes")


@pytest.mark.parametrize(("replies", "said"), [([], "0 replies"), ([says("a")] * 3, "3 replies"), (None, "NoneType")])
@virtual
async def test_a_wrong_number_of_replies_fails_all_of_them(replies, said):
    class Miscounting:
        async def generate(self, requests):
            return replies

    for error in await ask_at(coalescer(Miscounting()), 0.0, 0.0):
        assert isinstance(error, PolicyError)
        assert f"{said} for 2 requests" in str(error)


@virtual
async def test_a_call_past_its_deadline_fails_and_the_engine_goes_on():
    engine = AsyncEngine(seconds=100.0)
    made = coalescer(engine, deadline_seconds=10.0)
    first = asyncio.ensure_future(made.ask(request(0)))
    await asyncio.sleep(5.0)
    engine._seconds = 1.0
    answered = await made.ask(request(1))
    assert engine.batches == [(1.0, 1), (11.0, 1)]
    assert answered == (says("yes"), 6.0)
    with pytest.raises(PolicyError, match="within its deadline of 10 s"):
        await first


class Stubborn:
    """Does not let itself be cancelled."""

    def __init__(self):
        self.n_calls = 0
        self.may_return = asyncio.Event()

    async def generate(self, requests):
        self.n_calls += 1
        while not self.may_return.is_set():
            try:
                await self.may_return.wait()
            except asyncio.CancelledError:
                continue
        return [says("late") for _ in requests]


@virtual
async def test_an_engine_that_never_returns_keeps_nobody_waiting_and_is_not_called_twice():
    engine = Stubborn()
    made = coalescer(engine, deadline_seconds=10.0)
    errors = await ask_at(made, 0.0, 2.0, 15.0, 25.0)
    assert [str(error) for error in errors] == ["the engine has not returned within its deadline of 10 s"] * 4
    assert asyncio.get_running_loop().time() == pytest.approx(31.0)
    assert engine.n_calls == 1
    engine.may_return.set()
    assert (await made.ask(request(4)))[0] == says("late")
    engine.may_return.clear()
    began = asyncio.get_running_loop().time()
    with pytest.raises(PolicyError, match="within its deadline"):
        await made.ask(request(5))
    assert asyncio.get_running_loop().time() - began == pytest.approx(11.0)
    assert (engine.n_calls, made.n_failed) == (3, 5)
    engine.may_return.set()


@virtual
async def test_more_than_may_wait_are_refused():
    engine = AsyncEngine(seconds=5.0)
    answered = await ask_at(coalescer(engine, max_batch=2, max_waiting=3), *([0.0] * 6))
    assert "3 requests wait for the engine already" in str(answered[5])
    assert [type(one) for one in answered] == [tuple] * 5 + [PolicyError]


@virtual
async def test_closing_fails_whoever_waits_and_stops_the_engine():
    engine = AsyncEngine(seconds=50.0)
    made = coalescer(engine)
    asked = asyncio.ensure_future(ask_at(made, 0.0, 2.0))
    await asyncio.sleep(3.0)
    await made.close()
    await made.close()
    assert engine.n_running == 0
    assert [str(error) for error in await asked] == ["the policy was closed before the engine replied"] * 2
    with pytest.raises(PolicyError, match="closed"):
        await made.ask(request(0))
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)


@virtual
async def test_a_thousand_callers_are_all_answered_each_with_its_own():
    engine = AsyncEngine(lambda asked: TokenReply(ids=asked.prompt_ids), seconds=0.25)
    made = coalescer(engine, max_batch=256, wait_seconds=0.005, max_waiting=1000)
    for _ in range(3):
        answered = await ask_at(made, *([0.0] * 1000))
        assert [reply.ids[0] for reply, _ in answered] == list(range(1000))
    assert dict(made.sizes) == {256: 9, 232: 3}

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from guessing import memory
from leaks import no_leaks
from outrider import Store
from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import StoreUnavailable
from outrider.core.ledger import LEDGER_KEY, Grant, Ledger, LedgerWrite, NewGroup
from outrider.core.rollout import AttemptedRollout, RolloutRequest
from outrider.runner.gate import UNAVAILABLE_SECONDS, Gate
from outrider.testing import FakeClock, eventually


class Counted:
    """A store that counts the gate's calls, and cannot be reached for the first few of them."""

    def __init__(self, store: Store, *, n_failures: int = 0) -> None:
        self._store = store
        self.outage = store.outage
        self._n_failures = n_failures
        self.calls: Counter[str] = Counter()
        self.asked: list[Sequence[tuple[str, str]]] = []

    async def ask_to_begin(self, asks: Sequence[tuple[str, str]]) -> None:
        self._count("ask_to_begin")
        self.asked.append(asks)
        await self._store.ask_to_begin(asks)

    async def grants(self, attempt_ids: Collection[str], *, wait: float = 0.0) -> Any:
        self._count("grants")
        return await self._store.grants(attempt_ids, wait=wait)

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if self.calls[name] <= self._n_failures:
            raise StoreUnavailable("out of reach")


class Scene:
    """A ledger with one group, all of whose members are claimed, and a gate on its store."""

    def __init__(self, store: Store, ledger: Ledger, claimed: Sequence[AttemptedRollout], counted: Counted) -> None:
        self.store = store
        self.claimed = claimed
        self.counted = counted
        self._ledger = ledger
        self.gate: Gate

    async def grant(self, *claimed: AttemptedRollout, version: int = 0) -> None:
        grants = tuple(Grant(group_id="g", attempt_id=each.attempt.attempt_id, version=version) for each in claimed)
        await self.store.write_ledger(self._ledger, LedgerWrite(granted=grants))

    def enter(self, claimed: AttemptedRollout) -> "asyncio.Task[int]":
        return asyncio.create_task(self.gate.enter(claimed.rollout_id, claimed.attempt.attempt_id))

    async def all_have_asked(self, n: int) -> None:
        async def asked() -> bool:
            return len((await self.store.asks_after("train", limit=10_000)).items) == n

        await eventually(asked)


@asynccontextmanager
async def scene(n: int, *, clock: Clock | None = None, n_failures: int = 0) -> AsyncIterator[Scene]:
    async with memory() as store:
        ledger = await store.open_ledger("train")
        members = tuple(
            RolloutRequest(input=i, rollout_id=f"r{i}", group_id="g", metadata={LEDGER_KEY: "train"}) for i in range(n)
        )
        group = NewGroup(group_id="g", number=0, tag="t", seed=0, size=n, members=members)
        await store.write_ledger(ledger, LedgerWrite(opened=(group,)))
        claimed = await store.dequeue_many_rollouts(n, worker_id="w")
        counted = Counted(store, n_failures=n_failures)
        made = Scene(store, ledger, claimed, counted)
        made.gate = Gate(counted, clock or SystemClock())  # type: ignore[arg-type]
        duty = asyncio.create_task(made.gate.run())
        try:
            yield made
        finally:
            duty.cancel()
            await asyncio.wait([duty])
        assert duty.cancelled()


async def test_an_attempt_enters_when_it_is_granted_and_learns_the_version():
    async with no_leaks(), scene(2) as here:
        first, second = map(here.enter, here.claimed)
        await here.all_have_asked(2)
        assert not first.done()

        await here.grant(here.claimed[1], version=7)

        async with asyncio.timeout(10):
            assert await second == 7
        assert not first.done()
        await here.grant(here.claimed[0], version=8)
        assert await first == 8
        assert here.gate.n_waiting == 0


async def test_nothing_is_asked_of_the_store_before_an_attempt_comes_up():
    async with scene(1) as here:
        for _ in range(20):
            await asyncio.sleep(0)
        assert here.counted.calls == {}


async def test_five_hundred_waiting_attempts_cost_one_call_a_look():
    async with no_leaks(), scene(500) as here:
        waiting = [here.enter(claimed) for claimed in here.claimed]
        await here.all_have_asked(500)
        assert here.counted.calls["ask_to_begin"] <= 2
        assert here.counted.calls["grants"] == 1

        await here.grant(*here.claimed)

        async with asyncio.timeout(10):
            assert await asyncio.gather(*waiting) == [0] * 500
        assert here.counted.calls["grants"] == 1


async def test_attempts_are_asked_for_in_the_order_they_came_up():
    async with scene(20) as here:
        waiting = [here.enter(claimed) for claimed in reversed(here.claimed)]
        await here.all_have_asked(20)
        asked = [rollout_id for asks in here.counted.asked for rollout_id, _ in asks]
        assert asked == [claimed.rollout_id for claimed in reversed(here.claimed)]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_cancelled_waiter_leaves_nothing_behind_and_holds_up_no_other():
    async with no_leaks(), scene(2) as here:
        first, second = map(here.enter, here.claimed)
        await here.all_have_asked(2)
        first.cancel()
        await asyncio.wait([first])
        assert here.gate.n_waiting == 1

        await here.grant(*here.claimed)

        async with asyncio.timeout(10):
            await second
        assert here.gate.n_waiting == 0


async def test_one_that_comes_up_while_others_wait_is_asked_for_at_once_and_alone():
    async with scene(2) as here:
        first = here.enter(here.claimed[0])
        await here.all_have_asked(1)
        second = here.enter(here.claimed[1])
        await here.all_have_asked(2)
        assert [[rollout_id for rollout_id, _ in asks] for asks in here.counted.asked] == [["r0"], ["r1"]]
        await here.grant(*here.claimed)
        async with asyncio.timeout(10):
            await asyncio.gather(first, second)


async def test_a_store_that_cannot_be_reached_is_tried_again(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    async with no_leaks(), scene(1, clock=clock, n_failures=2) as here:
        waiting = here.enter(here.claimed[0])
        for _ in range(2):
            await clock.advance(UNAVAILABLE_SECONDS)
        await here.all_have_asked(1)
        await here.grant(here.claimed[0], version=1)
        async with asyncio.timeout(10):
            assert await waiting == 1
    assert "the store is away" in caplog.text
    assert "the store is back" in caplog.text

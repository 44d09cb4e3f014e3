import asyncio
import time

import pytest

from outrider.core.clock import sleep
from outrider.core.rollout import RolloutConfig
from outrider.core.status import AttemptStatus
from outrider.store import open_store
from outrider.testing import Deadlock, LoopClock, run_scaled, run_virtual
from outrider.testing.clock import START
from promptly import within

YEAR = 365 * 86400.0


def test_a_long_sleep_takes_no_real_time():
    async def main() -> float:
        await asyncio.sleep(YEAR)
        return asyncio.get_running_loop().time()

    with within(5):
        assert run_virtual(main()) == pytest.approx(YEAR)


def test_sleepers_wake_in_the_order_they_are_due_each_at_its_own_time():
    woken = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((asyncio.get_running_loop().time(), seconds))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for seconds in (3.0, 0.1, 2.5, 0.1):
                group.create_task(sleeper(seconds))

    run_virtual(main())
    assert woken == [(0.1, 0.1), (0.1, 0.1), (2.5, 2.5), (3.0, 3.0)]


def test_time_stands_still_while_anything_is_ready():
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_a_timeout_ends_a_wait_for_what_does_not_come():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 7.0


def test_when_nothing_can_happen_any_more_the_tasks_that_wait_are_named():
    async def stuck(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await asyncio.sleep(5.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck(asyncio.Event()), name="the trainer")
            group.create_task(stuck(asyncio.Event()), name="a worker")

    with pytest.raises(Deadlock, match="after 5 s nothing is ready") as caught:
        run_virtual(main())
    assert caught.value.at == 5.0
    assert caught.value.waiting[-2:] == ("a worker", "the trainer")
    assert "main" in caught.value.waiting[0]


def test_a_program_that_only_ticks_ends_at_the_limit():
    cleaned = []

    async def main() -> None:
        try:
            while True:
                await asyncio.sleep(0.5)
        finally:
            await asyncio.sleep(100.0)
            cleaned.append(asyncio.get_running_loop().time())

    with pytest.raises(Deadlock, match="limit of 60 s"):
        run_virtual(main(), limit_seconds=60.0)
    assert cleaned == [160.0]


def test_an_error_comes_out_as_it_is():
    async def main() -> None:
        await asyncio.sleep(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())


def test_the_clock_tells_the_loops_time_and_calls_back_on_it():
    async def main() -> list[float]:
        clock, called = LoopClock(), []
        clock.call_later(2.0, lambda: called.append(clock.time()))
        clock.call_later(1.0, lambda: called.append(-1.0)).cancel()
        await sleep(clock, 3.0)
        return [*called, clock.time()]

    assert run_virtual(main()) == [START + 2.0, START + 3.0]


def test_a_store_expires_leases_and_wakes_claimers_on_virtual_time():
    async def main() -> list[tuple[float, str]]:
        clock, seen = LoopClock(), []
        async with open_store("memory://", clock=clock) as store:
            config = RolloutConfig(unresponsive_seconds=30.0, timeout_seconds=100.0)

            async def claim(worker: str) -> None:
                claimed = await store.dequeue_rollout(worker_id=worker, wait=3600.0)
                assert claimed is not None
                seen.append((clock.time() - START, worker))
                if worker == "second":
                    attempt = claimed.attempt
                    await store.update_attempt(
                        attempt.rollout_id, attempt.attempt_id, status=AttemptStatus.SUCCEEDED, reward=1.0
                    )

            async with asyncio.TaskGroup() as group:
                group.create_task(claim("first"))
                await asyncio.sleep(10.0)
                rollout = await store.enqueue_rollout("a task", config=config)
                await asyncio.sleep(1.0)
                group.create_task(claim("second"))
                ended = await store.wait_for_rollouts([rollout.rollout_id])
            seen.append((clock.time() - START, str(ended[0].status)))
        return seen

    assert run_virtual(main()) == [(10.0, "first"), (40.0, "second"), (40.0, "succeeded")]


def test_scaled_time_runs_as_many_times_as_fast():
    async def main() -> tuple[float, float]:
        began, real = LoopClock().time(), time.monotonic()
        async with asyncio.timeout(1000.0):
            await asyncio.sleep(5.0)
        return LoopClock().time() - began, time.monotonic() - real

    passed, real = run_scaled(main(), speed=100.0)
    assert passed >= 5.0
    assert passed == pytest.approx(real * 100, rel=0.2)

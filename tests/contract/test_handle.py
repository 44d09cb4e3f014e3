"""One opened store, used from other threads and event loops."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from outrider.core.errors import InvalidInput, LeaseLost, StoreError
from outrider.store import Store, open_store

R = TypeVar("R")


async def elsewhere(work: Callable[[], Awaitable[R]]) -> R:
    """What `work` returns on an event loop of its own, in a thread of its own."""
    return await in_thread(lambda: asyncio.run(_awaited(work)))


async def in_thread(function: Callable[[], R]) -> R:
    with ThreadPoolExecutor(1) as pool:  # one that ends with the call, unlike the loop's own
        return await asyncio.get_running_loop().run_in_executor(pool, function)


async def _awaited(work: Callable[[], Awaitable[R]]) -> R:
    async with asyncio.timeout(60):
        return await work()


async def test_a_store_refuses_another_event_loop_and_says_what_to_do(store: Store) -> None:
    async def use() -> None:
        for call in (
            lambda: store.enqueue_rollout("a"),
            lambda: store.dequeue_rollout(worker_id="w", wait=60.0),
            lambda: store.update_attempt("a", "b", status="running"),
            store.query_rollouts,
            lambda: store.wait_for_rollouts(["a"]),
            lambda: store.heartbeat("w"),
            lambda: store.put_resources({}),
            store.statistics,
        ):
            with pytest.raises(StoreError, match=r"belongs to the event loop that opened it.*store\.handle\(\)"):
                await call()

    await elsewhere(use)
    assert (await store.query_rollouts()).total == 0


async def test_a_handle_is_the_same_store_on_every_loop(store: Store) -> None:
    handle = store.handle()
    assert handle.url == store.url
    n_threads, n_each = 4, 10

    async def work(name: str) -> int:
        for number in range(n_each):
            await handle.enqueue_rollout({"n": number}, rollout_id=f"{name}-{number}")
        n_done = 0
        while (claimed := await handle.dequeue_rollout(worker_id=name)) is not None:
            await handle.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=1.0)
            n_done += 1
        return n_done

    names = [f"t{number}" for number in range(n_threads)]
    done = await asyncio.gather(*(elsewhere(lambda name=name: work(name)) for name in names))
    assert sum(done) == n_threads * n_each
    assert {one.status for one in await handle.query_rollouts()} == {"succeeded"}
    workers = {worker.worker_id: worker.n_succeeded for worker in await handle.query_workers()}
    assert workers == dict(zip(names, done, strict=True))


async def test_errors_and_live_views_come_through_a_handle(store: Store) -> None:
    handle = store.handle()
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    running = {claimed.attempt.attempt_id: 1, "at-0-1-none": 2}

    async def use() -> None:
        (lost,) = await handle.heartbeat("w", running.keys())
        assert lost.attempt_id == "at-0-1-none"
        with pytest.raises(InvalidInput):
            await handle.enqueue_rollout(object())
        with pytest.raises(LeaseLost):
            await handle.update_attempt("a", "at-0-1-none", status="succeeded")

    await elsewhere(use)


async def test_a_call_through_a_handle_is_cancelled_with_its_caller(store: Store) -> None:
    """A claim whose caller is gone gives nothing away."""
    handle = store.handle()

    async def use() -> None:
        claim = asyncio.ensure_future(handle.dequeue_rollout(worker_id="w", wait=3600.0))
        await handle.statistics()  # the claim was carried over before this was
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim

    await elsewhere(use)
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="v", wait=60.0)
    assert claimed is not None


async def check_end_of_owner(url: str, *, closes: bool) -> None:
    opened: list[Store] = []
    is_open, may_end = threading.Event(), threading.Event()

    async def own() -> None:
        store = await open_store(url)
        opened.append(store.handle())
        is_open.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)
        if closes:
            await store.close()

    owner = threading.Thread(target=asyncio.run, args=(own(),))
    owner.start()
    assert await in_thread(lambda: is_open.wait(60))
    (handle,) = opened
    waiting = asyncio.ensure_future(handle.dequeue_rollout(worker_id="w", wait=3600.0))
    await handle.statistics()
    may_end.set()
    async with asyncio.timeout(60):
        with pytest.raises(StoreError, match=r"is closed|does not run any more"):
            await waiting
    await in_thread(lambda: owner.join(60))
    with pytest.raises(StoreError, match="does not run any more"):
        await handle.statistics()


async def test_a_call_fails_when_the_store_is_closed_and_its_loop_ends(url: str) -> None:
    await check_end_of_owner(url, closes=True)


async def test_a_call_fails_when_the_loop_ends_without_closing_the_store() -> None:
    """Nobody hangs, and nobody is cancelled who was not."""
    await check_end_of_owner("memory://", closes=False)


async def test_a_closed_store_closes_its_handles(url: str) -> None:
    store = await open_store(url)
    handle = store.handle()
    await elsewhere(handle.close)
    for each in (store, handle):
        with pytest.raises(StoreError, match="closed"):
            await each.statistics()

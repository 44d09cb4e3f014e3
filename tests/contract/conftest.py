"""The store under test, once for each engine; nothing of it may be left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from leaks import no_leaks
from outrider.core.errors import StoreError
from outrider.store import Store, open_store
from outrider.testing import FakeClock, eventually
from outrider.testing.history import check_store
from store_invariants import check_invariants

T = TypeVar("T")


def _new_url(engine: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    match engine:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{folder}/runs.db"
            bells = folder / "runs.db-bells"
            assert not bells.exists() or list(bells.glob("*-*")) == []
        case _:
            yield request.getfixturevalue("postgres_url")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh store of each engine."""
    yield from _new_url(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh store that can be opened again."""
    yield from _new_url(request.param, request, tmp_path)


@pytest.fixture(autouse=True)
def _checked(history: object) -> None:
    """What every test asks of stores is recorded, and checked in the end; see `history_checking`."""


@pytest.fixture
async def store(url: str, clock: FakeClock, history: Path) -> AsyncIterator[Store]:
    async with no_leaks():
        store = await open_store(url, clock=clock)
        yield store
        async with asyncio.timeout(60):  # a store that no longer answers fails its test instead of hanging all
            await check_unless_closed(store, history)
            await store.close()


async def check_unless_closed(store: Store, history: Path) -> None:
    try:
        await store.statistics()
    except StoreError:
        return
    await check_invariants(store)
    await check_store(store, history)


class Parked(Protocol):
    async def __call__(self, waiting: Awaitable[T]) -> "asyncio.Task[T]": ...


@pytest.fixture
async def parked(store: Store, clock: FakeClock) -> AsyncIterator[Parked]:
    """Starts a waiting call and returns once it really waits; ends it after the test."""
    tasks: list[asyncio.Task[object]] = []

    async def park(waiting: Awaitable[T]) -> "asyncio.Task[T]":
        await _sleeping(clock, 1)
        sleepers = clock.n_timers
        task = asyncio.ensure_future(waiting)
        tasks.append(task)
        await _sleeping(clock, sleepers + 1)
        assert not task.done(), f"found something in {store.url} instead of waiting"
        return task

    yield park
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _sleeping(clock: FakeClock, n: int) -> None:
    async def enough() -> bool:
        return clock.n_timers >= n

    await eventually(enough)

"""Waiting for a screen that stands still, on a clock that the test moves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outrider.core.errors import MachineError
from outrider.env.osworld.settling import N_LOOKS, patiently, settled
from outrider.testing import FakeClock


def showing(pictures: list[str]) -> tuple[Callable[[], Awaitable[str]], list[str]]:
    """A look at these pictures in turn, the last one for ever; and what was seen."""
    seen: list[str] = []

    async def look() -> str:
        seen.append(pictures[min(len(seen), len(pictures) - 1)])
        return seen[-1]

    return look, seen


async def watch(pictures: list[str], *, limit: float, seconds: float = 10.0) -> tuple[str, list[str], float]:
    clock = FakeClock()
    start = clock.time()
    look, seen = showing(pictures)
    waiting = asyncio.create_task(settled(look, clock, interval_seconds=0.5, limit_seconds=limit))
    while not waiting.done() and clock.time() < start + seconds:
        await clock.advance(0.25)
    assert waiting.done()
    return await waiting, seen, clock.time() - start


async def test_a_screen_that_stands_still_is_looked_at_twice():
    found, seen, seconds = await watch(["a"], limit=5)
    assert (found, seen) == ("a", ["a", "a"])
    assert seconds <= 0.75


async def test_a_screen_that_moves_is_waited_for():
    found, seen, _ = await watch(["a", "b", "c", "c"], limit=5)
    assert (found, seen) == ("c", ["a", "b", "c", "c"])


async def test_a_screen_that_never_rests_is_shown_at_the_limit():
    found, seen, seconds = await watch([str(number) for number in range(1_000)], limit=2)
    assert found == seen[-1]
    assert 2 <= seconds <= 2.5


async def test_without_time_to_settle_there_is_one_look():
    found, seen, _ = await watch(["a", "b"], limit=0)
    assert (found, seen) == ("a", ["a"])


@pytest.mark.parametrize("n_failures", range(N_LOOKS + 1))
async def test_a_look_is_repeated_but_not_for_ever(n_failures: int):
    clock = FakeClock()
    n_looks = 0

    async def look() -> str:
        nonlocal n_looks
        n_looks += 1
        if n_looks <= n_failures:
            raise MachineError("silent")
        return "seen"

    looking = asyncio.create_task(patiently(look, clock))
    for _ in range(N_LOOKS):
        await clock.advance(1.0)
    assert looking.done()
    if n_failures < N_LOOKS:
        assert await looking == "seen"
    else:
        with pytest.raises(MachineError, match="silent"):
            await looking
    assert n_looks == min(n_failures + 1, N_LOOKS)

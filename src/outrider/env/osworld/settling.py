"""Waiting until what is seen stands still, in place of a fixed pause."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from outrider.core.clock import Clock, sleep
from outrider.core.errors import MachineError

T = TypeVar("T")

N_LOOKS = 3
_AGAIN_SECONDS = 0.2


async def settled(
    look: Callable[[], Awaitable[T]], clock: Clock, *, interval_seconds: float, limit_seconds: float
) -> T:
    """Look until two looks in a row are equal, or the limit has passed: the last look.

    With a limit of 0, look once.
    """
    deadline = clock.monotonic() + limit_seconds
    seen = await look()
    while (left := deadline - clock.monotonic()) > 0:
        await sleep(clock, min(interval_seconds, left))
        again = await look()
        if again == seen:
            return again
        seen = again
    return seen


async def patiently(look: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Look, and look again if the machine does not answer: looking changes nothing. The last failure is raised."""
    for _ in range(N_LOOKS - 1):
        try:
            return await look()
        except MachineError:
            await sleep(clock, _AGAIN_SECONDS)
    return await look()

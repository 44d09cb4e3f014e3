"""Waiting in a store: look, and look again whenever the bell rings."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from outrider.core.clock import Clock
from outrider.store.bell import Bell, Topic
from outrider.store.engine import Engine
from outrider.store.steps import check_seconds

R = TypeVar("R")


class Waiting(Engine):
    """An engine with a clock and a bell."""

    def __init__(self, clock: Clock, bell: Bell) -> None:
        self._clock = clock
        self._bell = bell

    async def _look_until(
        self, topic: Topic, look: Callable[[], Awaitable[tuple[R, ...]]], wait: float
    ) -> tuple[R, ...]:
        """Look, and if nothing is found, watch for `wait` seconds."""
        check_seconds("wait", wait)
        if wait <= 0:
            return await look()
        deadline = self._clock.monotonic() + wait
        if found := await look():
            return found
        return await self._watch(topic, look, deadline, net_seconds=self._bell.net_seconds)

    async def _watch(
        self, topic: Topic, look: Callable[[], Awaitable[tuple[R, ...]]], deadline: float, *, net_seconds: float
    ) -> tuple[R, ...]:
        """Look, and look again after every ring, until something is found or `deadline` (monotonic) has passed."""
        with self._bell.listening(topic) as listener:
            while not (found := await look()) and (remaining := deadline - self._clock.monotonic()) > 0:
                await listener.wait(min(remaining, net_seconds))
        return found

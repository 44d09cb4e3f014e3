"""Waking those who wait: rung after a commit, heard by every listener of that topic in this process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from outrider.core.clock import Clock, wait


class Topic(StrEnum):
    """What a listener can wait for."""

    QUEUE = "queue"
    ENDED = "ended"
    REVOKED = "revoked"
    ASKED = "asked"
    GRANTED = "granted"
    PUBLISHED = "published"


class Listener:
    """One waiter. A ring between two waits is not lost: the next wait returns at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return when rung, or after `seconds`."""
        if not self._rung:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await wait(self._clock, self._future, seconds)
            finally:
                self._future = None
        self._rung = False


class Bell:
    """The listeners of one process. Engines that span processes override the two hooks."""

    net_seconds = 3600.0
    """How long to wait at most before looking again, for an engine whose rings could be lost with a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In the order they came, so that the same program always wakes in the same order.
        self._listeners: dict[Topic, dict[Listener, None]] = {topic: {} for topic in Topic}

    @contextmanager
    def listening(self, topic: Topic) -> Iterator[Listener]:
        """Register before the look that may find nothing, so that no ring falls between look and wait."""
        listener = Listener(self._clock)
        listeners = self._listeners[topic]
        if not listeners:
            self.on_first_listener(topic)
        listeners[listener] = None
        try:
            yield listener
        finally:
            del listeners[listener]
            if not listeners:
                self.on_last_listener(topic)

    def ring_here(self, topic: Topic) -> None:
        """Wake this process. Call it on the event loop."""
        for listener in self._listeners[topic]:
            listener.ring()

    def on_first_listener(self, topic: Topic) -> None:
        """Someone in this process waits for `topic` from now on."""

    def on_last_listener(self, topic: Topic) -> None:
        """Nobody in this process waits for `topic` any more."""

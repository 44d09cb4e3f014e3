"""An attempt's events on their way to the store: buffered, sent in order, each exactly once."""

import asyncio
import threading
from typing import Protocol

from outrider.core import wire
from outrider.core.crash_points import reached
from outrider.core.event import Event
from outrider.store import Store


class EventSink(Protocol):
    """Where the events of an attempt go."""

    def add(self, event: Event) -> None: ...


class Recorder:
    """`add` may be called from any thread; the rest belongs to the worker's event loop.

    `n_bytes` is the size of all that was added.
    """

    def __init__(self, store: Store, rollout_id: str, attempt_id: str) -> None:
        self._store = store
        self._rollout_id = rollout_id
        self._attempt_id = attempt_id
        self._lock = threading.Lock()
        self._sending = asyncio.Lock()
        self._pending: list[Event] = []
        self._n_sent = 0
        self.n_bytes = 0

    def add(self, event: Event) -> None:
        """Refuses, where it is written, an event that the store could not keep."""
        data = wire.encode(event.data)
        with self._lock:
            self._pending.append(event)
            self.n_bytes += len(data)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    async def flush(self) -> None:
        """Send what is pending. After a failure it stays pending: sending it again changes nothing."""
        async with self._sending:
            if batch := tuple(self._pending):
                await self._store.append_events(self._rollout_id, self._attempt_id, batch, first_index=self._n_sent)
                reached("events.appended")
                self._sent(len(batch))

    async def rest(self) -> tuple[tuple[Event, ...], int]:
        """What is not sent yet, and its first index, to go with the attempt's last write."""
        async with self._sending:
            return tuple(self._pending), self._n_sent

    def _sent(self, count: int) -> None:
        with self._lock:
            del self._pending[:count]
            self._n_sent += count

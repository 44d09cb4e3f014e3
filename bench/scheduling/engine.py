"""An inference engine that many requests share: each runs at full speed up to `speed` of them, beyond that less."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

CLOSE_ENOUGH = 1e-9


class Request:
    """A request under way: how much work it is, and at which point of the engine's own time it will be done."""

    __slots__ = ("callback", "due", "work")

    def __init__(self, work: float, due: float, callback: Callable[[], None]) -> None:
        self.work = work
        self.due = due
        self.callback: Callable[[], None] | None = callback


class Engine:
    """Processor sharing: with n requests under way each is served at the rate min(1, speed / n).

    The engine's own time passes at that rate for all of them alike, so the one that is done next is the least in a
    heap, however often the rate changes.
    """

    def __init__(self, speed: float) -> None:
        self.n_running = 0
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Request]] = []
        self._numbers = itertools.count()
        self._served = 0.0
        self._as_of = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, work: float, callback: Callable[[], None]) -> Request:
        """Begin a request of so many seconds of work; `callback` when it is done."""
        self._catch_up()
        request = Request(work, self._served + work, callback)
        heapq.heappush(self._heap, (request.due, next(self._numbers), request))
        self.n_running += 1
        self._set_timer()
        return request

    def cancel(self, request: Request) -> float:
        """Stop a request that is under way; how much of its work was done."""
        self._catch_up()
        request.callback = None
        self.n_running -= 1
        self._set_timer()
        return request.work - max(request.due - self._served, 0.0)

    @property
    def _rate(self) -> float:
        return min(1.0, self._speed / max(self.n_running, 1))

    def _catch_up(self) -> None:
        now = self._loop.time()
        self._served += (now - self._as_of) * self._rate
        self._as_of = now

    def _set_timer(self) -> None:
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        due = self._as_of + max(heap[0][0] - self._served, 0.0) / self._rate if heap else None
        if self._timer is not None:
            if due is not None and abs(self._timer.when() - due) < CLOSE_ENOUGH:
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._catch_up()
        done = []
        while self._heap and self._heap[0][0] <= self._served + CLOSE_ENOUGH:
            request = heapq.heappop(self._heap)[2]
            if request.callback is not None:
                done.append(request.callback)
                request.callback = None
        self.n_running -= len(done)
        self._set_timer()
        for callback in done:
            callback()

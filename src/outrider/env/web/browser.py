"""The browser of one worker: a Chromium process that all its episodes share, replaced before it wears out.

Invariants:
- An episode has a context of its own on one process; at most `max_contexts` are open at once, first come, first served.
- A process that is worn (age, number of episodes) gets no new episode and ends with its last one; a process that died
  fails its episodes at once, and the next episode starts another.
- What was begun is brought to its end or undone, also when the episode that asked for it is cancelled.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import EnvError
from outrider.core.tasks import uninterrupted
from outrider.env.web.machine import Drivers, MachineBrowser
from outrider.env.web.process import BrowserProcess, Place
from outrider.pool.source import Machine

R = TypeVar("R")


class Browser:
    """Started by its first episode."""

    def __init__(
        self,
        *,
        executable: str | None = None,
        headless: bool = True,
        max_contexts: int = 8,
        max_contexts_per_process: int = 200,
        max_process_minutes: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._executable = executable
        self._headless = headless
        self._max_made = max_contexts_per_process
        self._max_seconds = max_process_minutes * 60
        self._clock = clock or SystemClock()
        self._slots = asyncio.Semaphore(max_contexts)
        self._launching = asyncio.Lock()
        self._current: BrowserProcess | None = None
        self._processes: set[BrowserProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drivers = Drivers()
        self._is_closed = False

    @property
    def processes(self) -> frozenset[BrowserProcess]:
        """Those that have been started and not closed yet."""
        return frozenset(self._processes)

    def on(self, machine: Machine) -> MachineBrowser:
        """A place in the browser of this machine, instead of one in ours."""
        return MachineBrowser(machine, self._drivers)

    async def acquire(self, proxy: str) -> Place[BrowserProcess]:
        """A fresh context whose every connection goes to `proxy`. Waits for its turn."""
        await self._slots.acquire()
        making = self._own(self._make(proxy))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._own(self._undo(making))
            raise

    async def release(self, place: Place[BrowserProcess]) -> None:
        await uninterrupted(self._release(place))

    async def close(self) -> None:
        """End all processes, whoever still uses them."""
        await uninterrupted(self._close())

    async def _close(self) -> None:
        self._is_closed = True
        async with self._launching:  # what is being launched is closed too
            for process in self.processes:
                self._retire(process, at_once=True)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._drivers.close()

    async def _make(self, proxy: str) -> Place[BrowserProcess]:
        try:
            process = await self._process()
            process.n_open += 1
            process.n_made += 1
            try:
                return Place(process, await process.new_context(proxy))
            except BaseException:
                self._leave(process)
                raise
        except BaseException:
            self._slots.release()
            raise

    async def _undo(self, making: asyncio.Task[Place[BrowserProcess]]) -> None:
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await self._release(making.result())

    async def _release(self, place: Place[BrowserProcess]) -> None:
        process = place.process
        try:
            if not process.is_lost and not await process.close_context(place.context):
                self._retire(process)
        finally:
            self._leave(process)
            self._slots.release()

    async def _process(self) -> BrowserProcess:
        """The process that takes the next episode."""
        async with self._launching:
            if self._is_closed:
                raise EnvError("the browser has been closed", stage="env.reset")
            if self._current is not None:
                if not self._is_worn(self._current):
                    return self._current
                self._retire(self._current)
            process = await BrowserProcess.launch(self._executable, headless=self._headless, clock=self._clock)
            self._processes.add(process)
            self._current = process
            self._own(self._watch(process))
            return process

    def _is_worn(self, process: BrowserProcess) -> bool:
        age = self._clock.monotonic() - process.launched_at
        return process.is_lost or process.n_made >= self._max_made or age >= self._max_seconds

    async def _watch(self, process: BrowserProcess) -> None:
        await process.lost()
        self._retire(process, at_once=True)

    def _leave(self, process: BrowserProcess) -> None:
        process.n_open -= 1
        if process is not self._current:
            self._retire(process)

    def _retire(self, process: BrowserProcess, *, at_once: bool = False) -> None:
        """No new episodes on it; close it when its last one has gone."""
        if process is self._current:
            self._current = None
        if process in self._processes and (at_once or process.n_open == 0):
            self._processes.discard(process)
            self._own(process.close())

    def _own(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

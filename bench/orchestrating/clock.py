"""Time as one idle core would see it: the CPU time of this process, and the sleeps, which are skipped."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Skip(selectors.SelectSelector):
    """Waits by counting the time as gone."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is ready and no timer runs: the program waits for what will not come")
        self.skipped += max(timeout, 0.0)
        return []


class CpuLoop(asyncio.SelectorEventLoop):
    """Begins at 0. Nothing outside of it may be waited for. What other processes do to the machine does not count."""

    def __init__(self) -> None:
        self._skip = _Skip()
        self._began = time.process_time()
        super().__init__(self._skip)

    def time(self) -> float:
        return time.process_time() - self._began + self._skip.skipped


def run_on_cpu_time(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=CpuLoop) as runner:
        return runner.run(coroutine)

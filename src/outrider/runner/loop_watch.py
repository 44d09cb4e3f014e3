"""A watch on an event loop, from a thread of its own: code that blocks the loop silences all workers that run on it.

It counts looks at which the loop had not moved, not seconds: a process that was suspended as a whole is not blocked.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from outrider.core.rollout import AttemptedRollout

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOKS = 4
"""How often to look within the time that a loop may be blocked, at least."""

MIN_LOOKS = 2
"""The same where the limit is lowered later: one look that was missed may be chance."""

STACK_CHARACTERS = 8_000

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parent.parent)

Identify = Callable[["asyncio.Task[Any] | None"], AttemptedRollout | None]
"""Tells which rollout of a worker a task works for, if it does. Called from another thread, while the loop stands."""


class Blockage(Struct, frozen=True, kw_only=True):
    """Code that blocks an event loop: whose it is, as far as that can be told, and where it stands."""

    seconds: float
    where: str
    stack: str
    rollout_id: str | None = None
    attempt_id: str | None = None

    @property
    def message(self) -> str:
        return (
            f"the event loop was blocked for {self.seconds:g} s at {self.where}; await there, move the call to a "
            "thread, or make the agent a plain def"
        )

    @property
    def whose(self) -> str:
        return "something" if self.rollout_id is None else f"rollout {self.rollout_id}"


def log_blockage(found: Blockage) -> None:
    """Tell of it, where nobody can end it: workers that are tasks live in a process that is not theirs."""
    _log.error("%s blocks its worker and all others in this process: %s\n%s", found.whose, found.message, found.stack)


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[float, LoopWatch]"] = WeakKeyDictionary()
"""The watches that workers on the same event loop have in common: a thread costs more than a short rollout does."""


class LoopWatch:
    """Watches the running event loop for as long as it has workers; several may share one.

    `on_blocked` is called once per blockage, in the thread that watches.
    """

    def __init__(self, seconds: float, on_blocked: Callable[[Blockage], None] = log_blockage) -> None:
        self._seconds = seconds
        self._on_blocked = on_blocked
        self._look_seconds = min(LOOK_SECONDS, seconds / LOOKS)
        self._workers: list[Identify] = []
        self._n_ticks = self._n_missed = 0

    @classmethod
    def shared(cls, seconds: float) -> "LoopWatch":
        """That of all workers on the running event loop which may be blocked for as long."""
        watches = _shared.setdefault(asyncio.get_running_loop(), {})
        return watches.setdefault(seconds, cls(seconds))

    @classmethod
    def limit_all(cls, loop: asyncio.AbstractEventLoop, seconds: float, on_blocked: Callable[[Blockage], None]) -> None:
        """Limit every shared watch on this loop, and have it call `on_blocked`. From any thread."""
        for watch in tuple(_shared.get(loop, {}).values()):
            watch.limit_to(seconds, on_blocked)

    def limit_to(self, seconds: float, on_blocked: Callable[[Blockage], None] | None = None) -> None:
        """From now on tell of a loop that is blocked for so long, if that is less than before. From any thread."""
        self._on_blocked = on_blocked or self._on_blocked
        self._seconds = min(self._seconds, max(seconds, MIN_LOOKS * self._look_seconds))
        self._n_missed = 0

    @contextmanager
    def of(self, identify: Identify) -> Iterator[None]:
        """Watch for this worker too, for as long as the block lasts; it is asked whose task blocks the loop."""
        if not self._workers:
            self._start()
        self._workers.append(identify)
        try:
            yield
        finally:
            self._workers.remove(identify)
            if not self._workers:
                self._stop()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch the event loop", daemon=True)
        self._tick()
        self._thread.start()

    def _stop(self) -> None:
        self._timer.cancel()
        self._over.set()
        self._thread.join()
        del self._loop, self._timer  # a watch that is shared must not keep its loop

    def _tick(self) -> None:
        self._n_ticks += 1
        self._timer = self._loop.call_later(self._look_seconds / 2, self._tick)

    def _watch(self) -> None:
        n_seen = 0
        while not self._over.wait(self._look_seconds):
            if self._n_ticks != n_seen:
                n_seen, self._n_missed = self._n_ticks, 0
                continue
            self._n_missed += 1
            if self._n_missed == round(self._seconds / self._look_seconds):
                self._on_blocked(self._blockage())

    def _blockage(self) -> Blockage:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 the one way to see what another thread does
        stack = [] if frame is None else list(traceback.extract_stack(frame))
        task = asyncio.current_task(self._loop)
        known = next((found for identify in self._workers if (found := identify(task)) is not None), None)
        return Blockage(
            seconds=self._seconds,
            where=_place(stack),
            stack="".join(traceback.format_list(stack))[-STACK_CHARACTERS:],
            rollout_id=None if known is None else known.rollout_id,
            attempt_id=None if known is None else known.attempt.attempt_id,
        )


def _place(stack: list[traceback.FrameSummary]) -> str:
    """The innermost line of the user's own code, and below it, if it is in a library, where it waits."""
    if not stack:
        return "an unknown place"
    innermost = stack[-1]
    own = [frame for frame in stack if not frame.filename.startswith((*_LIBRARIES, _OURS, "<"))]
    if not own or own[-1] is innermost:
        return _line(innermost)
    return f"{_line(own[-1])} (in {_line(innermost)})"


def _line(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} in {frame.name}"

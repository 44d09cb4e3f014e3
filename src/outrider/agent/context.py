"""The context of one attempt: who it is, and where its events go. Found by context variable, never by a global."""

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from outrider.agent.recorder import Recorder
from outrider.core.clock import Clock, utc
from outrider.core.errors import OutriderError
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout

_current: ContextVar["Context"] = ContextVar("outrider_context")


class Context:
    """Given to an agent beside its task; `outrider.current()` finds it from anywhere below, threads included."""

    def __init__(self, rollout: AttemptedRollout, recorder: Recorder, clock: Clock) -> None:
        self.rollout = rollout
        self._recorder = recorder
        self._clock = clock
        self._stopped = threading.Event()

    @property
    def rollout_id(self) -> str:
        return self.rollout.rollout_id

    @property
    def attempt_id(self) -> str:
        return self.rollout.attempt.attempt_id

    @property
    def seed(self) -> int | None:
        return self.rollout.seed

    @property
    def stopped(self) -> bool:
        """Whether the attempt was cancelled or lost its lease. An `async` agent is cancelled; a plain one can look."""
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def log(self, message: str, **data: Any) -> None:
        """Record a line of text, with facts beside it."""
        self.record(EventKind.LOG, message, data)

    def reward(self, value: float, name: str = "") -> None:
        """Record a reward along the way. The rollout's own reward is the one the agent returns."""
        self.record(EventKind.REWARD, name, {"reward": value})

    def record(self, kind: EventKind, name: str, data: Mapping[str, Any]) -> None:
        """Record one thing that happened. It reaches the store within about a second, or with the attempt's end."""
        self._recorder.add(Event(kind=kind, at=utc(self._clock.time()), name=_storable(name), data=data))

    def enter(self) -> None:
        """Make this the context of the running task and of what it starts."""
        _current.set(self)


def _storable(text: str) -> str:
    """Text that every store keeps: half characters and NULs, as models and programs print them, become marks."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def current() -> Context:
    """The context of the attempt that runs here; an error outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise OutriderError("outrider.current() was called outside of an attempt") from None

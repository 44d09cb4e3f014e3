"""The context of one attempt: who it is, what it acts on, and where its events go.

Found by context variable, never by a global.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from outrider.agent.lending import OwnPolicy, PolicyLender
from outrider.agent.limits import TurnLimits
from outrider.agent.recorder import EventSink
from outrider.agent.spending import Spending
from outrider.core.chat import Message
from outrider.core.clock import Clock, utc
from outrider.core.errors import AgentError, OutriderError, WorkerError, boundary
from outrider.core.event import Event, EventKind
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, AttemptedRollout
from outrider.core.task import Task
from outrider.env import Environment
from outrider.policy import ChatPolicy

ResourcesFinder = Callable[[int], Awaitable[Mapping[str, Any]]]
"""Brings one version of the resources from the store."""

_current: ContextVar["Context"] = ContextVar("outrider_context")


class Context:
    """Given to an agent beside its task; `outrider.current()` finds it from anywhere below, threads included."""

    def __init__(
        self,
        rollout: AttemptedRollout,
        recorder: EventSink,
        clock: Clock,
        *,
        limits: TurnLimits | None = None,
        lender: PolicyLender | None = None,
        find_resources: ResourcesFinder | None = None,
    ) -> None:
        self.rollout = rollout
        self.clock = clock
        self.limits = limits or TurnLimits()
        self.lender = lender or OwnPolicy()
        self.spending = Spending()
        self._find_resources = find_resources
        self._recorder = recorder
        self._stopped = False
        self._callers: set[asyncio.Task[Any]] = set()
        self._policy: ChatPolicy | None = None
        self._policies: Mapping[str, ChatPolicy] = {}
        self._env: Environment | None = None
        self._opening: tuple[Message, ...] = ()

    @property
    def rollout_id(self) -> str:
        return self.rollout.rollout_id

    @property
    def attempt_id(self) -> str:
        return self.rollout.attempt.attempt_id

    @property
    def identity(self) -> str:
        """What this rollout is in its run, the same whenever that run is made again: seeds and recordings go by it.

        Task and sample, where the rollout's metadata names them; otherwise the rollout's id.
        """
        metadata = self.rollout.metadata
        if TASK_KEY in metadata and SAMPLE_KEY in metadata:
            return f"{metadata[TASK_KEY]}:{metadata[SAMPLE_KEY]}"
        return self.rollout_id

    @property
    def seed(self) -> int | None:
        return self.rollout.seed

    @cached_property
    def task(self) -> Task:
        """The rollout's input as a task."""
        return Task.of(self.rollout.input, task_id=self.rollout_id)

    async def resources(self) -> Mapping[str, Any]:
        """What was published in the store when this attempt was claimed, or the version its rollout is pinned to.

        A plain agent, which has a thread of its own, gets it by `asyncio.run(ctx.resources())`.
        """
        version = self.rollout.attempt.resources_version
        if version is None or self._find_resources is None:
            return {}
        with boundary(WorkerError, "resources"):
            return await self._find_resources(version)

    @property
    def policy(self) -> ChatPolicy:
        """The model. Each call is recorded as a turn; what it leaves open is filled in: session, sampling, seed."""
        if self._policy is None:
            raise AgentError(_MISSING.format("policy"), stage="agent")
        return self._policy

    def policy_named(self, name: str) -> ChatPolicy:
        """One of the run's further policies; the empty name is `policy`."""
        if not name:
            return self.policy
        if name not in self._policies:
            there = ", ".join(sorted(self._policies)) or "none"
            raise AgentError(f"this run has no policy {name!r}; beside its own there are: {there}", stage="agent")
        return self._policies[name]

    @property
    def env(self) -> Environment:
        """The world of this episode, already reset. Each step is recorded; the worker scores and closes it."""
        if self._env is None:
            raise AgentError(_MISSING.format("environment"), stage="agent")
        return self._env

    @property
    def opening(self) -> tuple[Message, ...]:
        """What the environment said when it was reset: the messages a conversation begins with."""
        if self._env is None:
            raise AgentError(_MISSING.format("environment"), stage="agent")
        return self._opening

    @property
    def has_env(self) -> bool:
        return self._env is not None

    def equip(
        self,
        policy: ChatPolicy,
        env: Environment | None,
        opening: tuple[Message, ...],
        *,
        policies: Mapping[str, ChatPolicy] | None = None,
    ) -> None:
        """Give the agent what its episode has prepared."""
        self._policy, self._env, self._opening = policy, env, opening
        self._policies = policies or {}

    @property
    def stopped(self) -> bool:
        """Whether the attempt was cancelled or lost its lease. An `async` agent is cancelled; a plain one can look."""
        return self._stopped

    def stop(self) -> None:
        """The attempt has ended: cut off the model calls that it has left behind, and allow no more."""
        self._stopped = True
        for caller in self._callers:
            if caller is not asyncio.current_task():
                caller.cancel()

    def begin_call(self) -> "asyncio.Task[Any]":
        """A model call is about to be made: its caller, for `end_call`."""
        if self.stopped:
            raise AgentError("the attempt has ended; no model call is made for it any more", stage="agent")
        caller = asyncio.current_task()
        assert caller is not None
        self._callers.add(caller)
        return caller

    def end_call(self, caller: "asyncio.Task[Any]") -> None:
        self._callers.discard(caller)

    def log(self, message: str, **data: Any) -> None:
        """Record a line of text, with facts beside it."""
        self.record(EventKind.LOG, message, data)

    def reward(self, value: float, name: str = "") -> None:
        """Record a reward along the way. The rollout's own reward is the one the agent returns."""
        self.record(EventKind.REWARD, name, {"reward": value})

    def record(self, kind: EventKind, name: str, data: Mapping[str, Any]) -> None:
        """Record one thing that happened. It reaches the store within about a second, or with the attempt's end."""
        self._recorder.add(Event(kind=kind, at=utc(self.clock.time()), name=_storable(name), data=data))

    def enter(self) -> None:
        """Make this the context of the running task and of what it starts."""
        _current.set(self)


_MISSING = (
    "this worker has no {}; run the agent with `outrider run`, or give the Runner "
    "episodes=EpisodeKit(policy=…, environments=…, agent=…).episodes instead of the agent alone"
)


def _storable(text: str) -> str:
    """Text that every store keeps: half characters and NULs, as models and programs print them, become marks."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def context_of(task: "asyncio.Task[Any]") -> Context | None:
    """The context of the attempt that a task works for, if it does and Python can tell (3.12 and later)."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(_current)
    return None


def current() -> Context:
    """The context of the attempt that runs here; an error outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise OutriderError("outrider.current() was called outside of an attempt") from None

"""The world that all schedulers run in: slots' trajectories, the engine, the gate of the weight sync, the trainer.

It also keeps what a run is judged by, from what happened in it and not from what a scheduler says of itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduling.engine import Engine, Request
from scheduling.workload import ENGINE_SPEED, SYNC_SECONDS, Fault, Workload, bound


class Trajectory:
    """One try of a group's member, from its reset to its last step.

    `on_ready` is called when its environment is reset, if it may not begin by itself; then call `begin`. `on_end` is
    called when it has ended, with its fault if it failed; one that hangs ends after `step_limit` seconds, if at all.
    """

    __slots__ = (
        "_request",
        "_timer",
        "attempt",
        "group",
        "is_over",
        "member",
        "on_end",
        "on_ready",
        "on_reply",
        "on_step",
        "plan",
        "step_limit",
        "turn",
        "versions",
        "work_done",
        "world",
    )

    def __init__(
        self,
        world: "World",
        key: tuple[int, int, int],
        on_end: "Callable[[Trajectory, Fault | None], None]",
        on_ready: "Callable[[Trajectory], None] | None" = None,
    ) -> None:
        self.world = world
        self.group, self.member, self.attempt = key
        self.plan = world.workload.plan(*key)
        self.on_end, self.on_ready = on_end, on_ready
        self.on_reply: Callable[[Trajectory], None] | None = None
        self.on_step: Callable[[Trajectory], None] | None = None
        self.step_limit: float | None = None
        self.versions: list[int] = []
        self.turn = 0
        self.work_done = 0.0
        self.is_over = False
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return self.group, self.member, self.attempt

    @property
    def tokens(self) -> list[tuple[int, float]]:
        """The version and the number of tokens, in seconds of work, of each turn."""
        return [(version, work) for version, (work, _) in zip(self.versions, self.plan.turns, strict=False)]

    def start(self) -> None:
        world = self.world
        world.started(self)
        seconds = self.plan.reset * world.workload.reset_factor(world.version)
        self._timer = world.loop.call_later(seconds, self._ready)

    def begin(self) -> None:
        self.world.when_open(self._turn)

    def stop(self) -> None:
        """Cut it off wherever it is; once more changes nothing."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None:
            self.work_done += self.world.engine.cancel(self._request)
            self._request = None

    def restart_turn(self) -> None:
        """Give up the model call that is under way, if one is, and make it again once the gate is open."""
        if self._request is not None:
            self.world.wasted(self.world.engine.cancel(self._request))
            self._request = None
            self.versions.pop()
            self.world.when_open(self._turn)

    def _ready(self) -> None:
        if self.on_ready is None:
            self.begin()
        else:
            self.on_ready(self)

    def _turn(self) -> None:
        if self.is_over:
            return
        world = self.world
        self.versions.append(world.version)
        if world.log is not None:
            world.note("turn", *self.key, self.turn, world.version)
        self._request = world.engine.submit(self.plan.turns[self.turn][0], self._replied)

    def _replied(self) -> None:
        self._request = None
        work, seconds = self.plan.turns[self.turn]
        self.work_done += work
        if self.on_reply is not None:
            self.on_reply(self)
        if self.plan.fault is not Fault.HANG or self.turn != self.plan.fault_turn:
            self._timer = self.world.loop.call_later(seconds, self._stepped)
        elif self.step_limit is not None:
            self._timer = self.world.loop.call_later(self.step_limit, self._end, Fault.HANG)

    def _stepped(self) -> None:
        failed = self.plan.fault is Fault.EXCEPTION and self.turn == self.plan.fault_turn
        self.turn += 1
        if self.on_step is not None:
            self.on_step(self)
        if failed or self.turn == len(self.plan.turns):
            self._end(Fault.EXCEPTION if failed else None)
        else:
            self.world.when_open(self._turn)

    def _end(self, fault: Fault | None) -> None:
        self.is_over = True
        self.on_end(self, fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A batch as the trainer got it."""

    asked_at: float
    at: float
    version: int
    trajectories: Sequence[Trajectory]


@dataclass(slots=True)
class Record:
    """What happened in a run, with the times it happened at."""

    deliveries: list[Delivery] = field(default_factory=list)
    offered: list[tuple[float, int]] = field(default_factory=list)
    """When each member was first started, and how many turns it has; without those that the filter drops."""
    waste: list[tuple[float, float]] = field(default_factory=list)
    """Model work that is not trained on: when that was certain, and how much. Without what the filter drops."""
    filtered: list[tuple[float, float]] = field(default_factory=list)
    """The same of groups that the filter drops, which is no scheduler's fault."""


class Scheduler(Protocol):
    """What the trainer asks, and what it tells."""

    async def get_batch(self) -> Sequence[Trajectory]: ...

    def gate_closed(self) -> None: ...

    async def publish(self) -> None:
        """The world's `version` must be the new one when this returns."""


class World:
    """Time, the engine and its gate, and the version of the policy that calls begin with."""

    def __init__(self, workload: Workload, *, speed: float = ENGINE_SPEED, keeps_log: bool = False) -> None:
        self.workload = workload
        self.loop = asyncio.get_running_loop()
        self.engine = Engine(speed)
        self.version = 0
        self.record = Record()
        self.log: list[tuple[object, ...]] | None = [] if keeps_log else None
        self._is_open = True
        self._behind_gate: list[Callable[[], None]] = []

    @property
    def now(self) -> float:
        return self.loop.time()

    def note(self, *what: object) -> None:
        if self.log is not None:
            self.log.append((self.now, *what))

    def started(self, trajectory: Trajectory) -> None:
        self.note("start", *trajectory.key)
        if trajectory.attempt == 0 and not self.workload.is_filtered(trajectory.group):
            self.record.offered.append((self.now, len(trajectory.plan.turns)))

    def wasted(self, work: float) -> None:
        self.record.waste.append((self.now, work))

    def filtered(self, work: float) -> None:
        self.record.filtered.append((self.now, work))

    def when_open(self, call: Callable[[], None]) -> None:
        """Make a model call now, or when the sync of the weights is over."""
        if self._is_open:
            call()
        else:
            self._behind_gate.append(call)

    def close_gate(self) -> None:
        self._is_open = False

    def open_gate(self) -> None:
        self._is_open = True
        waiting, self._behind_gate = self._behind_gate, []
        for call in waiting:
            call()

    async def train(
        self,
        scheduler: Scheduler,
        n_steps: int,
        *,
        train_seconds: float | None = None,
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        """The trainer: a batch, its training, the sync of the weights with no model call starting, and again."""
        seconds = bound(self.workload).train_seconds if train_seconds is None else train_seconds
        for step in range(n_steps):
            asked_at = self.now
            trajectories = await scheduler.get_batch()
            delivery = Delivery(asked_at=asked_at, at=self.now, version=self.version, trajectories=trajectories)
            self.record.deliveries.append(delivery)
            self.note("batch", step, *sorted(trajectory.key for trajectory in trajectories))
            await asyncio.sleep(seconds)
            self.close_gate()
            scheduler.gate_closed()
            await asyncio.sleep(sync_seconds)
            await scheduler.publish()
            self.note("version", self.version)
            self.open_gate()

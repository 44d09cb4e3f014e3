"""A modelled worker: speaks to the store as `outrider.runner.Runner` does, with environments that only take time.

It claims for its free slots in one call, waits for leave to begin in the Runner's own gate, knows of new versions from
the Runner's own watch, renews all leases in one call, tells of progress once a second, and ends each attempt with one
write that takes its last events and its account along.
"""

import asyncio
from collections import Counter
from typing import Any

from outrider.core.account import Account
from outrider.core.attempt import Failure
from outrider.core.clock import Clock, utc
from outrider.core.errors import Boundary, LeaseLost
from outrider.core.event import Event, EventKind
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, AttemptedRollout
from outrider.core.status import AttemptStatus
from outrider.core.turn import RESET
from outrider.runner.gate import Gate
from outrider.runner.publications import Publications
from outrider.store import Store
from scheduling.workload import TOKENS_PER_SECOND, Fault
from scheduling.world import Trajectory, World

POLL_SECONDS = 5.0
HEARTBEAT_SECONDS = 10.0
PROGRESS_SECONDS = 1.0
REPLY = {"role": "assistant", "content": ""}


class Attempt:
    """One attempt under way: its trajectory, and what is not yet told of it."""

    def __init__(self, claimed: AttemptedRollout, world: World, key: tuple[int, int, int], clock: Clock) -> None:
        self.claimed = claimed
        self.ids = claimed.rollout_id, claimed.attempt.attempt_id
        self.trajectory = Trajectory(world, key, on_end=self._end)
        self.told_running = False
        self.held_seconds = 0.0
        self.ready: asyncio.Future[None] = world.loop.create_future()
        self.ended: asyncio.Future[Fault | None] = world.loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self._clock = clock
        self._pending: list[Event] = []
        self._n_told = 0
        self._n_tokens = 0

    def _end(self, _: Trajectory, fault: Fault | None) -> None:
        if not self.ended.cancelled():  # else the pool ends, and its tasks with it
            self.ended.set_result(fault)

    def take_events(self) -> dict[str, Any]:
        """What is not told yet, as arguments of the store's methods."""
        events, self._pending = self._pending, []
        first_index, self._n_told = self._n_told, self._n_told + len(events)
        return {"events": events, "first_index": first_index}

    def note(self, kind: EventKind, name: str, data: dict[str, Any]) -> None:
        self._pending.append(Event(kind=kind, at=utc(self._clock.time()), name=name, data=data))

    def note_turn(self) -> None:
        trajectory = self.trajectory
        n_tokens = max(round(trajectory.plan.turns[trajectory.turn][0] * TOKENS_PER_SECOND), 1)
        self._n_tokens += n_tokens
        version = trajectory.versions[-1]
        data = {"kept": 0, "reply": REPLY, "completion_tokens": n_tokens, "policy_version": version}
        self.note(EventKind.TURN, "", data)

    def account(self) -> Account:
        versions = self.trajectory.versions
        return Account(
            n_turns=len(versions),
            n_steps=self.trajectory.turn,
            completion_tokens=self._n_tokens,
            n_bytes=100 * self._n_told,
            first_version=versions[0] if versions else None,
            last_version=versions[-1] if versions else None,
            reset_seconds=self.trajectory.plan.reset,
            held_seconds=self.held_seconds,
        )


class Pool:
    """One worker with many slots. `succeeded` holds the trajectories that ended well, by rollout."""

    def __init__(
        self, world: World, store: Store, clock: Clock, *, n_slots: int, step_limit: float, worker_id: str = "pool"
    ) -> None:
        self.succeeded: dict[str, Trajectory] = {}
        self.publications = Publications(store, clock)
        self.n_turns = 0
        self.n_live_most = 0
        self._world = world
        self._store = store
        self._clock = clock
        self._gate = Gate(store, clock)
        self._n_slots = self._n_free = n_slots
        self._step_limit = step_limit
        self._worker_id = worker_id
        self._running: dict[str, Attempt] = {}
        self._news: dict[str, Attempt] = {}
        self._beginning: list[Trajectory] = []
        self._slot_free = asyncio.Event()
        self._slot_free.set()
        self._tries: Counter[tuple[str | None, int]] = Counter()

    async def run(self) -> None:
        self.publications.need()
        async with asyncio.TaskGroup() as group:
            for duty in (self._gate.run, self.publications.run, self._claim, self._keep_leases, self._tell_progress):
                group.create_task(duty(), name=f"{self._worker_id}: {duty.__qualname__}")

    async def _claim(self) -> None:
        async with asyncio.TaskGroup() as attempts:
            while True:
                await self._slot_free.wait()
                claimed = await self._store.dequeue_many_rollouts(
                    self._n_free, worker_id=self._worker_id, wait=POLL_SECONDS
                )
                for rollout in claimed:
                    attempt = self._attempt(rollout)
                    self._running[rollout.attempt.attempt_id] = attempt
                    attempt.task = attempts.create_task(self._run(attempt), name=f"attempt of {rollout.rollout_id}")
                self._n_free -= len(claimed)
                self.n_live_most = max(self.n_live_most, self._n_slots - self._n_free)
                if not self._n_free:
                    self._slot_free.clear()

    def _attempt(self, claimed: AttemptedRollout) -> Attempt:
        """The member's next attempt: a refill and a hedge have the lengths of the first, and faults of their own."""
        seat = claimed.metadata[SAMPLE_KEY]
        number = self._tries[claimed.group_id, seat]
        self._tries[claimed.group_id, seat] += 1
        key = self._group_number(claimed), seat, number
        attempt = Attempt(claimed, self._world, key, self._clock)
        attempt.trajectory.on_ready = lambda _: self._ready(attempt)
        attempt.trajectory.on_reply = lambda _: self._replied(attempt)
        attempt.trajectory.on_step = lambda _: self._stepped(attempt)
        attempt.trajectory.step_limit = self._step_limit
        return attempt

    def _group_number(self, claimed: AttemptedRollout) -> int:
        """The k-th group of a tag is the same in every scheduler."""
        tags = self._world.workload.tags
        tag, _, k = claimed.metadata[TASK_KEY].rpartition("-")
        return int(k) * len(tags) + tags.index(tag)

    def _ready(self, attempt: Attempt) -> None:
        attempt.note(EventKind.STEP, RESET, {})
        self._news[attempt.ids[1]] = attempt
        attempt.ready.set_result(None)

    def _replied(self, attempt: Attempt) -> None:
        self.n_turns += 1
        attempt.note_turn()
        self._news[attempt.ids[1]] = attempt

    def _stepped(self, attempt: Attempt) -> None:
        attempt.note(EventKind.STEP, "", {})
        self._news[attempt.ids[1]] = attempt

    async def _run(self, attempt: Attempt) -> None:
        """One attempt to its end, whatever that is."""
        try:
            await self._finish(attempt, await self._result(attempt))
        except (asyncio.CancelledError, LeaseLost):
            attempt.trajectory.stop()
            if attempt.ids[1] in self._running:
                raise  # the pool ends
            self._world.wasted(attempt.trajectory.work_done)
            await self._store.leave_account(*attempt.ids, attempt.account())
        finally:
            self._forget(attempt)
            self._n_free += 1
            self._slot_free.set()

    async def _result(self, attempt: Attempt) -> Fault | None:
        attempt.trajectory.start()
        await attempt.ready
        asked_at = self._clock.time()
        version = await self._gate.enter(*attempt.ids)
        await self.publications.reached(version)
        attempt.held_seconds = self._clock.time() - asked_at
        if not self._beginning:
            self._world.loop.call_soon(self._begin)
        self._beginning.append(attempt.trajectory)
        return await attempt.ended

    def _begin(self) -> None:
        """Those who got leave together begin in the order of their groups: a store may tell of them in any order."""
        beginning, self._beginning = self._beginning, []
        for trajectory in sorted(beginning, key=lambda one: one.key):
            if not trajectory.is_over:
                trajectory.begin()

    async def _finish(self, attempt: Attempt, fault: Fault | None) -> None:
        trajectory = attempt.trajectory
        self._forget(attempt)
        self._world.note("end", *trajectory.key, fault)
        end: dict[str, Any]
        if fault is None:
            reward = self._world.workload.reward(trajectory.group, trajectory.member)
            end = {"status": AttemptStatus.SUCCEEDED, "reward": reward}
            self.succeeded[attempt.claimed.rollout_id] = trajectory
        else:
            boundary = Boundary.LIMIT if fault is Fault.HANG else Boundary.ENV
            failure = Failure(boundary=boundary, kind="RuntimeError", message=fault, stage="env.step")
            end = {"status": AttemptStatus.FAILED, "error": failure}
            self._world.wasted(trajectory.work_done)
        await self._store.update_attempt(*attempt.ids, **end, **attempt.take_events(), account=attempt.account())

    def _forget(self, attempt: Attempt) -> None:
        self._running.pop(attempt.ids[1], None)
        self._news.pop(attempt.ids[1], None)

    async def _keep_leases(self) -> None:
        while True:
            lost = await self._store.heartbeat(self._worker_id, self._running.keys(), wait=HEARTBEAT_SECONDS)
            names = {lease.attempt_id for lease in lost}
            for attempt in [one for name, one in self._running.items() if name in names]:
                self._lose(attempt)

    def _lose(self, attempt: Attempt) -> None:
        self._world.note("lost", *attempt.trajectory.key)
        self._forget(attempt)
        attempt.trajectory.stop()
        assert attempt.task is not None
        attempt.task.cancel()

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            news, self._news = self._news, {}
            for name, attempt in news.items():
                if name not in self._running:
                    continue
                try:
                    if not attempt.told_running and attempt.trajectory.versions:
                        attempt.told_running = True
                        await self._store.update_attempt(*attempt.ids, status=AttemptStatus.RUNNING)
                    await self._store.append_events(*attempt.ids, **attempt.take_events())
                except LeaseLost:
                    self._lose(attempt)

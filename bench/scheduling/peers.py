"""Other schedulers' rules, modelled in the same world: each at its own rule, none with its own overhead.

An exception in an environment is retried at once in its slot, with the same seed, also where the modelled program
would end its run at the first one. A hang is left as it is, unless a model has a deadline.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from scheduling.workload import BATCH, BATCH_GROUPS, GROUP_SIZE, SLOTS, Fault
from scheduling.world import Trajectory, World

DEADLINE_SECONDS = 300.0


class Group:
    """A group under way: its members that have ended, and the least version one of them began with."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.n_started = 0
        self.done: list[Trajectory] = []
        self.live: list[Trajectory] = []

    @property
    def is_complete(self) -> bool:
        return len(self.done) == GROUP_SIZE

    @property
    def clock(self) -> int | None:
        """None as long as no member has begun."""
        return min((one.versions[0] for one in (*self.done, *self.live) if one.versions), default=None)


class Peer(ABC):
    """What the models share: groups numbered as they are opened, members tried again, batches awaited."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.n_opened = 0
        self._wanted: asyncio.Future[Sequence[Trajectory]] | None = None

    def gate_closed(self) -> None:  # noqa: B027 there is nothing to do
        """Calls under way are kept."""

    async def publish(self) -> None:
        self.world.version += 1

    async def get_batch(self) -> Sequence[Trajectory]:
        wanted: asyncio.Future[Sequence[Trajectory]] = self.world.loop.create_future()
        self._wanted = wanted
        self.advance()
        return await wanted

    @abstractmethod
    def advance(self) -> None:
        """Look what can be started, and deliver if a batch is wanted and there."""

    def deliver(self, groups: Sequence[Group]) -> None:
        assert self._wanted is not None
        self._wanted.set_result([one for group in groups for one in group.done])
        self._wanted = None

    def open_group(self) -> Group:
        group = Group(self.n_opened)
        self.n_opened += 1
        return group

    def start_member(self, group: Group, attempt: int = 0, member: int | None = None) -> Trajectory:
        if member is None:
            member = group.n_started
            group.n_started += 1
        trajectory = Trajectory(
            self.world, (group.number, member, attempt), lambda one, fault: self._end(group, one, fault)
        )
        group.live.append(trajectory)
        trajectory.start()
        return trajectory

    def _end(self, group: Group, trajectory: Trajectory, fault: Fault | None) -> None:
        group.live.remove(trajectory)
        if fault is not None:
            self.world.wasted(trajectory.work_done)
            self.start_member(group, trajectory.attempt + 1, trajectory.member)
            return
        group.done.append(trajectory)
        self.ended(group)
        self.advance()

    @abstractmethod
    def ended(self, group: Group) -> None:
        """A member has ended well."""

    def is_dropped(self, group: Group) -> bool:
        """Whether the filter drops a complete group; its work is lost then."""
        if not self.world.workload.is_filtered(group.number):
            return False
        self.world.filtered(sum(one.work_done for one in group.done))
        return True


class BatchBarrier(Peer):
    """A batch is started, all of it ends, it is trained on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._groups: list[Group] = []

    def advance(self) -> None:
        if self._wanted is None:
            return
        while len(self._groups) < BATCH_GROUPS:
            self._groups.append(group := self.open_group())
            for _ in range(GROUP_SIZE):
                self.start_member(group)
        if all(group.is_complete for group in self._groups):
            groups, self._groups = self._groups, []
            self.deliver(groups)

    def ended(self, group: Group) -> None:
        if group.is_complete and self.is_dropped(group):
            self._groups.remove(group)


class MemberSlots(Peer):
    """What rules share in which any free slot takes the next member of the group that was opened last."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.n_free = SLOTS
        self.newest: Group | None = None

    def fill(self) -> None:
        while self.n_free and (group := self._next_group()) is not None:
            self.n_free -= 1
            self.start_member(group)

    @abstractmethod
    def admit(self) -> Group | None:
        """A new group, if there may be one more."""

    def _next_group(self) -> Group | None:
        if self.newest is None or self.newest.n_started == GROUP_SIZE:
            self.newest = self.admit()
        return self.newest

    def ended(self, group: Group) -> None:  # noqa: ARG002 other rules look at the group
        self.n_free += 1


class MemberAdmission(MemberSlots):
    """AReaL's rule: a group begins while (eta + version + 1) batches are not all accepted or running.

    A slot is free again when its member ends. Batches take groups as they complete.
    """

    def __init__(self, world: World, eta: float) -> None:
        super().__init__(world)
        self._eta = eta
        self._n_running = self._n_accepted = 0
        self._complete: list[Group] = []

    def advance(self) -> None:
        self.fill()
        if self._wanted is not None and len(self._complete) >= BATCH_GROUPS:
            batch, self._complete = self._complete[:BATCH_GROUPS], self._complete[BATCH_GROUPS:]
            self.deliver(batch)

    def admit(self) -> Group | None:
        if (self._eta + self.world.version + 1) * BATCH - self._n_accepted - self._n_running < GROUP_SIZE:
            return None
        self._n_running += GROUP_SIZE
        return self.open_group()

    async def publish(self) -> None:
        await super().publish()
        self.advance()

    def ended(self, group: Group) -> None:
        super().ended(group)
        if group.is_complete:
            self._n_running -= GROUP_SIZE
            if not self.is_dropped(group):
                self._n_accepted += GROUP_SIZE
                self._complete.append(group)


class GroupAdmission(MemberAdmission):
    """The same where a group is one task, which holds the slots of all its members until the last one ends."""

    def ended(self, group: Group) -> None:
        super().ended(group)
        self.n_free += GROUP_SIZE - 1 if group.is_complete else -1


class DropStale(MemberSlots):
    """prime-rl's rule: all slots are kept busy, and groups that a new version makes too old are dropped.

    The age of a group is that of the version it was opened with. Its members under way are cancelled, those that have
    ended are thrown away. Nothing is started while a batch more is complete than the trainer has taken.
    """

    def __init__(self, world: World, max_staleness: int) -> None:
        super().__init__(world)
        self._bound = max_staleness
        self._open: dict[Group, int] = {}
        self._complete: list[Group] = []

    def advance(self) -> None:
        if len(self._complete) < BATCH_GROUPS:
            self.fill()
        if self._wanted is not None and len(self._complete) >= BATCH_GROUPS:
            batch, self._complete = self._complete[:BATCH_GROUPS], self._complete[BATCH_GROUPS:]
            for group in batch:
                del self._open[group]
            self.deliver(batch)
            self.advance()

    def admit(self) -> Group | None:
        group = self.open_group()
        self._open[group] = self.world.version
        return group

    async def publish(self) -> None:
        await super().publish()
        oldest = self.world.version - self._bound
        for group in [group for group, version in self._open.items() if version < oldest]:
            self._drop(group)
        self.advance()

    def _drop(self, group: Group) -> None:
        del self._open[group]
        if group is self.newest:
            self.newest = None
        if group in self._complete:
            self._complete.remove(group)
        self.n_free += len(group.live)
        for one in group.live:
            one.stop()
        self.world.wasted(sum(one.work_done for one in (*group.done, *group.live)))

    def ended(self, group: Group) -> None:
        super().ended(group)
        if group.is_complete:
            if self.is_dropped(group):
                del self._open[group]
            else:
                self._complete.append(group)


class PlainRule(MemberSlots):
    """Any free slot takes the next member of the oldest group; (1 + eta) batches of groups are open and undelivered.

    The trainer waits for a batch of complete groups and for those that have reached the bound, takes the oldest first,
    and drops nothing. Where environments may hang, a member that takes too long is tried again.
    """

    def __init__(self, world: World, eta: float, max_staleness: int | None) -> None:
        super().__init__(world)
        self._max_open = int((1 + eta) * BATCH_GROUPS)
        self._bound = max_staleness
        self._open: list[Group] = []

    def advance(self) -> None:
        self.fill()
        if self._wanted is not None:
            complete = [group for group in self._open if group.is_complete]
            if len(complete) >= BATCH_GROUPS and not self._waits():
                batch = sorted(complete, key=lambda group: (group.clock, group.number))[:BATCH_GROUPS]
                self._open = [group for group in self._open if group not in batch]
                self.deliver(batch)
                self.advance()

    def start_member(self, group: Group, attempt: int = 0, member: int | None = None) -> Trajectory:
        trajectory = super().start_member(group, attempt, member)
        if self.world.workload.hang:
            self.world.loop.call_later(DEADLINE_SECONDS, self._expire, group, trajectory)
        return trajectory

    def _expire(self, group: Group, trajectory: Trajectory) -> None:
        if not trajectory.is_over:
            trajectory.stop()
            self._end(group, trajectory, Fault.HANG)

    def admit(self) -> Group | None:
        if len(self._open) >= self._max_open:
            return None
        self._open.append(group := self.open_group())
        return group

    def _waits(self) -> bool:
        """Whether a group that must go now is not complete."""
        if self._bound is None:
            return False
        oldest = self.world.version - self._bound
        return any(not group.is_complete and group.clock is not None and group.clock <= oldest for group in self._open)

    def ended(self, group: Group) -> None:
        super().ended(group)
        if group.is_complete and self.is_dropped(group):
            self._open.remove(group)


class LockStep(Peer):
    """All environments step together: a turn of all, then a step of all, until the last one is done."""

    def advance(self) -> None:
        """All is done in `get_batch`."""

    def ended(self, group: Group) -> None:
        """Members end together."""

    async def get_batch(self) -> Sequence[Trajectory]:
        batch: list[Trajectory] = []
        while len(batch) < BATCH:
            groups = [self.open_group() for _ in range(BATCH_GROUPS - len(batch) // GROUP_SIZE)]
            for group in groups:
                group.done = [self._new((group.number, member, 0)) for member in range(GROUP_SIZE)]
            while any(one.turn < len(one.plan.turns) for group in groups for one in group.done):
                await self._round(groups)
            batch += [one for group in groups if not self.is_dropped(group) for one in group.done]
        return batch

    def _new(self, key: tuple[int, int, int]) -> Trajectory:
        trajectory = Trajectory(self.world, key, lambda _one, _fault: None)
        self.world.started(trajectory)
        return trajectory

    async def _round(self, groups: Sequence[Group]) -> None:
        world = self.world
        active = [one for group in groups for one in group.done if one.turn < len(one.plan.turns)]
        resets = [one.plan.reset * world.workload.reset_factor(world.version) for one in active if one.turn == 0]
        await asyncio.sleep(max(resets, default=0.0))
        replies = []
        for one in active:
            replies.append(reply := world.loop.create_future())
            one.versions.append(world.version)
            world.engine.submit(one.plan.turns[one.turn][0], lambda reply=reply: reply.set_result(None))
        await asyncio.gather(*replies)
        if any(one.plan.fault is Fault.HANG and one.plan.fault_turn == one.turn for one in active):
            await world.loop.create_future()
        await asyncio.sleep(max(one.plan.turns[one.turn][1] for one in active))
        for group in groups:
            group.done = [self._stepped(one) if one in active else one for one in group.done]

    def _stepped(self, one: Trajectory) -> Trajectory:
        one.work_done += one.plan.turns[one.turn][0]
        one.turn += 1
        if one.plan.fault is Fault.EXCEPTION and one.turn == one.plan.fault_turn + 1:
            self.world.wasted(one.work_done)
            return self._new((one.group, one.member, one.attempt + 1))
        return one

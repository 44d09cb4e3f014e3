"""ROLL's queue of groups, modelled: `GroupQueue` and `GroupQueueManager.get_batch` of its rollout scheduler.

Each group of environments has a queue of its own. An environment takes a place in the first episode of its queue that
has one; `get_batch` takes the head of every queue in rounds, and begins no new round before the last one is used up.
Each step opens one more episode a queue, the first step `ratio` more; those older than `ratio` steps are thrown away.
Whoever waits for the head of a queue looks at it again only when an episode of that queue is complete and kept: not
when the head is dropped by the filter or thrown away, even if the next one has been complete for long.
Calls under way are aborted for the sync of the weights and made again. What is late or surplus runs on to its end.
With a filter, ROLL's own queue was slower than this model, for a reason that is not known.
"""

import asyncio
from collections.abc import Sequence

from scheduling.workload import BATCH, GROUP_SIZE, Fault
from scheduling.world import Trajectory, World


class Episode:
    """One group of one queue."""

    def __init__(self, number: int, create_step: int) -> None:
        self.number = number
        self.create_step = create_step
        self.n_running = 0
        self.done: list[Trajectory] = []


class GroupQueue:
    """The episodes of one group of environments, oldest first, and the environments that have none to do."""

    def __init__(self, world: World, place: int, n_queues: int, *, n_envs: int, ratio: int) -> None:
        self._world = world
        self._place, self._n_queues = place, n_queues
        self._n_envs = n_envs
        self._ratio = ratio
        self._step: int | None = None
        self._n_created = 0
        self._episodes: list[Episode] = []
        self._n_idle = n_envs
        self._head: asyncio.Future[Episode] | None = None
        self.live: list[Trajectory] = []

    def advance_step(self, step: int) -> None:
        if self._step is None:
            for _ in range(self._ratio):
                self._create(step)
        for episode in [one for one in self._episodes if step - one.create_step > self._ratio]:
            self._episodes.remove(episode)
            self._waste(episode.done)
        self._step = step
        self._create(step)
        while self._n_idle and self._take():
            self._n_idle -= 1

    async def get(self) -> Episode:
        """The head of the queue, once it is complete."""
        head: asyncio.Future[Episode] = self._world.loop.create_future()
        self._head = head
        self._give_head()
        return await head

    def _create(self, step: int) -> None:
        self._episodes.append(Episode(self._n_created * self._n_queues + self._place, step))
        self._n_created += 1

    def _give_head(self) -> None:
        if self._head is None or not self._episodes or len(self._episodes[0].done) < GROUP_SIZE:
            return
        self._head.set_result(self._episodes.pop(0))
        self._head = None

    def _take(self) -> bool:
        """Whether an environment has found a place in an episode."""
        for episode in self._episodes:
            if episode.n_running < self._n_envs:
                self._start(episode, episode.n_running, 0)
                episode.n_running += 1
                return True
        return False

    def _start(self, episode: Episode, member: int, attempt: int) -> None:
        key = episode.number, member, attempt
        trajectory = Trajectory(self._world, key, lambda one, fault: self._end(episode, one, fault))
        self.live.append(trajectory)
        trajectory.start()

    def _end(self, episode: Episode, trajectory: Trajectory, fault: Fault | None) -> None:
        self.live.remove(trajectory)
        if fault is not None:
            self._world.wasted(trajectory.work_done)
            self._start(episode, trajectory.member, trajectory.attempt + 1)
            return
        self._put(episode, trajectory)
        if not self._take():
            self._n_idle += 1

    def _put(self, episode: Episode, trajectory: Trajectory) -> None:
        if episode not in self._episodes or len(episode.done) >= GROUP_SIZE:
            self._waste([trajectory])
            return
        episode.done.append(trajectory)
        if len(episode.done) < GROUP_SIZE:
            return
        if self._world.workload.is_filtered(episode.number):
            # Nobody is woken: neither environments that are idle, for the new episode, nor who waits for the head.
            self._world.filtered(sum(one.work_done for one in episode.done))
            self._episodes.remove(episode)
            assert self._step is not None
            self._create(self._step)
        else:
            self._give_head()

    def _waste(self, trajectories: Sequence[Trajectory]) -> None:
        self._world.wasted(sum(one.work_done for one in trajectories))


class RollQueues:
    """All queues, and the trainer's side of them."""

    def __init__(self, world: World, *, n_queues: int = 32, redundancy: int = 0, ratio: int = 1) -> None:
        self._world = world
        self._ratio = ratio
        n_envs = GROUP_SIZE + redundancy
        self._queues = [GroupQueue(world, place, n_queues, n_envs=n_envs, ratio=ratio) for place in range(n_queues)]
        self._pending: list[asyncio.Task[Episode]] = []

    def gate_closed(self) -> None:
        for queue in self._queues:
            for trajectory in queue.live:
                trajectory.restart_turn()

    async def publish(self) -> None:
        self._world.version += 1

    async def get_batch(self) -> Sequence[Trajectory]:
        step = self._world.version
        for queue in self._queues:
            queue.advance_step(step)
        batch: list[Trajectory] = []
        while len(batch) < BATCH:
            if not self._pending:
                self._pending = [asyncio.create_task(queue.get()) for queue in self._queues]
            await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [one for one in self._pending if one.done()]:
                if len(batch) == BATCH:
                    break
                self._pending.remove(task)
                episode = task.result()
                if step - episode.create_step > self._ratio:
                    self._world.wasted(sum(one.work_done for one in episode.done))
                else:
                    batch += episode.done
        return batch

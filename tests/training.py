"""A small training run for tests: real workers and a real scheduler around a model that is watched.

In memory it runs on virtual time, so that hours of it pass at once and in the same order each time; on SQLite it runs
on real time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from guessing import Games
from outrider import Store, local_workers, open_store
from outrider.agent import ChatAgent, EpisodeKit
from outrider.core.chat import Message
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.event import EventKind
from outrider.core.turn import turn_of
from outrider.env import Environment, Environments
from outrider.env.registry import environments_of
from outrider.policy import ChatPolicy, Completion, Sampling
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions
from outrider.policy.scripted.scripts import bundled_scripts
from outrider.testing import LoopClock, run_virtual
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.delivery import RolloutBatch
from outrider.train.scheduler import RolloutScheduler

LIMIT_SECONDS = 100_000.0
"""Virtual time after which a run is taken for hung."""

LATENCY = 0.004


class Model(ChatPolicy):
    """Plays at random and watches who calls it. While it is `shut`, calls wait."""

    def __init__(self, clock: Clock, latency: float = LATENCY) -> None:
        self._inner = ScriptedPolicy(
            bundled_scripts(), name="builtin:random", options=ScriptOptions(p=1.0, latency=latency), clock=clock
        )
        self.n_begun = 0
        self.n_tokens = 0
        self.n_cancelled = 0
        self.sessions: Counter[str] = Counter()
        self.samplings: list[Sampling | None] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.before: Callable[[str], Awaitable[None]] | None = None

    async def complete(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, session: str = "", **kwargs: Any
    ) -> Completion:
        self.n_begun += 1
        self.sessions[session] += 1
        self.samplings.append(sampling)
        try:
            await self.is_open.wait()
            if self.before is not None:
                await self.before(session)
            completion = await self._inner.complete(messages, sampling=sampling, session=session, **kwargs)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        self.n_tokens += completion.usage.completion_tokens
        return completion

    async def check(self, sampling: Sampling | None = None) -> None: ...

    async def close(self) -> None: ...


class TrackedGames(Games):
    """FrozenLake, or another environment that the registry knows; counts those that are open."""

    def __init__(self, name: str = "FrozenLake", config: Mapping[str, Any] | None = None) -> None:
        self._environments = environments_of(name, config or {})
        super().__init__(self._environments.make)
        self.n_closed = 0

    def make(self, task: Any) -> Environment:
        made = super().make(task)
        close = made.close

        async def counted() -> None:
            self.n_closed += 1
            await close()

        made.close = counted  # type: ignore[method-assign]
        return made

    @property
    def n_open(self) -> int:
        return len(self.made) - self.n_closed


@dataclass(kw_only=True)
class Lab:
    """A store, its clock, a model and games; `training` puts a scheduler and workers on them."""

    store: Store
    clock: Clock
    model: Model
    games: dict[str, Environments] = field(default_factory=lambda: {"FrozenLake": TrackedGames()})

    async def sleep(self, seconds: float) -> None:
        await sleep(self.clock, seconds)

    async def until(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait until it holds, on the lab's own time."""
        deadline = self.clock.monotonic() + seconds
        while not holds():
            assert self.clock.monotonic() < deadline, "it did not come about"
            await self.sleep(0.005)

    def kit(self) -> EpisodeKit:
        return EpisodeKit(policy=self.model, environments=self.games, agent=ChatAgent())

    def scheduler(self, config: SchedulerConfig, **settings: Any) -> RolloutScheduler:
        return RolloutScheduler(self.store, config, clock=self.clock, **settings)

    @asynccontextmanager
    async def workers(self, *, n_workers: int = 2, slots: int = 16, **settings: Any) -> AsyncIterator[None]:
        settings = {"grace_seconds": 0.1, **settings}
        made = self.kit()
        async with local_workers(
            self.store, made, n_workers=n_workers, max_env_num_per_worker=slots, clock=self.clock, **settings
        ):
            yield

    @asynccontextmanager
    async def training(self, config: SchedulerConfig, **settings: Any) -> AsyncIterator[RolloutScheduler]:
        async with self.scheduler(config) as scheduler, self.workers(**settings):
            yield scheduler


Play = Callable[[Lab], Awaitable[None]]


def play(url: str, main: Play, *, latency: float = LATENCY) -> None:
    """Run `main` in a fresh lab on this store: a test's body."""

    async def run() -> None:
        clock: Clock = LoopClock() if url == "memory://" else SystemClock()
        async with open_store(url, clock=clock) as store:
            await main(Lab(store=store, clock=clock, model=Model(clock, latency)))

    if url == "memory://":
        run_virtual(run(), limit_seconds=LIMIT_SECONDS)
    else:
        asyncio.run(run())


def config_of(
    *,
    n_groups: int = 4,
    group_size: int = 2,
    redundancy: int = 0,
    tags: tuple[str, ...] = ("FrozenLake",),
    batch_groups: int | None = 2,
    **settings: Any,
) -> SchedulerConfig:
    """A configuration in groups: batches of `batch_groups` of them; None leaves the size open."""
    manager = EnvManagerConfig(
        num_env_groups=n_groups, group_size=group_size, group_size_redundancy=redundancy, tags=tags
    )
    size = None if batch_groups is None else batch_groups * group_size
    return SchedulerConfig(
        train_env_manager=manager, rollout_batch_size=size, **{"batch_seconds": 30.0, "hedge_seconds": None, **settings}
    )


def members_of(batch: RolloutBatch) -> dict[str, tuple[str, ...]]:
    """The rollouts of each of its groups."""
    return {group.group_id: tuple(one.rollout_id for one in group.trajectories) for group in batch.batch.groups}


def numbers_of(batch: RolloutBatch) -> list[int]:
    """The numbers of its groups."""
    return [int(group_id.rpartition("-")[2]) for group_id in batch.group_ids]


async def versions_of(store: Store, rollout_id: str) -> list[int]:
    """The policy version of each turn of its last attempt."""
    return [turn_of(event).policy_version for event in await store.query_events(rollout_id, kind=EventKind.TURN)]


async def take_all(scheduler: RolloutScheduler, timeout: float) -> None:
    """Take batches until none comes in time: raises `BatchLate`."""
    while True:
        await scheduler.get_batch(timeout=timeout)

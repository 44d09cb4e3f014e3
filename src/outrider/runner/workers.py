"""Workers in this process, for as long as a block lasts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outrider.agent import EpisodeFactory, EpisodeKit
from outrider.core.clock import Clock
from outrider.core.errors import InvalidInput
from outrider.core.ids import new_id
from outrider.runner.runner import Runner, RunnerConfig, worker_id_of
from outrider.store import Store


@asynccontextmanager
async def local_workers(
    store: Store,
    episodes: EpisodeKit | EpisodeFactory,
    *,
    n_workers: int = 1,
    config: RunnerConfig | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Runner, ...]]:
    """Run workers beside the block, around what this process has at hand, such as a policy object.

    Single settings of `RunnerConfig` may be given by name. At the end of the block they claim nothing more and get
    `grace_seconds` for what they run; if the block fails, what they run goes back to the queue at once. What stops a
    worker before that ends the block and is raised.
    """
    if n_workers < 1:
        raise InvalidInput(f"n_workers is {n_workers}; give 1 or more")
    made = episodes.episodes if isinstance(episodes, EpisodeKit) else episodes
    crew = new_id("crew")
    runners = tuple(
        Runner(
            store,
            episodes=made,
            worker_id=f"{worker_id_of(index)}/{crew}",
            config=config,
            clock=clock,
            **settings,
        )
        for index in range(n_workers)
    )
    try:
        async with asyncio.TaskGroup() as group:
            for runner in runners:
                group.create_task(runner.iter(), name=f"worker {runner.worker_id}")
            yield runners
            for runner in runners:
                runner.stop()
    except BaseExceptionGroup as exc:
        raise _first(exc) from None


def _first(error: BaseException) -> BaseException:
    """The first of the errors that came together: a worker tells its own, and the rest follows from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

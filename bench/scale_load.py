"""The loads of SCALE, each in a process of its own: prints what it measured as one JSON object."""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from outrider.core.rollout import RolloutRequest
from outrider.policy.spec import PolicySpec
from outrider.runner import Runner
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec, open_episodes
from outrider.runner.meter import Meter
from outrider.store import Store, open_store

MODEL_SECONDS = 1.0
PROBE_SECONDS = 0.01
CHUNK = 10_000
SLOTS = 64
"""Rollouts at once in the load that is about their number, not about how many live at a time."""


def memory_mb() -> float:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Lag:
    """How late the event loop comes to what is due, for a probe that is due each `PROBE_SECONDS`.

    While the loop is blocked no probe can be made, but each would have been late: by less, the later it was due. All of
    them count, so that a block weighs as much as it lasts.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.count(max(time.perf_counter() - due, 0.0))

    def count(self, late: float) -> None:
        """A probe that was late by so much, and those that were due meanwhile."""
        self.seconds += [late - n * PROBE_SECONDS for n in range(1 + int(late / PROBE_SECONDS))]

    def p99(self) -> float:
        return sorted(self.seconds)[len(self.seconds) * 99 // 100]


async def enqueue(store: Store, n: int, tag: str | None) -> None:
    for start in range(0, n, CHUNK):
        requests = [RolloutRequest(input=None, tag=tag, seed=i) for i in range(start, min(start + CHUNK, n))]
        await store.enqueue_many_rollouts(requests)


async def until_ended(store: Store, runner: Runner, n: int) -> None:
    """Stop the worker when all have ended."""
    cursor, ended = 0, 0
    while ended < n:
        finished = await store.finished_after(cursor, limit=CHUNK, wait=5.0)
        cursor, ended = finished.cursor, ended + len(finished.items)
    runner.stop()


async def live(store: Store, tag: str, n: int) -> dict[str, float]:
    """`n` episodes at once, each of whose model calls takes a second."""
    await enqueue(store, n, tag)
    spec = EpisodeSpec(
        policy=PolicySpec(model=f"builtin:solver?latency={MODEL_SECONDS}"),
        environments={tag: EnvironmentSpec(name=tag)},
    )
    meter, lag = Meter(), Lag()
    async with open_episodes(spec, meter) as episodes:
        runner = Runner(store, episodes=episodes, max_env_num_per_worker=n)
        before, wall, cpu = memory_mb(), time.perf_counter(), time.process_time()
        peak = before

        async def watch_memory() -> None:
            nonlocal peak
            while True:
                await asyncio.sleep(0.2)
                peak = max(peak, memory_mb())

        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(lag.watch()), group.create_task(watch_memory())]
            group.create_task(until_ended(store, runner, n))
            await runner.iter()
            for watch in watches:
                watch.cancel()
    return {
        "kb_per_rollout": (peak - before) * 1000 / n,
        "cpu_ms_per_turn": (time.process_time() - cpu) * 1000 / meter.reading.calls,
        "loop_lag_p99_ms": 1000 * lag.p99(),
        "loop_lag_max_ms": 1000 * max(lag.seconds),
        "wall_seconds": time.perf_counter() - wall,
    }


async def through(store: Store, n: int) -> dict[str, float]:
    """`n` no-op rollouts from their enqueueing to their end, memory taken at a tenth of them and at the end."""
    seen: list[float] = []

    async def agent(_task: object, _ctx: object) -> float:
        return 1.0

    runner = Runner(store, agent, max_env_num_per_worker=SLOTS)

    async def watch_memory() -> None:
        while not seen:
            await asyncio.sleep(0.05)
            if runner.n_run >= n // 10:
                seen.append(memory_mb())

    wall, cpu = time.perf_counter(), time.process_time()
    await enqueue(store, n, None)
    async with asyncio.TaskGroup() as group:
        group.create_task(watch_memory())
        group.create_task(until_ended(store, runner, n))
        await runner.iter()
    return {
        "rollouts_per_cpu_second": n / (time.process_time() - cpu),
        "wall_seconds": time.perf_counter() - wall,
        "memory_mb": memory_mb(),
        "memory_growth": memory_mb() / seen[0],
    }


async def main(load: str, *arguments: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/runs.db") as store:
            if load == "live":
                tag, n = arguments
                figures = await live(store, tag, int(n))
            else:
                figures = await through(store, int(arguments[0]))
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""N rollouts on M desktops: each takes a machine, looks, clicks, holds it for a while, and gives it back."""

import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import log
from statistics import fmean

from outrider.pool.computer import Input, MoveTo, Press
from outrider.pool.provider import Provider
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.statistics import Quantiles
from outrider.store import open_store
from outrider.testing import LoopClock, run_virtual
from outrider.testing.fake_machines import FakeProvider, Step
from pooling.host import host_seconds
from pooling.meter import Meter
from pooling.systems import US, OurPool, System, model, our_pool

DESKTOPS = "desktops"
WIDTH, HEIGHT = 640, 480
SIGMA = 0.6
"""Of the logarithm of hold times."""

CLOUD = {"create": 48.0, "reset": 43.0, "probe": 0.1, "plant": 0.05, "has": 0.05, "destroy": 5.0, "call": 0.1}
"""Median seconds, after a log that AgentFlow had in its repository: three machines were made in 42, 41 and 61 s, and a
waiter got a machine that was free 43 s later, when somebody else's release had ended."""

CLICK: tuple[Input, ...] = (MoveTo(200, 100), Press(), Press(down=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of a pool."""

    n_rollouts: int
    n_machines: int
    n_leases: int
    median_seconds: float
    machines: str = DESKTOPS

    @property
    def case(self) -> str:
        return f"{self.n_rollouts} on {self.n_machines} {self.machines} hold={self.median_seconds:g}s"

    def holds(self, seed: int) -> list[float]:
        """How long each lease is held: the same for the same seed, whoever hands out the machines."""
        rng = random.Random(f"{seed} {self.case}")
        return [rng.lognormvariate(log(self.median_seconds), SIGMA) for _ in range(self.n_leases)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went. Times in seconds."""

    startup_seconds: float
    seconds: float
    """Of the rollouts, from the first question to the last release."""
    utilisation: float
    utilisation_by_pool: float | None
    utilisation_ceiling: float | None
    """hold / (hold + reset) of this run: more is not possible while every machine is waited for."""
    waits: Quantiles
    releases: Quantiles
    handovers: Quantiles | None
    resets: Quantiles | None
    """As the pool counts them: marker, reset, proof and probe."""
    host_busy: float
    """The share of all cores that was in use, by whomever."""


async def run_load(system: str, load: Load, seed: int) -> Outcome:
    """On real desktops of a small size."""
    provider = DesktopProvider(width=WIDTH, height=HEIGHT)
    began = time.monotonic()
    async with served(system, provider, load.n_machines) as handing_out:
        startup_seconds = time.monotonic() - began
        return await run_rollouts(handing_out, load, load.holds(seed), startup_seconds)


@asynccontextmanager
async def served(system: str, provider: Provider, n_machines: int) -> AsyncIterator[System]:
    if system != US:
        async with model(system, provider, n_machines) as made:
            yield made
        return
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/pool.db") as store, our_pool(provider, n_machines, store) as pool:
            yield pool


def run_cloud(system: str, load: Load, seed: int) -> Outcome:
    """On machines that are not there, as slow as those of AgentFlow's own log, on virtual time: no noise, no CPU."""
    return run_virtual(_run_cloud(system, load, seed), limit_seconds=1e6)


async def _run_cloud(system: str, load: Load, seed: int) -> Outcome:
    loop, rng = asyncio.get_running_loop(), random.Random(f"{seed} cloud")
    provider = FakeProvider(lambda operation: Step(seconds=CLOUD.get(operation, 0.0) * rng.lognormvariate(0.0, 0.2)))
    began = loop.time()
    if system != US:
        async with model(system, provider, load.n_machines) as made:
            return await run_rollouts(made, load, load.holds(seed), loop.time() - began)
    async with (
        open_store("memory://", clock=LoopClock()) as store,
        our_pool(provider, load.n_machines, store, LoopClock()) as pool,
    ):
        return await run_rollouts(pool, load, load.holds(seed), loop.time() - began)


async def run_rollouts(system: System, load: Load, holds: Sequence[float], startup_seconds: float = 0.0) -> Outcome:
    meter, left = Meter(load.n_machines), deque(holds)
    began, (busy_before, all_before) = meter.now(), host_seconds()
    async with asyncio.TaskGroup() as group:
        for number in range(load.n_rollouts):
            group.create_task(_rollout(system, meter, left, f"ro-{number}"))
    seconds, (busy, everything) = meter.now() - began, host_seconds()
    own = system.pool.statistics() if isinstance(system, OurPool) else None
    waits, releases = meter.waits.quantiles(), meter.releases.quantiles()
    assert waits is not None
    assert releases is not None
    return Outcome(
        startup_seconds=startup_seconds,
        seconds=seconds,
        utilisation=meter.utilisation or 0.0,
        utilisation_by_pool=own.utilisation if own else None,
        utilisation_ceiling=ceiling(holds, own.reset_seconds) if own else None,
        waits=waits,
        releases=releases,
        handovers=(await system.handovers()).quantiles(),
        resets=own.reset_seconds if own else None,
        host_busy=(busy - busy_before) / max(everything - all_before, 1e-9),
    )


def ceiling(holds: Sequence[float], resets: Quantiles | None) -> float | None:
    """With the median reset, which a machine needs after each hold."""
    if resets is None:
        return None
    hold = fmean(holds)
    return hold / (hold + resets.p50)


async def _rollout(system: System, meter: Meter, holds: deque[float], name: str) -> None:
    """One after the other, as long as there are any."""
    while holds:
        seconds = holds.popleft()
        asked_at = meter.asks()
        held = await system.take(name)
        meter.took(asked_at)
        until = meter.now() + seconds
        await held.computer.screenshot()
        await held.computer.input(CLICK)
        await asyncio.sleep(max(until - meter.now(), 0.0))
        began_at = meter.gives_back()
        await system.release(held)
        meter.gave_back(began_at)

"""One run of `outrider rollout`: workers, a scheduler and a stand-in trainer on one store, until all steps are done."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from outrider.cli.kept_settings import refuse_masked
from outrider.cli.keys import withheld_notes
from outrider.cli.leases import take_leases_of_the_dead
from outrider.cli.machines import Demand, fits_in_process, launcher_of, machines_now, open_machines, supply_spec
from outrider.cli.options import on_cluster, opened, spread_of
from outrider.cli.rollout_config import RolloutSettings, check_same, read_settings, write_settings
from outrider.cli.rollout_folder import RolloutFolder, folder_to_resume, new_folder
from outrider.cli.rollout_setup import (
    check,
    demand_of,
    environment_spec,
    episode_spec,
    notes,
    notes_on_tasks,
    token_warnings,
    worker_spec,
)
from outrider.cli.rollout_trainer import StandInTrainer, Step, n_steps_done, token_fates
from outrider.cli.rollout_view import Moment, RolloutView, open_rollout_view
from outrider.cli.room import check_store, url_for_workers
from outrider.cli.supervision import supervise
from outrider.core.account import Fate
from outrider.core.causes import Cause, Causes, FailFast
from outrider.core.clock import SystemClock, sleep
from outrider.core.crash_points import reached
from outrider.core.errors import BatchLate, StoreUnavailable
from outrider.core.files import write_private_whole
from outrider.core.ledger import LEDGER_KEY, GroupState
from outrider.core.machine import MachineRecord
from outrider.core.status import RolloutStatus
from outrider.core.task import Task
from outrider.pool import MachinePool, PoolStatistics
from outrider.runner.supervisor import Scale, Supervisor
from outrider.store import Store, StoreUrl
from outrider.store.outage import insist
from outrider.train.scheduler import RolloutScheduler
from outrider.train.timeline import read_timeline
from outrider.train.timeline_page import page_of

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.rollouts.shares import Shares

DISPLAY_SECONDS = 0.5
PAGE = 500


class Dropped(Struct, frozen=True, kw_only=True):
    """Groups that were not trained on: how many, and why the newest of them was not."""

    n: int
    latest: str


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run came to, over all that was done in it.

    `tokens` by fate: `text` are those that were delivered and could not be trained on, `open` those of open groups.
    `machines` is what its pool counted this time, if it had one.
    """

    run: str
    folder: str
    store: str
    steps: int
    complete: bool
    stopped_by: str | None
    resume: str | None
    version: int
    groups: Mapping[GroupState, int]
    dropped: Mapping[str, Dropped]
    """By the fate of their tokens."""
    tokens: Mapping[str, int]
    seconds: float
    timeline: str | None
    machines: PoolStatistics | None = None
    n_failed: int = 0
    """Rollouts that failed in their last attempt."""
    causes: Sequence[Cause] = ()
    planned_steps: int = 0
    in_loss: int = 0
    """Tokens in the loss of all batches that were trained on."""
    as_text: int = 0
    """Tokens in those batches that are known as text only, so that nothing was learnt of them."""
    without_logprobs: int = 0
    """Tokens in the loss whose log-probability is not known."""


class Job:
    """A run under way."""

    def __init__(
        self,
        settings: RolloutSettings,
        folder: RolloutFolder,
        view: RolloutView,
        demand: Demand | None,
        *,
        cluster: "Cluster | None",
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._demand = demand
        self._supply = supply_spec(demand, cluster)
        self._pool: MachinePool | Shares | None = None
        self._machines: Sequence[MachineRecord] = ()
        self._statistics: PoolStatistics | None = None
        self._folder = folder
        self._view = view
        self._clock = SystemClock()
        self._n_done = 0
        self._n_trained = 0
        self._n_text = 0
        self._stopped_by: str | None = None

    async def run(self, tasks: Mapping[str, Sequence[Task]], timeline: Path | None) -> Outcome:
        began_at = self._clock.monotonic()
        settings, name = self._settings, self._folder.name
        async with opened(self._folder.store_url(settings), create=True) as store:
            await take_leases_of_the_dead(store)
            self._n_done = await n_steps_done(store, name)
            stopped_by = None
            if self._n_done < settings.steps:
                stopped_by = await self._work(store, tasks)
            if timeline is not None:
                await self._write_timeline(store, timeline)
            return await self._outcome(store, stopped_by, self._clock.monotonic() - began_at, timeline)

    async def _work(self, store: Store, tasks: Mapping[str, Sequence[Task]]) -> str | None:
        """Train until all steps are done, or something stops it; what."""
        n_workers, cluster, demand, say = self._settings.n_workers, self._cluster, self._demand, self._view.line
        as_tasks = _as_tasks(self._settings)
        url = await url_for_workers(store, n_workers, say, as_tasks=as_tasks, cluster=cluster, demand=demand)
        async with open_machines(demand, self._supply, store, say, cluster, url=url) as self._pool:
            stopped_by = await self._work_on(store, url, tasks)
        if self._pool is not None:
            self._statistics = self._pool.statistics()
        return stopped_by

    async def _work_on(self, store: Store, url: StoreUrl, tasks: Mapping[str, Sequence[Task]]) -> str | None:
        settings, say = self._settings, self._view.line
        supervisor = Supervisor(
            store,
            worker_spec(settings, url, self._demand, self._supply),
            scale=Scale(minimum=settings.n_workers, maximum=settings.n_workers),
            launcher=launcher_of(
                store,
                say,
                as_tasks=_as_tasks(settings),
                cluster=self._cluster,
                cpus_per_worker=settings.cpus_per_worker,
                pool=self._pool,
            ),
        )
        async with RolloutScheduler(store, settings.scheduler, name=self._folder.name, tasks=tasks) as scheduler:
            try:
                await supervise(store, supervisor, self._follow(store, scheduler, supervisor), say)
            except BatchLate as exc:
                return str(exc)
        return supervisor.stopped_by or self._stopped_by

    async def _follow(self, store: Store, scheduler: RolloutScheduler, supervisor: Supervisor) -> None:
        """Train, unless nothing can come of it."""
        showing = asyncio.create_task(self._show(store, scheduler, supervisor), name="show how it goes")
        watching = asyncio.create_task(self._fail_fast(store), name="fail fast")
        training = asyncio.create_task(self._train(store, scheduler), name="train")
        try:
            await asyncio.wait([watching, training], return_when=asyncio.FIRST_COMPLETED)
            if self._stopped_by is None:
                await asyncio.wait([training])
        finally:
            tasks = (showing, watching, training)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _fail_fast(self, store: Store) -> None:
        """Look at the first members that end, until it is clear whether any can succeed."""
        if not self._settings.fail_fast:
            return
        rule = FailFast()
        insistently = partial(insist, store.outage, self._clock)
        cursor = (await insistently(store.statistics)).cursor
        while not rule.is_decided:
            finished = await insistently(partial(store.finished_after, cursor, wait=DISPLAY_SECONDS))
            cursor = finished.cursor
            for rollout in finished.items:
                if rollout.metadata.get(LEDGER_KEY) == self._folder.name:
                    rule.add(rollout.failure if rollout.status is RolloutStatus.FAILED else None)
        self._stopped_by = rule.reason

    async def _train(self, store: Store, scheduler: RolloutScheduler) -> None:
        trainer = StandInTrainer(self._settings, scheduler, self._clock)
        async for step in trainer.steps(self._n_done):
            self._n_done = step.step
            self._n_trained += step.n_trajectories
            self._n_text += step.text
            reached("rollout.step_published")
            await insist(store.outage, self._clock, partial(self._note, step))
            reached("rollout.step_noted")
            self._view.step(step)
            every = self._settings.validate_every
            if every is not None and step.step % every == 0:
                self._view.validated(await scheduler.validate())

    async def _note(self, step: Step) -> None:
        self._folder.note(step)

    async def _show(self, store: Store, scheduler: RolloutScheduler, supervisor: Supervisor) -> None:
        manager = self._settings.train_env_manager
        while True:
            moment = Moment(
                at=self._clock.time(),
                n_done=self._n_done,
                n_steps=self._settings.steps,
                n_slots=min(
                    self._settings.n_slots * self._settings.n_workers, manager.num_env_groups * manager.n_seats
                ),
                n_ended=self._n_trained,
                n_text=self._n_text,
                status=scheduler.status(),
                reading=supervisor.reading,
                machines=await self._machines_now(store),
                n_waiting=None if self._pool is None else self._pool.statistics().n_waiting,
            )
            self._view.update(moment)
            await sleep(self._clock, DISPLAY_SECONDS)

    async def _machines_now(self, store: Store) -> Sequence[MachineRecord]:
        try:
            self._machines = await machines_now(self._demand, self._supply, store, self._pool)
        except StoreUnavailable:
            return self._machines  # training goes on without a picture of them
        return self._machines

    async def _write_timeline(self, store: Store, path: Path) -> None:
        settings = self._settings
        marks = list(self._folder.marks())
        timeline = await read_timeline(store, self._folder.name, marks=marks, now=datetime.now(UTC))
        facts = {
            "model": settings.model,
            "tags": ", ".join(settings.train_env_manager.tags),
            "batch": f"{settings.batch_size} trajectories",
            "ahead": f"{settings.async_generation_ratio:g}",
            "workers": settings.n_workers,
        }
        _, causes = await _failures(store, self._folder.name)
        page = await asyncio.to_thread(page_of, timeline, title=self._folder.name, facts=facts, causes=causes)
        await asyncio.to_thread(write_private_whole, path, page)

    async def _outcome(self, store: Store, stopped_by: str | None, seconds: float, timeline: Path | None) -> Outcome:
        name, settings = self._folder.name, self._settings
        n_done = await n_steps_done(store, name)
        complete = n_done >= settings.steps
        ledger = next((found for found in await store.query_ledgers() if found.name == name), None)
        counts = dict.fromkeys(GroupState, 0)
        for (_, state), n in (await store.count_groups(name)).items():
            counts[state] += n
        tally = await store.tally(name)
        n_failed, causes = await _failures(store, name)
        steps = {step.step: step for step in self._folder.steps()}.values()
        as_text = sum(step.text for step in steps)
        by_fate = {fate: tally.tokens.get(fate, 0) for fate in Fate}
        place = "" if settings.output_dir == "results" else f" --output-dir {settings.output_dir}"
        return Outcome(
            run=name,
            folder=str(self._folder.path),
            store=store.url.shown,
            steps=n_done,
            complete=complete,
            stopped_by=stopped_by,
            resume=None if complete else f"outrider rollout --resume {name}{place}",
            version=0 if ledger is None else ledger.version,
            groups=counts,
            dropped=await _dropped(store, name),
            tokens={**token_fates(by_fate, n_text=as_text), "open": tally.tokens.get(None, 0)},
            seconds=seconds,
            timeline=None if timeline is None else str(timeline),
            machines=self._statistics,
            n_failed=n_failed,
            causes=causes,
            planned_steps=settings.steps,
            in_loss=sum(step.in_loss for step in steps),
            as_text=as_text,
            without_logprobs=sum(step.without_logprobs for step in steps),
        )


async def _failures(store: Store, ledger: str) -> tuple[int, list[Cause]]:
    """How many of the ledger's rollouts have failed, and why."""
    causes, n_failed, offset = Causes(), 0, 0
    while page := (await store.query_rollouts(status=RolloutStatus.FAILED, limit=PAGE, offset=offset)).items:
        offset += len(page)
        for rollout in page:
            if rollout.metadata.get(LEDGER_KEY) == ledger and rollout.failure is not None:
                n_failed += 1
                causes.add(rollout.rollout_id, rollout.failure)
    return n_failed, causes.most_common()


async def _dropped(store: Store, ledger: str) -> dict[str, Dropped]:
    found: dict[str, Dropped] = {}
    for group in await store.query_groups(ledger, states=(GroupState.DROPPED,)):
        fate, _, why = (group.reason or "").partition(": ")
        found[fate] = Dropped(n=found[fate].n + 1 if fate in found else 1, latest=why)
    return found


async def run_job(
    settings: RolloutSettings, folder: RolloutFolder | None, *, timeline: Path | None, as_json: bool
) -> Outcome:
    """Check everything, then run it all, or what is left of it in `folder`."""
    with on_cluster(settings.ray, settings.store, settings.cpus_per_worker) as cluster:
        return await _run_on(cluster, settings, folder, timeline=timeline, as_json=as_json)


async def _run_on(
    cluster: "Cluster | None",
    given: RolloutSettings,
    folder: RolloutFolder | None,
    *,
    timeline: Path | None,
    as_json: bool,
) -> Outcome:
    settings = _spread(given, cluster)
    demand = await demand_of(settings)
    tasks = await check(settings, demand, cluster, is_new=folder is None)
    warnings = await token_warnings(settings)
    if folder is None:
        as_tasks = _as_tasks(settings)
        await check_store(settings.store, settings.n_workers, as_tasks=as_tasks, cluster=cluster, demand=demand)
        folder = new_folder(given, datetime.now(UTC))
    else:
        write_settings(folder.settings, given)
    if demand is not None:
        demand = replace(demand, run=folder.name, place=folder.path)
    environments = [environment_spec(tag, settings.env_of(tag)).name for tag in settings.tags]
    with open_rollout_view(as_json=as_json) as view:
        for note in (
            *notes(settings, demand),
            *notes_on_tasks(settings, tasks),
            *withheld_notes(settings.agent, *environments),
        ):
            view.line(f"note: {note}")
        for warning in warnings:
            view.line(f"⚠ {warning}")
        view.line(
            f"{settings.steps} steps of {settings.batch_size} trajectories, "
            f"{settings.n_slots * settings.n_workers} environments at once, in {folder.path}"
        )
        if cluster is not None:
            view.line(spread_of(settings.n_workers, cluster))
        with folder.in_use():
            return await Job(settings, folder, view, demand, cluster=cluster).run(tasks, timeline)


def _as_tasks(settings: RolloutSettings) -> bool:
    return fits_in_process(episode_spec(settings), settings.n_workers, settings.store)


def _spread(settings: RolloutSettings, cluster: "Cluster | None") -> RolloutSettings:
    """The settings with as many workers as the cluster has nodes, if no number was asked for."""
    if cluster is None or settings.workers is not None:
        return settings
    return structs.replace(settings, workers=len(cluster.working_nodes))


async def dry_run_job(settings: RolloutSettings) -> dict[str, list[Task]]:
    """Raise `InvalidInput` if it could not work, or not on the cluster it shall be on; its tasks by tag."""
    with on_cluster(settings.ray, settings.store, settings.cpus_per_worker) as cluster:
        spread = _spread(settings, cluster)
        return await check(spread, await demand_of(spread), cluster)


def settled(
    config: Path | None, changes: Sequence[str], flags: Mapping[str, object], resume: str | None
) -> tuple[RolloutSettings, RolloutFolder | None]:
    """The settings to run with, and the folder to go on in, if a run is resumed."""
    given = None if config is None and resume is not None else read_settings(config, changes, flags)
    if resume is None:
        assert given is not None
        _refuse_masked(given)
        return given, None
    output_dir = str(flags.get("output_dir", "results" if given is None else given.output_dir))
    folder = folder_to_resume(resume, output_dir, given)
    begun = read_settings(folder.settings)
    settings = given or read_settings(folder.settings, changes, flags)
    check_same(begun, settings, folder.name)
    _refuse_masked(settings)
    return settings, folder


def _refuse_masked(settings: RolloutSettings) -> None:
    for tag, custom in settings.custom_envs.items():
        refuse_masked(custom.config, f"custom_envs.{tag}.config", flag="--set NAME=VALUE")

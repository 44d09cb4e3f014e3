"""One run of `outrider run`: check, plan, enqueue, work, collect, sum up. Each step can be repeated after a crash."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from outrider.cli.leases import take_leases_of_the_dead
from outrider.cli.machines import (
    Demand,
    check_machines,
    check_places,
    launcher_of,
    machines_now,
    open_machines,
    supply_spec,
)
from outrider.cli.options import on_cluster, opened, spread_of
from outrider.cli.room import url_for_workers
from outrider.cli.run_config import RunConfig
from outrider.cli.run_folder import RunFolder, folder_to_resume, lasting_settings, new_folder
from outrider.cli.run_setup import (
    budget_left,
    check_mode,
    demand_of,
    episode_spec,
    idle_settings,
    read_tasks,
    rollout_config,
    tag_of,
    worker_spec,
)
from outrider.cli.run_view import Progressing, RunView, open_run_view
from outrider.cli.supervision import supervise
from outrider.core.clock import SystemClock
from outrider.core.crash_points import reached
from outrider.core.errors import BudgetSpent
from outrider.core.status import LIVE, RolloutStatus
from outrider.core.task import Task
from outrider.evaluate.page import MAX_ROLLOUTS, PAGE_FILE, write_page
from outrider.evaluate.plan import Plan, check_same, enqueue, load_identity, save_identity
from outrider.evaluate.report import write_report
from outrider.evaluate.results import ResultLine
from outrider.evaluate.results_file import ResultsFile, next_results, read_results
from outrider.evaluate.summary import Scoreboard, Summary
from outrider.policy import Usage
from outrider.policy.budget import Purse
from outrider.policy.spec import Budget
from outrider.pool import MachinePool, PoolStatistics
from outrider.runner.kit import check_episodes
from outrider.runner.meter import Reading
from outrider.runner.supervisor import Scale, Supervisor
from outrider.store import Store, StoreUrl
from outrider.store.outage import insist

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.rollouts.shares import Shares

DISPLAY_SECONDS = 0.5
N_SLOWEST = 3


class Job:
    """A run under way: workers on one side, counting what they end on the other."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        plan: Plan,
        view: RunView,
        demand: Demand | None,
        *,
        cluster: "Cluster | None",
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._demand = demand
        self._supply = supply_spec(demand, cluster)
        self._pool: MachinePool | Shares | None = None
        self.statistics: PoolStatistics | None = None
        self._folder = folder
        self._plan = plan
        self._view = view
        self._clock = SystemClock()
        self._board = Scoreboard(samples_per_task=config.samples_per_task)
        self._cursor = 0
        self._n_failed = 0
        self._n_retries = 0
        self._purse = Purse(Budget(), self._clock)
        self._charged = Reading()
        self._stopped_by: str | None = None

    async def run(self) -> tuple[Summary, str | None]:
        """Work until all is done or something stops it; the summary, and what stopped it."""
        with ResultsFile(self._folder.results) as results:
            for line in read_results(self._folder.results):
                self._count(line)
            async with opened(self._folder.store_url(self._config), create=True) as store:
                n_workers, say = self._config.n_workers, self._view.line
                url = await url_for_workers(store, n_workers, say, as_tasks=n_workers == 1, cluster=self._cluster)
                await enqueue(store, self._plan)
                reached("run.enqueued")
                await take_leases_of_the_dead(store)
                stopped_by = await self._work(store, url, results)
                summary = self._board.summary()
                reached("run.collected")
                write_report(self._folder.path, summary, run=self._plan.run, facts=self._facts())
                reached("run.report_written")
                if len(self._plan) <= MAX_ROLLOUTS:
                    path, run = self._folder.path / PAGE_FILE, self._plan.run
                    await write_page(path, store, title=run, run=run, facts=self._facts())
        return summary, stopped_by

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self._config, name) for name in ("mode", "data", "model", "agent", "seed")}
        facts |= {f"model of {name}": policy.model for name, policy in self._config.policies.items()}
        return {**facts, "data": facts["data"] or "the bundled tasks"}

    @property
    def n_left(self) -> int:
        return len(self._plan) - self._board.n

    async def _work(self, store: Store, url: StoreUrl, results: ResultsFile) -> str | None:
        while await self._collect(store, results, wait=0.0):
            continue  # what a run before this one has ended and not written down
        if not self.n_left:
            return None
        budget = budget_left(self._config, self._board.summary())
        self._purse = Purse(budget, self._clock)
        tag = tag_of(self._config, self._plan.run)
        episodes = episode_spec(self._config, tag, budget, self._supply)
        say = self._view.line
        async with open_machines(self._demand, self._supply, store, say, self._cluster) as self._pool:
            supervisor = Supervisor(
                store,
                worker_spec(self._config, url, episodes, tag),
                scale=Scale(minimum=self._config.n_workers, maximum=self._config.n_workers),
                launcher=launcher_of(
                    store,
                    say,
                    as_tasks=self._config.n_workers == 1,
                    cluster=self._cluster,
                    cpus_per_worker=self._config.cpus_per_worker,
                    pool=self._pool,
                ),
            )
            await supervise(store, supervisor, self._follow(store, results, supervisor), say)
        if self._pool is not None:
            self.statistics = self._pool.statistics()
        while await self._collect(store, results, wait=0.0):
            continue
        return supervisor.stopped_by or self._stopped_by

    async def _follow(self, store: Store, results: ResultsFile, supervisor: Supervisor) -> None:
        insistently = partial(insist, store.outage, self._clock)
        while self.n_left:
            await insistently(partial(self._show, store, supervisor))
            await insistently(partial(self._collect, store, results, wait=DISPLAY_SECONDS))
            self._stopped_by = self._spent(supervisor.reading)
            if self._stopped_by is not None:
                break
        await insistently(partial(self._show, store, supervisor))

    def _spent(self, used: Reading) -> str | None:
        """Whether all workers together have used up the budget: each of them knows only of itself."""
        new = used - self._charged
        self._charged = used
        self._purse.charge(Usage(prompt_tokens=new.prompt_tokens, completion_tokens=new.completion_tokens))
        try:
            self._purse.check()
        except BudgetSpent as exc:
            return str(exc)
        return None

    async def _collect(self, store: Store, results: ResultsFile, *, wait: float) -> int:
        """Write down and count what has ended; how far the feed went on."""
        before = self._cursor
        lines, self._cursor = await next_results(store, results, before, run=self._plan.run, wait=wait)
        for line in results.append(lines):
            self._count(line)
            self._view.ended(line)
        return self._cursor - before

    def _count(self, line: ResultLine) -> None:
        self._board.add(line)
        self._n_failed += line.status is RolloutStatus.FAILED
        self._n_retries += max(line.n_attempts - 1, 0)

    async def _show(self, store: Store, supervisor: Supervisor) -> None:
        running = await store.query_rollouts(status_in=LIVE, tag=self._plan.tag, limit=N_SLOWEST)
        slowest = []
        for rollout in running.items:
            attempt = await store.get_latest_attempt(rollout.rollout_id)
            if attempt is not None:
                slowest.append((rollout.rollout_id, self._clock.time() - attempt.started_at.timestamp()))
        self._view.update(
            Progressing(
                at=self._clock.time(),
                n_total=len(self._plan),
                n_ended=self._board.n,
                n_running=running.total,
                n_failed=self._n_failed,
                n_retries=self._n_retries,
                mean_reward=self._board.mean_reward,
                reading=supervisor.reading,
                slowest=sorted(slowest, key=lambda item: -item[1]),
                machines=await machines_now(self._demand, self._supply, store, self._pool),
                n_waiting=None if self._pool is None else self._pool.statistics().n_waiting,
            )
        )


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run came to. `stopped_by` tells why it is not complete, where a failure stopped it.

    `machines` is what its pool counted, if it had one.
    """

    run: str
    folder: str
    complete: bool
    stopped_by: str | None
    summary: Summary
    machines: PoolStatistics | None = None


async def run_job(config: RunConfig, *, resume: str | None, as_json: bool) -> Outcome:
    """Check everything, then run it all, or what is left of it."""
    with on_cluster(config.ray, config.store, config.cpus_per_worker) as cluster:
        return await _run_on(cluster, config, resume=resume, as_json=as_json)


async def _run_on(cluster: "Cluster | None", given: RunConfig, *, resume: str | None, as_json: bool) -> Outcome:
    config = _spread(given, cluster)
    tasks = await check_job(config, cluster, is_new=resume is None)
    folder = _folder(config, tasks, resume)
    demand = demand_of(config, folder.name, folder.path)
    plan = _plan(config, tasks, folder.name)
    if resume is None:
        reached("run.folder_made")
        folder.write_config(given)
        reached("run.config_written")
        save_identity(folder.plan, plan.identity())
        reached("run.plan_written")
    else:
        check_same(load_identity(folder.plan), plan.identity())
    with open_run_view(as_json=as_json) as view:
        for note in idle_settings(config, demand):
            view.line(f"note: {note}")
        view.line(f"{len(plan)} rollouts of {len(tasks)} tasks, {config.num_rollouts} at once, in {folder.path}")
        if cluster is not None:
            view.line(spread_of(config.n_workers, cluster))
        job = Job(config, folder, plan, view, demand, cluster=cluster)
        summary, stopped_by = await job.run()
    complete = summary.total.n >= len(plan)
    return Outcome(
        run=folder.name,
        folder=str(folder.path),
        complete=complete,
        stopped_by=None if complete else stopped_by,
        summary=summary,
        machines=job.statistics,
    )


def _spread(config: RunConfig, cluster: "Cluster | None") -> RunConfig:
    """The settings with as many workers as the cluster has nodes, if no number was asked for."""
    if cluster is None or config.workers is not None:
        return config
    return structs.replace(config, workers=len(cluster.working_nodes))


async def dry_run_job(config: RunConfig) -> list[Task]:
    """Raise `InvalidInput` if the run could not work, or not on the cluster it shall be on; its tasks."""
    with on_cluster(config.ray, config.store, config.cpus_per_worker) as cluster:
        return await check_job(_spread(config, cluster), cluster)


async def check_job(config: RunConfig, cluster: "Cluster | None" = None, *, is_new: bool = True) -> list[Task]:
    """Raise `InvalidInput` if the run could not work; its tasks."""
    check_mode(config)
    demand = demand_of(config, "check", Path(config.output_dir))
    check_places(demand, cluster)
    tasks = await asyncio.to_thread(read_tasks, config)
    supply = supply_spec(demand)
    await check_episodes(episode_spec(config, config.mode, Budget(), supply), tasks)
    if is_new:  # else its pool takes over machines that are there, and checks for the rest
        await check_machines(demand, supply, cluster)
    return tasks


def _plan(config: RunConfig, tasks: Sequence[Task], run: str) -> Plan:
    return Plan(
        run=run,
        tasks=tuple(tasks),
        samples_per_task=config.samples_per_task,
        seed=config.seed,
        tag=tag_of(config, run),
        config=rollout_config(config, supply_spec(demand_of(config, run, Path(config.output_dir)))),
        settings=lasting_settings(config),
    )


def _folder(config: RunConfig, tasks: Sequence[Task], resume: str | None) -> RunFolder:
    if resume is None:
        return new_folder(config, datetime.now(UTC))
    return folder_to_resume(config, resume, _plan(config, tasks, "any").identity())

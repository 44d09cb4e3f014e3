"""One run of `outrider run`: check, plan, enqueue, work, collect, sum up. Each step can be repeated after a crash."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from outrider.cli.keys import withheld_notes
from outrider.cli.leases import take_leases_of_the_dead
from outrider.cli.machines import (
    Demand,
    check_machines,
    check_places,
    fits_in_process,
    launcher_of,
    machines_now,
    open_machines,
    supply_spec,
)
from outrider.cli.options import on_cluster, opened, spread_of
from outrider.cli.retry import retry_failed_of
from outrider.cli.room import check_store, url_for_workers
from outrider.cli.run_config import RunConfig
from outrider.cli.run_folder import RunFolder, check_name, folder_to_resume, lasting_settings, new_folder
from outrider.cli.run_setup import (
    budget_left,
    budget_of,
    check_mode,
    demand_of,
    episode_spec,
    idle_settings,
    read_tasks,
    rollout_config,
    tag_of,
    token_notes,
    unused_fields,
    worker_spec,
)
from outrider.cli.run_view import Progressing, RunView, open_run_view
from outrider.cli.supervision import supervise
from outrider.core.causes import FailFast
from outrider.core.clock import SystemClock
from outrider.core.crash_points import reached
from outrider.core.errors import BudgetSpent
from outrider.core.files import explaining_disk
from outrider.core.rollout import Rollout
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.core.task import Task
from outrider.evaluate.page import PAGE_FILE, PageLimits, write_page
from outrider.evaluate.plan import RUN_KEY, Plan, check_goes_on, enqueue, load_identity, safe_name, save_identity
from outrider.evaluate.report import SUMMARY_MD, write_report
from outrider.evaluate.results import ResultLine, name_of, read_result
from outrider.evaluate.results_file import ResultsFile, count_results, next_results
from outrider.evaluate.retries import is_retry
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
PAGE = 500

BEGUN = LIVE | {RolloutStatus.REQUEUING}
"""Rollouts that have had an attempt, and have not ended."""


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
        retry_failed: bool = False,
        page_limits: PageLimits,
    ) -> None:
        self._config = config
        self._page_limits = page_limits
        self._retry_failed = retry_failed
        self._cluster = cluster
        self._demand = demand
        self._supply = supply_spec(demand, cluster)
        self._as_tasks = _as_tasks(config)
        self._pool: MachinePool | Shares | None = None
        self.statistics: PoolStatistics | None = None
        self._folder = folder
        self._plan = plan
        self._odd_ids = {safe: one.task_id for one in plan.tasks if (safe := safe_name(one.task_id)) != one.task_id}
        self._view = view
        self._clock = SystemClock()
        self._board = self._new_board()
        self._n_ended = 0
        self._retries: set[str] = set()
        self._cursor = 0
        self._n_failed = 0
        self._n_retries = 0
        self._purse = Purse(Budget(), self._clock)
        self._charged = Reading()
        self._stopped_by: str | None = None
        self._fail_fast: FailFast | None = None

    async def run(self) -> tuple[Summary, str | None]:
        """Work until all is done or something stops it; the summary, and what stopped it."""
        with ResultsFile(self._folder.results) as results:
            self._board = self._counted()
            self._n_ended = len(results)
            self._retries = {rollout_id for rollout_id in results.rollout_ids if is_retry(rollout_id)}
            async with opened(self._folder.store_url(self._config), create=True) as store:
                n_workers, say = self._config.n_workers, self._view.line
                as_tasks, cluster, demand = self._as_tasks, self._cluster, self._demand
                url = await url_for_workers(store, n_workers, say, as_tasks=as_tasks, cluster=cluster, demand=demand)
                await enqueue(store, self._plan)
                reached("run.enqueued")
                await take_leases_of_the_dead(store)
                if self._retry_failed:
                    await retry_failed_of(store, self._plan.run, tag=self._plan.tag)
                stopped_by = await self._work(store, url, results)
                summary = await self._summary(store)
                reached("run.collected")
                await insist(store.outage, self._clock, partial(self._write_report, store, summary))
        return summary, stopped_by

    async def _write_report(self, store: Store, summary: Summary) -> None:
        with explaining_disk(self._folder.path):
            write_report(self._folder.path, summary, run=self._plan.run, facts=self._facts())
            reached("run.report_written")
            await self._write_page(store)

    async def _write_page(self, store: Store) -> None:
        path, run = self._folder.path / PAGE_FILE, self._plan.run
        if len(self._plan) > self._page_limits.max_rollouts:
            self._view.line(f"{SUMMARY_MD} is written; {PAGE_FILE} takes a second for about a thousand rollouts")
        await write_page(
            path, store, title=run, run=run, facts=self._facts(), limits=self._page_limits, prices=self._prices
        )

    @property
    def _prices(self) -> tuple[float, float]:
        return self._config.prompt_price, self._config.completion_price

    def _new_board(self) -> Scoreboard:
        return Scoreboard(samples_per_task=self._config.samples_per_task, prices=self._prices)

    def _counted(self) -> Scoreboard:
        """What is written down, counted."""
        board = self._new_board()
        count_results(self._folder.results, board)
        return board

    async def _summary(self, store: Store) -> Summary:
        """The numbers of what has ended, and what the rest has taken so far."""
        board = self._counted()
        async for rollout in self._own(store, BEGUN):
            board.add_open(await read_result(store, rollout))
        return board.summary(n_planned=len(self._plan))

    async def _own(self, store: Store, statuses: Collection[RolloutStatus]) -> AsyncIterator[Rollout]:
        """The run's rollouts in these states, page by page."""
        offset = 0
        while page := (
            await store.query_rollouts(status_in=statuses, tag=self._plan.tag, limit=PAGE, offset=offset)
        ).items:
            offset += len(page)
            for rollout in page:
                if rollout.metadata.get(RUN_KEY) == self._plan.run:
                    yield rollout

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self._config, name) for name in ("mode", "data", "model", "agent", "seed")}
        facts |= {f"model of {name}": policy.model for name, policy in self._config.policies.items()}
        return {**facts, "data": facts["data"] or "the bundled tasks"}

    @property
    def n_left(self) -> int:
        return self.n_total - self._n_ended

    @property
    def n_total(self) -> int:
        """All samples, and those that are retried."""
        return len(self._plan) + len(self._retries)

    async def _work(self, store: Store, url: StoreUrl, results: ResultsFile) -> str | None:
        insistently = partial(insist, store.outage, self._clock)
        while await insistently(partial(self._collect, store, results, wait=0.0)):
            continue  # what a run before this one has ended and not written down
        async for rollout in self._own(store, QUEUED | LIVE):
            if is_retry(rollout.rollout_id):
                self._retries.add(rollout.rollout_id)
        if not self.n_left:
            return None
        self._fail_fast = FailFast() if self._config.fail_fast else None
        used = await self._summary(store)
        budget = budget_left(budget_of(self._config), used)
        self._purse = Purse(budget_of(self._config), self._clock, used_seconds=used.wall_seconds)
        self._purse.charge(
            Usage(prompt_tokens=used.total.prompt_tokens, completion_tokens=used.total.completion_tokens)
        )
        tag = tag_of(self._config, self._plan.run)
        episodes = episode_spec(self._config, tag, budget, self._supply)
        say = self._view.line
        async with open_machines(self._demand, self._supply, store, say, self._cluster, url=url) as self._pool:
            supervisor = Supervisor(
                store,
                worker_spec(self._config, url, episodes, tag),
                scale=Scale(minimum=self._config.n_workers, maximum=self._config.n_workers),
                launcher=launcher_of(
                    store,
                    say,
                    as_tasks=self._as_tasks,
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
        # Calls that were under way when the budget was spent were answered, and are counted.
        return self._spent(supervisor.reading) or supervisor.stopped_by or self._stopped_by

    async def _follow(self, store: Store, results: ResultsFile, supervisor: Supervisor) -> None:
        insistently = partial(insist, store.outage, self._clock)
        while self.n_left:
            await insistently(partial(self._show, store, supervisor))
            await insistently(partial(self._collect, store, results, wait=DISPLAY_SECONDS))
            self._stopped_by = self._stopped_by or self._spent(supervisor.reading)
            if self._stopped_by is not None and self.n_left:
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
        lines, cursor = await next_results(store, results, before, run=self._plan.run, wait=wait)
        for line in chain.from_iterable(results.append([line]) for line in lines):
            self._count(line)
            self._view.ended(line)
            if self._fail_fast is not None:
                failure = line.failure if line.status is RolloutStatus.FAILED else None
                self._stopped_by = self._stopped_by or self._fail_fast.add(failure)
        self._cursor = cursor  # not before all lines are written: the disk may have been full
        return cursor - before

    def _count(self, line: ResultLine) -> None:
        self._n_ended += 1
        if is_retry(line.rollout_id):
            self._retries.add(line.rollout_id)
            self._board = self._counted()
        else:
            self._board.add(line)
        self._n_failed += line.status is RolloutStatus.FAILED
        self._n_retries += max(line.n_attempts - 1, 0)

    def _name_of(self, rollout_id: str) -> str:
        """What people call it, by the task's own id."""
        safe = rollout_id.rpartition(":")[0].rpartition("/")[2]
        return name_of(rollout_id, self._odd_ids.get(safe, safe))[1]

    async def _show(self, store: Store, supervisor: Supervisor) -> None:
        running = await store.query_rollouts(status_in=LIVE, tag=self._plan.tag, limit=N_SLOWEST)
        slowest = []
        for rollout in running.items:
            attempt = await store.get_latest_attempt(rollout.rollout_id)
            if attempt is not None:
                slowest.append((self._name_of(rollout.rollout_id), self._clock.time() - attempt.started_at.timestamp()))
        self._view.update(
            Progressing(
                at=self._clock.time(),
                n_total=self.n_total,
                n_ended=self._n_ended,
                n_running=running.total,
                n_failed=self._n_failed,
                n_retries=self._n_retries,
                mean_reward=self._board.mean_reward,
                reading=supervisor.reading,
                slowest=sorted(slowest, key=lambda item: -item[1]),
                name_of=self._name_of,
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


async def run_job(
    config: RunConfig,
    *,
    resume: str | None,
    retry_failed: bool = False,
    as_json: bool,
    page_limits: PageLimits = PageLimits(),  # noqa: B008 it is frozen
) -> Outcome:
    """Check everything, then run it all, or what is left of it, and with `retry_failed` what has no score again."""
    with on_cluster(config.ray, config.store, config.cpus_per_worker) as cluster:
        return await _run_on(
            cluster, config, resume=resume, retry_failed=retry_failed, as_json=as_json, page_limits=page_limits
        )


async def _run_on(
    cluster: "Cluster | None",
    given: RunConfig,
    *,
    resume: str | None,
    retry_failed: bool,
    as_json: bool,
    page_limits: PageLimits,
) -> Outcome:
    config = _spread(given, cluster)
    tasks = await check_job(config, cluster, is_new=resume is None)
    if resume is None:
        demand = demand_of(config, "check", Path(config.output_dir))
        await check_store(config.store, config.n_workers, as_tasks=_as_tasks(config), cluster=cluster, demand=demand)
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
        begun = load_identity(folder.plan)
        check_goes_on(begun, plan)
        if begun != plan.identity():
            folder.write_config(given)
            reached("run.extension_configured")
            save_identity(folder.plan, plan.identity())
            reached("run.extended")
    with open_run_view(as_json=as_json) as view:
        notes = (
            *idle_settings(config, demand),
            *unused_fields(config, tasks),
            *await token_notes(config),
            *withheld_notes(config.agent, config.mode),
        )
        for note in notes:
            view.line(f"note: {note}")
        view.line(f"{len(plan)} rollouts of {len(tasks)} tasks, {config.num_rollouts} at once, in {folder.path}")
        if cluster is not None:
            view.line(spread_of(config.n_workers, cluster))
        job = Job(
            config, folder, plan, view, demand, cluster=cluster, retry_failed=retry_failed, page_limits=page_limits
        )
        summary, stopped_by = await job.run()
    complete = not job.n_left
    return Outcome(
        run=folder.name,
        folder=str(folder.path),
        complete=complete,
        stopped_by=None if complete else stopped_by,
        summary=summary,
        machines=job.statistics,
    )


def _as_tasks(config: RunConfig) -> bool:
    return fits_in_process(episode_spec(config, config.mode, Budget()), config.n_workers, config.store)


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
    if config.name is not None and is_new:
        check_name(config.name)
    demand = demand_of(config, "check", Path(config.output_dir))
    check_places(demand, cluster)
    tasks = await asyncio.to_thread(read_tasks, config)
    supply = supply_spec(demand)
    spec = episode_spec(config, config.mode, Budget(), supply)
    await check_episodes(spec, tasks, ask_servers=not config.no_check)
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

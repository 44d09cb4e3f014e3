"""`outrider work`."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.exit_code import allow_failures_option, exit_code, no_fail_fast_option
from outrider.cli.keys import PASS_ENV, withheld_notes, without_keys
from outrider.cli.machines import launcher_of
from outrider.cli.options import (
    cpus_option,
    json_option,
    mode_option,
    on_cluster,
    opened,
    ray_option,
    run,
    spread_of,
    store_option,
)
from outrider.cli.output import echo, outlive_readers, print_json
from outrider.cli.room import url_for_workers
from outrider.cli.supervision import supervise
from outrider.cli.tally import Tally, follow, n_open, new_tally
from outrider.cli.work_view import View, open_view
from outrider.core.bounds import Amount, Count, PositiveCount, check_bounds
from outrider.core.clock import SystemClock
from outrider.core.errors import InvalidInput
from outrider.core.status import Mode
from outrider.runner import RunnerConfig
from outrider.runner.kit import EpisodeSpec, check_episodes
from outrider.runner.supervisor import Scale, Supervisor
from outrider.runner.worker import WorkerSpec
from outrider.store import Store, StoreUrl
from outrider.store.outage import insist

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

TEST_AGENT = "outrider.testing.agents:practise"
DISPLAY_SECONDS = 0.5
N_WORKERS = 4
"""On each machine."""

_DEFAULTS = RunnerConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command was asked to do."""

    store_url: StoreUrl
    spec: WorkerSpec
    workers: PositiveCount | None
    min_workers: Count | None
    max_workers: PositiveCount | None
    as_tasks: bool
    ray: str | None
    cpus_per_worker: Amount
    until_done: bool
    fail_fast: bool
    as_json: bool

    def __post_init__(self) -> None:
        check_bounds(self)

    def scale(self, n_nodes: int) -> Scale:
        """How many workers, on so many machines."""
        workers = self.workers or N_WORKERS * n_nodes
        if self.min_workers is None and self.max_workers is None:
            return Scale(minimum=workers, maximum=workers)
        return Scale(minimum=self.min_workers or 0, maximum=self.max_workers or workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """What the workers came to."""

    summary: dict[str, object]
    n_missing: int
    n_left: int
    stopped_by: str | None


@click.command("work")
@store_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help=f"Number of workers.  [default: {N_WORKERS}; with --ray {N_WORKERS} per node]",
)
@ray_option
@cpus_option
@click.option("--min-workers", type=click.IntRange(min=0), help="Let the number follow the queue, down to this.")
@click.option("--max-workers", type=click.IntRange(min=1), help="Let the number follow the queue, up to this.")
@click.option(
    "--agent",
    default=TEST_AGENT,
    show_default=True,
    metavar="MODULE:FUNCTION",
    help="async def agent(task, ctx) -> reward, or a plain def.",
)
@click.option("--pass-env", multiple=True, metavar="NAME", help=PASS_ENV)
@click.option("--tasks", "as_tasks", is_flag=True, help="Workers as tasks of this process instead of processes.")
@click.option(
    "--max-env-num-per-worker",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_env_num_per_worker,
    show_default=True,
    help="Rollouts a worker runs at once.",
)
@click.option("--max-rollouts", type=click.IntRange(min=1), help="End each worker after this many rollouts.")
@click.option(
    "--poll-interval",
    type=float,
    default=_DEFAULTS.poll_interval,
    show_default=True,
    metavar="SECONDS",
    help="Also look for work this often; new work normally wakes a worker at once.",
)
@click.option(
    "--heartbeat-interval",
    type=float,
    default=_DEFAULTS.heartbeat_interval,
    show_default=True,
    metavar="SECONDS",
    help="Renew leases this often; must be less than a lease lasts.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.grace_seconds,
    show_default=True,
    metavar="SECONDS",
    help="On Ctrl-C, let running rollouts finish this long before they are handed back.",
)
@click.option(
    "--max-block",
    "max_block_seconds",
    type=float,
    default=_DEFAULTS.max_block_seconds,
    show_default=True,
    metavar="SECONDS",
    help="Replace a worker whose event loop an agent blocks this long, and fail that agent's attempt.",
)
@click.option("--tag", "tags", multiple=True, help="Only rollouts with this tag; may be given several times.")
@mode_option
@click.option("--until-done", is_flag=True, help="End when no rollout is open any more.")
@no_fail_fast_option
@allow_failures_option
@json_option
def command(
    *,
    store_url: StoreUrl,
    workers: int | None,
    min_workers: int | None,
    max_workers: int | None,
    ray: str | None,
    cpus_per_worker: float | None,
    agent: str,
    pass_env: tuple[str, ...],
    as_tasks: bool,
    grace: float,
    tags: tuple[str, ...],
    mode: str | None,
    until_done: bool,
    fail_fast: bool,
    allow_failures: bool,
    as_json: bool,
    **runner: Any,
) -> None:
    """Run workers that share the rollouts of a store; each rollout goes to exactly one.

    Ctrl-C drains: nothing more is claimed, running rollouts finish or go back to the queue. A second Ctrl-C stops at
    once; what ran is retried by the next worker.

    Exit codes: 0 all done, 1 some rollouts failed (--allow-failures forgives that), 2 bad input, 3 stopped early: by a
    failure that all rollouts would meet, or with --until-done while some were still open.
    """
    config = RunnerConfig(
        grace_seconds=grace,
        tags=tags or None,
        mode=None if mode is None else Mode(mode),
        fail_fast=fail_fast,
        **runner,
    )
    order = Order(
        store_url=store_url,
        spec=WorkerSpec(store_url=store_url, episodes=EpisodeSpec(agent=agent), config=config, pass_env=pass_env),
        workers=workers,
        min_workers=min_workers,
        max_workers=max_workers,
        as_tasks=as_tasks,
        ray=ray,
        cpus_per_worker=cpus_per_worker or 0.0,
        until_done=until_done,
        fail_fast=fail_fast,
        as_json=as_json,
    )
    if as_tasks and ray is not None:
        raise InvalidInput("--tasks keeps workers in this process, --ray has them on a cluster; give one of them")
    if store_url.scheme == "memory" and not as_tasks:
        raise InvalidInput("a memory:// store lives in one process; give a sqlite:/// or postgresql:// store")
    outlive_readers()
    with without_keys((), pass_env, ray=ray):
        worked = run(_work_somewhere(order))
    if as_json:
        print_json({**worked.summary, "stopped_by": worked.stopped_by, "left_open": worked.n_left})
    if worked.stopped_by is not None:
        echo(f"Stopped: {worked.stopped_by}", err=True)
    if until_done and worked.n_left:
        echo(f"{worked.n_left} rollouts are left open; `outrider status` tells more", err=True)
    is_complete = worked.stopped_by is None and not (until_done and worked.n_left)
    sys.exit(exit_code(is_complete=is_complete, n_missing=worked.n_missing, allows_failures=allow_failures))


async def _work_somewhere(order: Order) -> Worked:
    if order.ray is None:  # the nodes of a cluster may have modules that this machine does not have
        await check_episodes(order.spec.episodes)
    with on_cluster(order.ray, order.store_url, order.cpus_per_worker) as cluster:
        return await _work(order, cluster)


async def _work(order: Order, cluster: "Cluster | None") -> Worked:
    clock = SystemClock()
    scale = order.scale(1 if cluster is None else len(cluster.working_nodes))
    # Workers may wait for a store that is still empty; work that shall be done must be there.
    async with opened(order.store_url, create=not order.until_done) as store:
        statistics = await store.statistics()
        tally = new_tally(clock, statistics, fail_fast=order.fail_fast)
        with open_view(as_json=order.as_json) as view:
            n_workers = scale.maximum
            what = f"{n_workers} workers" if cluster is None else spread_of(n_workers, cluster)
            view.line(f"🔧 Initializing {what}...")
            view.line("📊 Workers will share rollouts from the store automatically\n")
            for note in withheld_notes(order.spec.episodes.agent):
                view.line(f"note: {note}")
            launcher = launcher_of(
                store, view.line, as_tasks=order.as_tasks, cluster=cluster, cpus_per_worker=order.cpus_per_worker
            )
            url = await url_for_workers(store, n_workers, view.line, as_tasks=order.as_tasks, cluster=cluster)
            spec = replace(order.spec, store_url=url)
            supervisor = Supervisor(store, spec, scale=scale, launcher=launcher, on_line=view.line)
            tally.own_workers = supervisor.worker_ids
            await supervise(store, supervisor, _follow(store, tally, view, forever=not order.until_done), view.line)
            for rollout in (await store.finished_after(tally.cursor, limit=1_000_000)).items:
                tally.add(rollout)
        summary = tally.summary(clock.monotonic())
        statistics = await store.statistics()
        view.summary(tally, summary, statistics)
        return Worked(
            summary=summary,
            n_missing=tally.n_missing,
            n_left=n_open(statistics),
            stopped_by=supervisor.stopped_by or tally.stopped_by,
        )


async def _follow(store: Store, tally: Tally, view: View, *, forever: bool) -> None:
    while True:
        await follow(store, tally, on_change=lambda statistics: view.update(tally, statistics), every=DISPLAY_SECONDS)
        if not forever or tally.stopped_by:
            return
        await insist(
            store.outage, SystemClock(), lambda: store.finished_after(tally.cursor, limit=1, wait=DISPLAY_SECONDS)
        )

"""Options that several commands share, and how a command runs."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outrider.cli.output import echo
from outrider.cli.signals import listening
from outrider.core.errors import InvalidInput, StoreError
from outrider.core.loops import run_to_end
from outrider.core.rollout import Rollout
from outrider.core.status import Mode
from outrider.store import Store, StoreUrl, open_store
from outrider.store.url import VARIABLE

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

DEFAULT_STORE = "sqlite:///outrider.db"

store_option = click.option(
    "--store",
    "store_url",
    metavar="URL",
    type=StoreUrl,
    envvar=VARIABLE,
    default=DEFAULT_STORE,
    show_default=True,
    show_envvar=True,
    help="sqlite:///FILE, postgresql://USER@HOST/DATABASE.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
mode_option = click.option(
    "--mode", type=click.Choice([mode.value for mode in Mode]), help="Only rollouts of this mode."
)
tag_option = click.option("--tag", help="Only rollouts with this tag.")
ray_option = click.option(
    "--ray",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[ADDRESS]",
    help="Run workers as actors of this Ray cluster. Without ADDRESS: the one in RAY_ADDRESS, or one that is "
    "started here for this command.",
)
cpus_option = click.option(
    "--cpus-per-worker", type=float, default=None, metavar="CPUS", help="What Ray reserves for a worker.  [default: 0]"
)


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run a command's coroutine. SIGTERM ends it as Ctrl-C does: what it holds is given back before it exits."""
    try:
        return run_to_end(_ended_by_signal(work))
    except asyncio.CancelledError:
        echo("outrider: stopped by SIGTERM", err=True)
        sys.exit(128 + signal.SIGTERM)


async def _ended_by_signal(work: Coroutine[Any, Any, R]) -> R:
    task = asyncio.current_task()
    assert task is not None
    with listening(task.cancel, signal.SIGTERM):
        return await work


@asynccontextmanager
async def opened(store_url: StoreUrl, *, create: bool = False, read_only: bool = False) -> AsyncIterator[Store]:
    """The store a command was given. One that cannot be opened is a mistake in the command: nothing was changed yet."""
    try:
        store = await open_store(store_url.completed(), create=create, read_only=read_only)
    except StoreError as exc:
        raise InvalidInput(str(exc)) from exc
    async with store:
        yield store


async def check_tag(store: Store, tag: str | None) -> None:
    """Refuse a tag that no rollout has: it is more likely misspelt than meant."""
    if tag is not None and not (await store.query_rollouts(tag=tag, limit=0)).total:
        raise InvalidInput(f"no rollout in this store has the tag {tag!r}; `outrider status` lists the tags")


async def known(store: Store, rollout_ids: tuple[str, ...]) -> tuple[Rollout, ...]:
    """These rollouts, or an error that names those the store does not have."""
    found = await store.query_rollouts(rollout_ids=rollout_ids)
    missing = sorted(set(rollout_ids) - {rollout.rollout_id for rollout in found})
    if missing:
        raise InvalidInput(f"not in this store: {', '.join(missing)}; nothing was changed")
    return found.items


def on_cluster(
    address: str | None, store_url: StoreUrl | None, cpus_per_worker: float
) -> "AbstractContextManager[Cluster | None]":
    """The Ray cluster that a command was given with `--ray`, if any. Starting one takes seconds, and is announced.

    Without a store, the job makes one in its own folder.
    """
    if cpus_per_worker < 0:
        raise InvalidInput(f"cpus_per_worker is {cpus_per_worker}; give 0 or more")
    if address is None:
        if cpus_per_worker:
            raise InvalidInput("--cpus-per-worker is what Ray reserves for a worker; it needs --ray")
        return nullcontext()
    from outrider.cluster.rollouts.opening import open_cluster  # noqa: PLC0415 takes its time, and few need it

    return open_cluster(address, store_url or StoreUrl("sqlite:///"), say=lambda line: echo(line, err=True))


def spread_of(n_workers: int, cluster: "Cluster") -> str:
    """The numbers of workers and nodes, in words."""
    n_nodes = len(cluster.working_nodes)
    return f"{n_workers} worker{'s' * (n_workers != 1)} on {n_nodes} node{'s' * (n_nodes != 1)} of Ray"

"""Workers of a run on the nodes of a cluster, each a group of one, as their supervisor sees them.

Invariants:
- Nothing here blocks the event loop: what waits for the cluster does so in a thread.
- The death of a worker or of its node is an exit that failed: the supervisor takes its leases away and replaces it.
- A worker that was drained or killed is gone from the cluster when `wait` returns. One that died elsewhere cannot be
  reached any more, and is fenced by its leases.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from outrider.cluster.crew import RELEASE_SECONDS
from outrider.cluster.info import NodeInfo
from outrider.cluster.post import Link
from outrider.cluster.rollouts.berths import Berth, Berths, Choice, OnNode, the_best
from outrider.cluster.rollouts.reach import StoreUnseen, check_sight
from outrider.cluster.rollouts.voice import SAID, USED
from outrider.cluster.rollouts.worker import RolloutWorker
from outrider.core import wire
from outrider.core.clock import SystemClock
from outrider.core.errors import ClusterError, WorkerDied, WorkerFailed, WorkersFailed
from outrider.core.ids import new_id
from outrider.core.tasks import uninterrupted
from outrider.runner.channel import WorkerExit
from outrider.runner.keys import tool_variables
from outrider.runner.meter import Reading
from outrider.runner.supervisor import Launcher
from outrider.runner.worker import LineHandler, RunningWorker, WorkerSpec
from outrider.store.opening import HISTORY_VARIABLE

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.group import WorkerGroup

_log = logging.getLogger(__name__)

MAX_FAILED_STARTS = 5
LOOK_SECONDS = 1.0
"""How often to look for room on a full cluster: nobody tells when there is."""
ANSWER_SECONDS = 2.0
END_SECONDS = 4.0
"""How long the member on the node may take to tell that it had to end its process, beside what that may take."""
FORWARDED = ("OPENAI_", HISTORY_VARIABLE)
"""Variables that begin so are set in workers as they are here, but for keys."""


def cluster_launcher(
    cluster: "Cluster",
    on_line: LineHandler,
    *,
    cpus_per_worker: float = 0.0,
    choose: Choice = the_best,
    berths: Berths | None = None,
) -> Launcher:
    """Workers on the nodes of a cluster, one launcher for all that a program has there.

    `choose` may send a worker to another node than the emptiest, and change what it is told. `berths` are those of
    whoever has started something on the nodes already.
    """
    dock = _Dock(cluster, on_line, cpus_per_worker, choose, berths or Berths(SystemClock()))

    async def launch(spec: WorkerSpec) -> RunningWorker:
        return ClusterWorker(dock, spec.with_keys())

    return launch


class ClusterWorker:
    """A worker on some node, from before it is started until it is gone."""

    def __init__(self, dock: "_Dock", spec: WorkerSpec) -> None:
        self.worker_id = f"{spec.index}@a node to be chosen"
        self.index = spec.index
        self.reading = Reading()
        self._dock = dock
        self._drain_seconds = spec.drain_seconds + END_SECONDS
        self._cancelled_as = WorkerExit(failed=True, description="was killed")
        self._group: WorkerGroup[RolloutWorker] | None = None
        self._task = asyncio.create_task(self._live(spec), name=f"worker {spec.index} on the cluster")

    async def wait(self) -> WorkerExit:
        """`WorkersFailed` if it cannot be started anywhere."""
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return self._cancelled_as
        return self._task.result()

    def drain(self) -> None:
        if self._group is None:
            self._task.cancel()
            return
        with suppress(ClusterError):  # it has just ended
            self._group.drain()
        late = f"was killed: nothing was heard of it within {self._drain_seconds:g} s of asking it to end"
        exit_late = WorkerExit(failed=True, description=late, late=True)
        timer = asyncio.get_running_loop().call_later(self._drain_seconds, self._cancel, exit_late)
        self._task.add_done_callback(lambda _: timer.cancel())

    def kill(self) -> None:
        self._task.cancel()

    def recall(self, reason: str) -> None:
        self._cancel(WorkerExit(failed=True, description=f"was recalled: {reason}"))

    def _cancel(self, ended: WorkerExit) -> None:
        self._cancelled_as = ended
        self._task.cancel()

    async def answers(self) -> bool:
        if self._group is None:
            return False
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._group.is_there()
                return True
        return False

    async def _live(self, spec: WorkerSpec) -> WorkerExit:
        while True:
            berth, given = await self._dock.berth(spec)
            berth.occupant = self
            ended = await self._live_at(berth, given)
            if not isinstance(ended, StoreUnseen):
                return _exit_of(ended, berth.node)

    async def _live_at(self, berth: Berth, given: WorkerSpec) -> bytes | Exception:
        dock = self._dock
        group = RolloutWorker.create_group(dock.endpoint, str(Path.cwd()))
        ended: bytes | Exception | None = None
        try:
            ended = await self._work(group, berth, given)
            return ended
        finally:
            dock.berths.leave(berth, is_lost=is_loss(ended))
            try:
                if berth.is_up and ended is None:
                    await uninterrupted(_killed(group))
            finally:
                await close_group(group, waits=not is_loss(ended), seconds=0.0)

    async def _work(self, group: "WorkerGroup[RolloutWorker]", berth: Berth, spec: WorkerSpec) -> bytes | Exception:
        """The record of how it ended, or the error that ended it."""
        worker_id = await self._dock.started(self, group, berth, spec)
        if isinstance(worker_id, Exception):
            return worker_id
        self.worker_id = worker_id
        self._group = group
        (ended,) = await group.work().async_wait(return_exceptions=True)
        return cast("bytes | Exception", ended)


class _Dock:
    """What the workers of one launcher share."""

    def __init__(
        self, cluster: "Cluster", on_line: LineHandler, cpus_per_worker: float, choose: Choice, berths: Berths
    ) -> None:
        self.berths = berths
        self.endpoint = cluster.post.endpoint
        self._cluster = cluster
        self._on_line = on_line
        self._name = new_id("rollouts")  # groups of several programs may be on one Ray
        self._n_cpus = cpus_per_worker
        self._choose = choose
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._workers: WeakValueDictionary[str, ClusterWorker] = WeakValueDictionary()
        self._n_failed_starts: Counter[int] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        cluster.post.serve(SAID, partial(self._pass_on, self._hear_line))
        cluster.post.serve(USED, partial(self._pass_on, self._hear_usage))

    async def berth(self, spec: WorkerSpec) -> tuple[Berth, WorkerSpec]:
        """Where the worker goes; the place is its own until it leaves."""
        while True:
            nodes = await self._nodes_with_room(spec.index)
            if (chosen := await self._choose(spec, nodes)) is not None:
                node, given = chosen
                return self.berths.take(node, self._n_cpus), given
            await asyncio.sleep(LOOK_SECONDS)

    async def _nodes_with_room(self, index: int) -> list[NodeInfo]:
        """The nodes that have the CPUs, the best first; if none has, as soon as one does."""
        has_said = False
        while True:
            as_of = self.berths.now()
            nodes = await asyncio.to_thread(lambda: self._cluster.working_nodes)
            if found := self.berths.ranked(nodes, self._n_cpus, as_of=as_of):
                return found
            if not has_said:
                has_said = True
                most = max((node.n_cpus for node in nodes), default=0.0)
                room = f"{self._n_cpus:g} CPUs free; the largest has {most:g}" if nodes else "joined the cluster"
                self._on_line(f"⏳ Worker-{index} waits until a node has {room}")
            await self._until_there_may_be_room()

    async def _until_there_may_be_room(self) -> None:
        if self._cluster.engine.kind != "ray":
            await asyncio.sleep(LOOK_SECONDS)
            return
        from outrider.cluster.engines.ray.room import Demand  # noqa: PLC0415 Ray is an extra

        demand = Demand(self._n_cpus)
        try:
            await uninterrupted(asyncio.to_thread(demand.open))
            while not await asyncio.to_thread(demand.is_met):  # noqa: ASYNC110 Ray tells nobody
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await uninterrupted(asyncio.to_thread(demand.close))

    async def started(
        self, worker: ClusterWorker, group: "WorkerGroup[RolloutWorker]", berth: Berth, spec: WorkerSpec
    ) -> str | Exception:
        """Start the worker: the id that the store will know it by, or why it could not be started.

        `WorkersFailed` if that happens again and again to the same worker, whatever node it is sent to.
        """
        name = f"{self._name}-{spec.index}-{next(self._numbers)}"
        self._workers[f"{name}:0"] = worker
        place, env = OnNode(berth.node.name, berth.n_cpus), forwarded(os.environ, spec)
        launch = partial(group.launch, self._cluster, place, name, wait=False, env_vars=env)
        found: str | Exception
        try:
            async with self._turn(berth.node):
                await uninterrupted(asyncio.to_thread(launch))
                berth.asked_at = self.berths.now()
                (found,) = await group.is_there().async_wait(return_exceptions=True)
                if not isinstance(found, Exception):
                    await check_sight(group, berth.node, spec.store_url, self.berths, self._on_line)
                    berth.is_up = True
                    (found,) = await group.start(wire.to_private_record(spec)).async_wait(return_exceptions=True)
        except StoreUnseen as exc:
            return exc
        except ClusterError as exc:
            found = exc
        if not isinstance(found, Exception):
            del self._n_failed_starts[spec.index]
            return found
        self._n_failed_starts[spec.index] += 1
        if self._n_failed_starts[spec.index] == MAX_FAILED_STARTS:
            raise WorkersFailed(
                f"Worker-{spec.index} could not be started {MAX_FAILED_STARTS} times in a row, "
                f"at last on node {berth.node.ip}: {told(found)}"
            ) from found
        return found

    def _turn(self, node: NodeInfo) -> asyncio.Semaphore:
        """To be held while a worker starts there, which takes a CPU for seconds: half of them are left to rollouts."""
        return self._turns.setdefault(node.name, asyncio.Semaphore(max(1, int(node.n_cpus) // 2)))

    def _pass_on(self, hear: Callable[[str, Any], None], _: Link, head: Any, __: object) -> None:
        with suppress(RuntimeError):  # the command is over
            self._loop.call_soon_threadsafe(hear, *head)

    def _hear_line(self, address: str, line: str) -> None:
        if address in self._workers and line:
            self._on_line(line)

    def _hear_usage(self, address: str, record: bytes) -> None:
        if (worker := self._workers.get(address)) is not None:
            worker.reading = wire.from_record(record, Reading)


async def _killed(group: "WorkerGroup[RolloutWorker]") -> None:
    """Until the process of the worker is gone, if anybody says so."""
    with suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(RELEASE_SECONDS):
            await group.kill()


async def close_group(group: "WorkerGroup[Any]", *, waits: bool, seconds: float = RELEASE_SECONDS) -> None:
    """End what runs there, by force after `seconds`, and wait for that unless it is lost anyway."""
    closing = asyncio.get_running_loop().run_in_executor(None, partial(group.close, seconds))
    if waits:
        await uninterrupted(closing)
    else:
        closing.add_done_callback(_note)


def _exit_of(ended: bytes | Exception, node: NodeInfo) -> WorkerExit:
    if isinstance(ended, bytes):
        return wire.from_record(ended, WorkerExit)
    if is_loss(ended):
        return WorkerExit(failed=True, description=f"was lost on node {node.ip}: {told(ended)}")
    return WorkerExit(failed=True, description=f"failed on node {node.ip}: {told(ended)}")


def is_loss(ended: object) -> bool:
    """Whether the worker or its node is gone, rather than that its code failed."""
    return isinstance(ended, ClusterError) and not isinstance(ended, WorkerFailed)


def told(error: Exception) -> str:
    """What happened; with the traceback over there, if it was an exception of the worker's own."""
    if isinstance(error, WorkerDied):
        return error.cause
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def forwarded(variables: Mapping[str, str], spec: WorkerSpec) -> dict[str, str]:
    """The variables that are set in a worker on a node: what models and tools need, and what is passed to agents."""
    handed = {*spec.pass_env, *tool_variables(spec.episodes)}
    wanted = {name: value for name, value in variables.items() if name in handed or name.startswith(FORWARDED)}
    return {name: value for name, value in wanted.items() if name not in spec.withheld}


def _note(closing: "asyncio.Future[None]") -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        _log.warning("cannot clear up after a worker that is gone: %s", error)

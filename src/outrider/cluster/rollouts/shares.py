"""The machines of a run on a cluster: several pools, each on one node and for the workers there.

Invariants:
- The shares together have the machines that the run was given. Worker i borrows from share i modulo their number, on
  the node where the pool of that share is.
- A pool that is lost is started again under its name: on the same node if that is there, where its workers wait for it
  and its machines are taken over; else on the best of the others, and its workers follow.
- A share that cannot be set up again is tried for as long as another has machines; when none has, the run ends.
- When the block of `open_shares` ends, the pools are gone, and with them their machines wherever they could be reached.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from outrider.cluster.info import NodeInfo
from outrider.cluster.post import Link
from outrider.cluster.rollouts.berths import Berth, Berths, OnNode
from outrider.cluster.rollouts.counting import of_the_gone, summed
from outrider.cluster.rollouts.launcher import close_group, is_loss, told
from outrider.cluster.rollouts.node_pool import NodePool
from outrider.cluster.rollouts.reach import StoreUnseen, check_sight
from outrider.cluster.rollouts.voice import POOL_COUNTED, POOL_SAID
from outrider.core import wire
from outrider.core.clock import SystemClock
from outrider.core.errors import ClusterError, InvalidInput, MachineError
from outrider.core.ids import new_id
from outrider.core.tasks import uninterrupted
from outrider.pool import PoolStatistics
from outrider.pool.spec import LISTED, MachineSpec
from outrider.runner.keys import keys_of_pools
from outrider.runner.machines import SupplySpec, own_pool
from outrider.runner.worker import LineHandler, WorkerSpec
from outrider.store import StoreUrl

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.group import WorkerGroup

MAX_FAILED_STARTS = 5
HEALTHY_SECONDS = 5.0
"""A pool that lived this long was not broken from the start."""
PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
END_SECONDS = 20.0
"""How much longer than its machines the process of a pool may take to end."""


def divided(supply: SupplySpec, n_shares: int) -> list[SupplySpec]:
    """The machines in so many parts, each with a pool of its own; the first are larger by one if it does not fit."""
    least, n_larger = divmod(supply.pool.n_machines, n_shares)
    if not least:
        raise InvalidInput(f"{supply.pool.n_machines} machines cannot be divided among {n_shares} pools")
    return [
        structs.replace(
            supply,
            machines=_part_of(supply.machines, index, n_shares),
            pool=structs.replace(
                supply.pool, name=own_pool(supply.pool.name, index), n_machines=least + (index < n_larger)
            ),
        )
        for index in range(n_shares)
    ]


def _part_of(machines: MachineSpec, index: int, n_shares: int) -> MachineSpec:
    """Machines on a list are dealt out: pools on two nodes would not know of each other that they have the same one."""
    if machines.provider != LISTED or "machines" not in machines.settings:
        return machines
    own = machines.settings["machines"][index::n_shares]
    return structs.replace(machines, settings={**machines.settings, "machines": own})


@asynccontextmanager
async def open_shares(
    cluster: "Cluster", supply: SupplySpec, store_url: StoreUrl, *, n_shares: int, on_line: LineHandler
) -> AsyncIterator["Shares"]:
    """The machines on the nodes of the cluster, once each share has its first.

    Raises `InvalidInput` or `MachineError`, naming the node, if one of them cannot have any.
    """
    shares = Shares(cluster, divided(supply, n_shares), store_url, on_line)
    try:
        await shares.start()
        yield shares
    finally:
        await uninterrupted(shares.close())


class Shares:
    """All shares of one run. Give `choose` and `berths` to the launcher of its workers."""

    def __init__(
        self, cluster: "Cluster", supplies: Sequence[SupplySpec], store_url: StoreUrl, on_line: LineHandler
    ) -> None:
        self.berths = Berths(SystemClock())
        self.cluster = cluster
        self.store_url = store_url
        self.say = on_line
        self.name = new_id("machines")  # groups of several programs may be on one Ray
        self.numbers = count()
        self.is_closing = False
        self.speakers: dict[str, Share] = {}
        self._loop = asyncio.get_running_loop()
        self._shares = [Share(self, index, supply) for index, supply in enumerate(supplies)]
        self._tasks: list[asyncio.Task[None]] = []
        cluster.post.serve(POOL_SAID, partial(self._pass_on, self._hear))
        cluster.post.serve(POOL_COUNTED, partial(self._pass_on, self._count))

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the pools."""
        return tuple(share.supply.pool.name for share in self._shares)

    async def start(self) -> None:
        """Returns when each share has its first machine."""
        for share in self._shares:  # in order, so that a share comes to the node where a run before this one had it
            keeping = share.keep(await self.best_berth())
            task = asyncio.create_task(keeping, name=f"keep pool {share.supply.pool.name}")
            task.add_done_callback(self._note_failure)
            self._tasks.append(task)
        for share in self._shares:
            await share.whereabouts()

    async def choose(self, spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec] | None:
        """A worker goes where the pool of its share is, as soon as there is one."""
        share = self._shares[spec.index % len(self._shares)]
        node = await share.whereabouts()
        if node.name not in {one.name for one in nodes}:
            return None
        return node, replace(spec, episodes=structs.replace(spec.episodes, supply=share.supply))

    def statistics(self) -> PoolStatistics:
        """Of all pools, those that were lost included, as far as was heard of them."""
        return summed([part for share in self._shares for part in share.counted])

    async def close(self) -> None:
        """End all machines, then the pools. Bounded."""
        self.is_closing = True
        for share, task in zip(self._shares, self._tasks, strict=False):
            if not share.stop():
                task.cancel()
        if self._tasks:
            config = self._shares[0].supply.pool
            seconds = config.close_seconds + 2 * config.destroy_seconds + END_SECONDS
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.wait(self._tasks)

    def lends(self) -> bool:
        """Whether any share has machines."""
        return any(share.is_up for share in self._shares)

    def recall(self, share: "Share | None", reason: str, *, but_on: NodeInfo | None = None) -> None:
        """End the workers of this share, or of all; those on one node may stay."""
        for berth in self.berths.taken:
            worker = berth.occupant
            if worker is None or (but_on is not None and berth.node.name == but_on.name):
                continue
            if share is None or self._shares[worker.index % len(self._shares)] is share:
                worker.recall(reason)

    async def best_berth(self) -> Berth:
        as_of = self.berths.now()
        nodes = await asyncio.to_thread(lambda: self.cluster.working_nodes)
        ranked = self.berths.ranked(nodes, 0.0, as_of=as_of)
        if not ranked:
            raise ClusterError("the cluster has no node any more")
        return self.berths.take(ranked[0], 0.0)

    async def answers(self, node: NodeInfo) -> bool:
        """Whether a worker of ours on that node says that it is there."""
        workers = [berth.occupant for berth in self.berths.taken if berth.node.name == node.name]
        return any(await asyncio.gather(*(worker.answers() for worker in workers if worker is not None)))

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        for share in self._shares:
            share.give_up(error)
        self.recall(None, "there are no machines any more")

    def _pass_on(self, hear: Callable[[str, Any], None], _: Link, head: Any, __: object) -> None:
        with suppress(RuntimeError):  # the command is over
            self._loop.call_soon_threadsafe(hear, *head)

    def _hear(self, address: str, line: str) -> None:
        if address in self.speakers and line:
            self.say(line)

    def _count(self, address: str, record: bytes) -> None:
        if (share := self.speakers.get(address)) is not None:
            share.count(wire.from_record(record, PoolStatistics))


class Share:
    """A part of the machines, and the pool that has them now, wherever that is."""

    def __init__(self, shares: Shares, index: int, supply: SupplySpec) -> None:
        self.supply = supply
        self._shares = shares
        self._index = index
        self._now: PoolStatistics | None = None
        self._before: list[PoolStatistics] = []
        self._at: NodeInfo | None = None
        self._group: WorkerGroup[NodePool] | None = None
        self._found: asyncio.Future[NodeInfo] = asyncio.get_running_loop().create_future()

    @property
    def is_up(self) -> bool:
        return self._found.done() and self._found.exception() is None

    @property
    def counted(self) -> list[PoolStatistics]:
        return [*self._before, *([] if self._now is None else [self._now])]

    async def whereabouts(self) -> NodeInfo:
        """Where the pool is, as soon as it has a machine. Raises what ended the last try if no other will be made."""
        return await asyncio.shield(self._found)

    def give_up(self, error: BaseException) -> None:
        if self._found.done():
            self._found = asyncio.get_running_loop().create_future()
        self._found.set_exception(error)
        self._found.exception()  # looked at, whether or not a worker waits

    def stop(self) -> bool:
        """Let the pool end its machines; whether there is one."""
        if self._group is None:
            return False
        with suppress(ClusterError):  # it has just gone
            self._group.stop()
        return True

    def count(self, counted: PoolStatistics) -> None:
        """The pool has counted this so far; it tells so from its first machine on."""
        self._now = counted
        if self._at is not None and not self._found.done():
            self._shares.say(f"pool {self.supply.pool.name} on node {self._at.ip} has its first machine")
            self._found.set_result(self._at)
            self._shares.recall(self, f"its machines are on node {self._at.ip} now", but_on=self._at)

    async def keep(self, berth: Berth) -> None:
        """Have a pool, one after the other and the first one there, until the shares are closed."""
        shares, n_failed, has_lent = self._shares, 0, False
        while True:
            began, ended = shares.berths.now(), await self._live(berth)
            if isinstance(ended, bytes):
                self._now = wire.from_record(ended, PoolStatistics)
            if shares.is_closing:
                return
            if isinstance(ended, StoreUnseen):
                berth = await shares.best_berth()
                continue
            error = MachineError("it has ended by itself") if isinstance(ended, bytes) else ended
            lent, node = self._lose(), berth.node
            has_lent = has_lent or lent
            is_healthy = lent and shares.berths.now() - began > HEALTHY_SECONDS
            n_failed = 0 if is_healthy else n_failed + 1
            if not (has_lent or is_loss(error)) or (n_failed >= MAX_FAILED_STARTS and not shares.lends()):
                raise _of_node(error, node, self.supply.pool.name)
            shares.say(
                f"💀 pool {self.supply.pool.name} on node {node.ip} is lost: {_cause(error)}; it is set up again"
            )
            if not lent:  # it may take long: others do the work of those who wait for it
                shares.recall(self, "its machines are lost")
            if n_failed > 1:
                await asyncio.sleep(min(PAUSE_SECONDS * 2**n_failed, MAX_PAUSE_SECONDS))
            stays = lent and await shares.answers(node)
            berth = shares.berths.take(node, 0.0) if stays else await shares.best_berth()

    async def _live(self, berth: Berth) -> bytes | Exception:
        """The record of what the pool has counted, if it was stopped; else the error that ended it."""
        shares, node, pool = self._shares, berth.node, self.supply.pool
        shares.say(
            f"{pool.n_machines} machines of {self.supply.machines.provider} are being made on node {node.ip}, "
            f"pool {pool.name}"
        )
        name = f"{shares.name}-{self._index}-{next(shares.numbers)}"
        group = NodePool.create_group(shares.cluster.post.endpoint, str(Path.cwd()))
        shares.speakers[f"{name}:0"] = self
        self._at = node
        ended: bytes | Exception | None = None
        try:
            ended = await self._serve(group, name, node)
        except (ClusterError, StoreUnseen) as exc:
            ended = exc
        finally:
            self._group = None
            del shares.speakers[f"{name}:0"]
            shares.berths.leave(berth, is_lost=isinstance(ended, Exception))
            await close_group(group, waits=not is_loss(ended))
        return ended

    async def _serve(self, group: "WorkerGroup[NodePool]", name: str, node: NodeInfo) -> bytes | Exception:
        place = OnNode(node.name, 0.0)
        launch = partial(group.launch, self._shares.cluster, place, name, wait=False)
        await uninterrupted(asyncio.to_thread(launch))
        await check_sight(group, node, self._shares.store_url, self._shares.berths, self._shares.say)
        keys = wire.to_private_record(keys_of_pools())
        serving = group.serve(wire.to_private_record(self.supply), self._shares.store_url.reveal(), keys)
        self._group = group
        (ended,) = await serving.async_wait(return_exceptions=True)
        return cast("bytes | Exception", ended)

    def _lose(self) -> bool:
        """The pool is gone; whether it had machines."""
        if self._now is not None:
            self._before.append(of_the_gone(self._now))
            self._now = None
        lent = self._found.done()
        if lent:
            self._found = asyncio.get_running_loop().create_future()
        return lent


def _of_node(error: Exception, node: NodeInfo, pool: str) -> Exception:
    """The error, saying where it happened."""
    text = f"pool {pool} on node {node.ip}: {_cause(error)}"
    return InvalidInput(text) if isinstance(error, InvalidInput) else MachineError(text, stage="pool.create")


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidInput | MachineError) else told(error)

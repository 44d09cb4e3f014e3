"""The workers of a group as their callers see them: those that this process started, or those that somebody else did.

Invariants:
- The workers that a crew started are gone when it is closed, and the group's name is free.
- A worker that dies is started again as often as the group allows; calls that it had not answered fail.
"""

import asyncio
import logging
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cluster.address import WorkerAddress
from outrider.cluster.calls import Call, Flight, Member
from outrider.cluster.directory import CLOSED, DirectoryClient
from outrider.cluster.engines.posted import PostCaller
from outrider.cluster.engines.protocol import Engine, SeatSpec, Token
from outrider.cluster.failure import Failure
from outrider.cluster.info import WorkerInfo
from outrider.cluster.master import forget
from outrider.cluster.placement.place import Placement
from outrider.cluster.post import Endpoint
from outrider.cluster.scatter import dealt, is_scattered
from outrider.core.errors import CallLate, ClusterError

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

STRAGGLER_SECONDS = 30.0
RELEASE_SECONDS = 3.0
ASK_SECONDS = 10.0
EPITAPH_SECONDS = 0.5
LATE_SECONDS = 2.0
"""Extra grace over the launcher's start timeout, after which the group gives up on a worker that does not start."""


class Roster:
    """The workers of a group by rank, and the calls of them."""

    def __init__(self, cluster: "Cluster", name: str, flight: Flight, members: list[Member]) -> None:
        self.name = name
        self._cluster = cluster
        self.members = members
        self._flight = flight
        self._is_closed = False

    def call(self, ranks: Sequence[int], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[Any]:
        """Call the method on these ranks, without waiting."""
        if self._is_closed:
            raise ClusterError(f"group {self.name!r} is closed")
        members = [self.members[rank] for rank in ranks]
        return Call(self._flight, method, members, self._tokens(members, method, args, kwargs))

    def infos(self, seconds: float) -> list[WorkerInfo]:
        """What each worker is, by rank; those that are being started are waited for."""

        async def ask() -> list[WorkerInfo]:
            addresses = [WorkerAddress.from_name(member.address) for member in self.members]
            return list(await asyncio.gather(*map(self._cluster.directory.info, addresses)))

        try:
            return self._cluster.post.run(ask(), timeout=seconds)
        except TimeoutError:
            raise CallLate(f"group {self.name!r}: not all workers were up within {seconds:g} s") from None

    def ready(self, timeout: float | None) -> None:
        """Wait until all are up."""
        self.infos(ASK_SECONDS if timeout is None else timeout)

    def close(self, seconds: float = RELEASE_SECONDS) -> None:  # noqa: ARG002 these are somebody else's
        self._is_closed = True

    def _tokens(
        self, members: Sequence[Member], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Token]:
        caller = self._flight.caller
        if not is_scattered(args, kwargs):
            return caller.call([member.seat for member in members], method, args, kwargs)
        hands = dealt(f"{method}()", args, kwargs, len(members))
        tokens: list[Token] = []
        try:
            for member, (own_args, own_kwargs) in zip(members, hands, strict=True):
                tokens += caller.call([member.seat], method, own_args, own_kwargs)
        except BaseException:
            for token in tokens:
                caller.cancel(token)
            raise
        return tokens


class _Elsewhere:
    """A worker that another process started: the directory knows where it is, also after a restart."""

    def __init__(self, address: WorkerAddress, directory: DirectoryClient) -> None:
        self.address = address.get_name()
        self._address = address
        self._directory = directory

    async def locate(self) -> Endpoint:
        return await self._directory.find(self._address)

    async def epitaph(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(EPITAPH_SECONDS):
                return await self._directory.until_dead(self._address)
        return "the connection to it ended"


def attached(cluster: "Cluster", name: str) -> Roster:
    """The workers of a group that was launched anywhere in the cluster."""
    infos = cluster.post.run(cluster.directory.group(name), timeout=ASK_SECONDS)
    addresses = [WorkerAddress.child_of(name, rank) for rank in range(len(infos))]
    members = [Member(str(address), address.rank, _Elsewhere(address, cluster.directory)) for address in addresses]
    flight = Flight(name, PostCaller(cluster.post), cluster.post.loop, STRAGGLER_SECONDS, cluster.timeout_seconds)
    return Roster(cluster, name, flight, members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Muster:
    """What a group is started with. `workers` are the pickles of (class, args, kwargs) by rank."""

    name: str
    places: Sequence[Placement]
    workers: Sequence[bytes]
    env: Mapping[str, str]
    methods: tuple[str, ...]
    is_async: bool
    max_concurrency: int | None
    start_seconds: float
    restarts: int
    straggler_seconds: float


class Crew(Roster):
    """The workers that this process started. Closed by the group, or by the cluster that it was launched on."""

    def __init__(self, cluster: "Cluster", muster: Muster) -> None:
        engine = cluster.engine
        flight = Flight(muster.name, engine, cluster.post.loop, muster.straggler_seconds, cluster.timeout_seconds)
        super().__init__(cluster, muster.name, flight, [])
        self._engine: Engine = engine
        self._muster = muster
        self._id = secrets.token_hex(8)
        self._description = engine.describe()
        self._node_ips = {node.node_id: node.ip for node in engine.nodes()}
        self._tending: Future[None] | None = None
        self._closing = threading.Lock()

    def start(self) -> None:
        """Have all of them started, without waiting for it."""
        cluster, muster = self._cluster, self._muster
        cluster.post.run(cluster.directory.declare(self.name, len(muster.places)), timeout=ASK_SECONDS)
        cluster.adopt(self)
        try:
            self.members.extend(self._recruit(place) for place in muster.places)
            self._tending = cluster.post.submit(self._tend_all())
        except BaseException:
            self.close(0.0)
            raise

    def ready(self, timeout: float | None) -> None:
        """Wait until all are up. If one cannot be started all are ended, and its own error is raised at once."""
        opening = {self._engine.future(member.seat.opened): member for member in self.members}
        try:
            outcomes = (future.result() for future in as_completed(opening, timeout))
            failure = next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)
        except TimeoutError:
            late = ", ".join(str(member.rank) for future, member in opening.items() if not future.done())
            self.close(0.0)
            raise CallLate(
                f"group {self.name!r}: rank {late} was not up within {timeout:g} s; its __init__ takes longer, or "
                "waits for a worker or a resource that does not come (start_seconds is the limit)"
            ) from None
        except BaseException:
            self.close(0.0)
            raise
        if failure is not None:
            self.close(0.0)
            raise failure.exception()

    def close(self, seconds: float = RELEASE_SECONDS) -> None:
        """End all workers, by force after `seconds`. Idempotent."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        if self._tending is not None:
            self._tending.cancel()
        for member in self.members:
            self._flight.lose(member, CLOSED)
        with suppress(ClusterError, TimeoutError, CancelledError):
            self._cluster.post.run(self._dismiss(), timeout=ASK_SECONDS)
        if self.members:
            with ThreadPoolExecutor(min(32, len(self.members)), thread_name_prefix=f"close {self.name}") as threads:
                list(threads.map(lambda member: member.seat.release(seconds), self.members))
        self._cluster.disown(self)

    async def _dismiss(self) -> None:
        await self._cluster.directory.dismiss(self.name)
        await forget(self._cluster.post, self._cluster.directory.endpoint, self._id)

    def _recruit(self, place: Placement) -> Member:
        muster = self._muster
        address = WorkerAddress.child_of(self.name, place.rank).get_name()
        spec = SeatSpec(
            address=address,
            group_id=self._id,
            seat_id=secrets.token_hex(8),
            rank=place.rank,
            world_size=len(muster.places),
            node_id=place.node_id,
            node_ip=self._node_ips[place.node_id],
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            gpus=place.gpus,
            sets_visible_devices=self._engine.sets_visible_devices,
            env=dict(muster.env),
            path=[str(Path(place).absolute()) for place in sys.path],
            worker=muster.workers[place.rank],
            directory=self._cluster.directory.endpoint,
            key=self._cluster.post.key,
            engine=self._description,
            methods=muster.methods,
            is_async=muster.is_async,
            max_concurrency=muster.max_concurrency,
            start_seconds=muster.start_seconds,
        )
        return Member(address, place.rank, self._cluster.allocate(spec, place))

    def _replace(self, place: Placement) -> None:
        """Start the worker anew, unless the group is over: then nobody would end it."""
        with self._closing:
            if not self._is_closed:
                self.members[place.rank] = self._recruit(place)

    async def _tend_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for place in self._muster.places:
                tasks.create_task(self._tend(place), name=f"tend {self.name}:{place.rank}")

    async def _tend(self, place: Placement) -> None:
        """Wait for the worker's death, tell it to the calls, and start it again as often as may be."""
        with suppress(ClusterError):  # the program that started the cluster is gone, and this one ends with it
            for left in range(self._muster.restarts, -1, -1):
                member = self.members[place.rank]
                cause = await self._until_dead(member)
                self._flight.lose(member, cause)
                _log.warning("worker %s is gone: %s; restarts left: %d", member.address, cause, left)
                await asyncio.to_thread(member.seat.kill)
                await self._mourn(member, cause)
                if left:
                    await self._cluster.directory.expect(WorkerAddress.from_name(member.address))
                    await asyncio.to_thread(self._replace, place)

    async def _until_dead(self, member: Member) -> str:
        opening = asyncio.wrap_future(self._engine.future(member.seat.opened))
        try:
            async with asyncio.timeout(self._muster.start_seconds + LATE_SECONDS):
                outcome = await asyncio.shield(opening)
        except TimeoutError:
            return f"it was not up within {self._muster.start_seconds:g} s"
        if isinstance(outcome, Failure):
            return f"it could not be started: {outcome.summary}"
        cause = await self._cluster.directory.until_dead(WorkerAddress.from_name(member.address))
        return await asyncio.to_thread(member.seat.why_ended, EPITAPH_SECONDS) or cause

    async def _mourn(self, member: Member, cause: str) -> None:
        """Tell the directory why, and that what the worker had started is over."""
        directory = self._cluster.directory
        await directory.gone(WorkerAddress.from_name(member.address), cause)
        await directory.dismiss(member.address)

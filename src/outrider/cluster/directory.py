"""Who is where: the groups that were declared, and the workers of them that have come, are alive or are gone.

The directory is a service of the driver's post. A worker joins over a link that it keeps; when that link ends, the
worker is dead, and whoever waits for it is told at once.

Invariants:
- A name stands for one group at a time; a group's name is free again when the group is dismissed.
- A question about a worker ends as soon as its answer is certain: at once for a dead worker or a rank that the group
  does not have, after `patience` for a group that nobody declares. Only a worker that is being started is waited for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import msgspec

from outrider.cluster.address import WorkerAddress
from outrider.cluster.info import WorkerInfo
from outrider.cluster.post import Endpoint, Link, Message, Post
from outrider.core.decoding import convert
from outrider.core.errors import ClusterError, InvalidInput, PeerLost, UnknownWorker, WorkerDied

T = TypeVar("T")

PATIENCE_SECONDS = 3.0
ENDED = "its process ended or its node is gone"
CLOSED = "its group was closed"
N_REMEMBERED = 1000
"""So many closed groups are told apart from groups that never were."""


@dataclass(slots=True)
class _Member:
    info: WorkerInfo
    endpoint: Endpoint
    link: Link
    cause: str | None = None


@dataclass(slots=True)
class _Group:
    world_size: int
    members: dict[int, _Member] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def cause(self, rank: int) -> str | None:
        """Why this worker is gone; None: it lives, or is being started."""
        member = self.members.get(rank)
        return self.failures.get(rank) if member is None else member.cause


class Directory:
    """Installs itself on the post. Lives on that post's event loop."""

    def __init__(self, post: Post) -> None:
        self._groups: dict[str, _Group] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._bells: dict[str, asyncio.Event] = {}
        handlers: dict[str, Callable[[Link, Any], Any]] = {
            "declare": self._declare,
            "join": self._join,
            "find": self._find,
            "until_dead": self._until_dead,
            "group": self._group,
            "gone": self._gone,
            "expect": self._expect,
            "dismiss": self._dismiss,
        }
        for name, handler in handlers.items():
            post.serve(f"directory.{name}", partial(_without_parts, handler))

    def _declare(self, _: Link, head: Any) -> None:
        name, world_size = head
        if name in self._groups:
            raise InvalidInput(f"there is a group {name!r} already; close it, or give this one another name")
        self._reopen(name)
        self._groups[name] = _Group(world_size)
        self._ring(name)

    def _join(self, link: Link, head: Any) -> None:
        info = convert(head, WorkerInfo)
        if link.endpoint is None or link.name != info.address.get_name():
            raise InvalidInput(f"{link.name} cannot join as {info.address.get_name()}")
        name, rank = split(info.address)
        group = self._groups.get(name)
        if group is None:
            raise WorkerDied(info.address.get_name(), CLOSED)
        if rank in group.members and group.members[rank].cause is None:
            raise InvalidInput(f"there is a worker {info.address.get_name()} already")
        member = group.members[rank] = _Member(info, link.endpoint, link)
        group.failures.pop(rank, None)
        link.on_lost.append(lambda: self._end(info.address, member, ENDED))
        self._ring(info.address.get_name())

    def _gone(self, _: Link, head: Any) -> None:
        """Who started a worker tells that it is gone, or never came."""
        text, cause = head
        name, rank = split(WorkerAddress.from_name(text))
        group = self._groups.get(name)
        if group is None:
            return
        if (member := group.members.get(rank)) is None:
            group.failures[rank] = cause
            self._ring(text)
        elif member.cause in {None, ENDED}:
            member.cause = cause
            self._ring(text)

    def _expect(self, _: Link, head: Any) -> None:
        """A worker that is gone is being started once more: who asks for it waits again."""
        name, rank = split(WorkerAddress.from_name(head))
        if (group := self._groups.get(name)) is not None and group.cause(rank) is not None:
            group.members.pop(rank, None)
            group.failures.pop(rank, None)
            self._reopen(head)

    def _reopen(self, name: str) -> None:
        """A group or worker of this name is coming: it, and what it starts, is no longer known as closed."""
        for closed in [closed for closed in self._closed if closed == name or closed.startswith(f"{name}:")]:
            del self._closed[closed]

    def _dismiss(self, _: Link, head: Any) -> None:
        """The groups that its workers have started are over with it."""
        for name in [name for name in self._groups if name == head or name.startswith(f"{head}:")]:
            self._close(name, self._groups.pop(name))

    def _close(self, name: str, group: _Group) -> None:
        self._closed[name] = None
        while len(self._closed) > N_REMEMBERED:
            self._closed.popitem(last=False)
        for member in group.members.values():
            self._end(member.info.address, member, CLOSED)
        for rank in range(group.world_size):
            self._ring(f"{name}:{rank}")

    def _end(self, address: WorkerAddress, member: _Member, cause: str) -> None:
        if member.cause is None:
            member.cause = cause
            self._ring(address.get_name())

    async def _find(self, _: Link, head: Any) -> Message:
        text, patience = head
        member = await self._member(WorkerAddress.from_name(text), patience)
        return Message([msgspec.to_builtins(member.info), msgspec.to_builtins(member.endpoint)])

    async def _member(self, address: WorkerAddress, patience: float) -> _Member:
        """The living worker of this address, once it has come."""
        name, rank = split(address)
        while True:
            group = await self._declared(name, patience)
            if not 0 <= rank < group.world_size:
                raise UnknownWorker(f"{name} has workers 0 to {group.world_size - 1}, and no {rank}")
            if (cause := group.cause(rank)) is not None:
                raise WorkerDied(address.get_name(), cause)
            if (member := group.members.get(rank)) is not None:
                return member
            await self._bell(address.get_name()).wait()

    async def _declared(self, name: str, patience: float) -> _Group:
        try:
            async with asyncio.timeout(patience):
                while name not in self._groups:
                    if name in self._closed:
                        raise WorkerDied(name, CLOSED)
                    await self._bell(name).wait()
        except TimeoutError:
            raise UnknownWorker(self._unknown(name)) from None
        return self._groups[name]

    def _unknown(self, name: str) -> str:
        near = get_close_matches(name, self._groups, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(self._groups)) or 'none'}"
        return f"no group {name!r} was started{hint}"

    async def _until_dead(self, _: Link, head: Any) -> Message:
        text, patience = head
        address = WorkerAddress.from_name(text)
        name, rank = split(address)
        try:
            member = await self._member(address, patience)
        except WorkerDied as exc:
            return Message(exc.cause)
        while member.cause is None:
            await self._bell(text).wait()
        group = self._groups.get(name)
        return Message(member.cause if group is None else group.cause(rank) or member.cause)

    async def _group(self, _: Link, head: Any) -> Message:
        name, patience = head
        group = await self._declared(name, patience)
        members = [group.members.get(rank) for rank in range(group.world_size)]
        return Message([None if one is None else msgspec.to_builtins(one.info) for one in members])

    def _bell(self, name: str) -> asyncio.Event:
        """Rings once, at the next change of what has this name."""
        return self._bells.setdefault(name, asyncio.Event())

    def _ring(self, name: str) -> None:
        if (bell := self._bells.pop(name, None)) is not None:
            bell.set()


class DirectoryClient:
    """Asks the directory of a cluster, over one link. Lives on the post's event loop."""

    def __init__(self, post: Post, endpoint: Endpoint) -> None:
        self._post = post
        self.endpoint = endpoint

    async def declare(self, group: str, world_size: int) -> None:
        """Say that these workers are being started. `InvalidInput` if there is a group of that name."""
        await self._ask("declare", (group, world_size))

    async def join(self, info: WorkerInfo) -> None:
        """Say that this process is that worker, for as long as it lives. It is found where its post listens."""
        await self._ask("join", msgspec.to_builtins(info))

    async def find(self, address: WorkerAddress, *, patience: float = PATIENCE_SECONDS) -> Endpoint:
        """Where the worker listens; waits for one that is being started."""
        answer = await self._ask("find", (address.get_name(), patience))
        return convert(answer.head[1], Endpoint)

    async def info(self, address: WorkerAddress, *, patience: float = PATIENCE_SECONDS) -> WorkerInfo:
        """What the worker is; waits for one that is being started."""
        answer = await self._ask("find", (address.get_name(), patience))
        return convert(answer.head[0], WorkerInfo)

    async def until_dead(self, address: WorkerAddress, *, patience: float = PATIENCE_SECONDS) -> str:
        """Why the worker is gone, as soon as it is."""
        answer = await self._ask("until_dead", (address.get_name(), patience))
        return str(answer.head)

    async def group(self, name: str, *, patience: float = PATIENCE_SECONDS) -> tuple[WorkerInfo | None, ...]:
        """The workers of a group by rank; None for one that has not come yet."""
        answer = await self._ask("group", (name, patience))
        return convert(answer.head, tuple[WorkerInfo | None, ...])

    async def gone(self, address: WorkerAddress, cause: str) -> None:
        """Say that a worker is gone or never came, and why."""
        await self._ask("gone", (address.get_name(), cause))

    async def expect(self, address: WorkerAddress) -> None:
        """Say that a worker that is gone is being started once more."""
        await self._ask("expect", address.get_name())

    async def dismiss(self, group: str) -> None:
        """The group is over, and its name free."""
        await self._ask("dismiss", group)

    async def _ask(self, what: str, head: Any) -> Message:
        try:
            link = await self._post.link(self.endpoint)
            return await link.ask(f"directory.{what}", head)
        except PeerLost as exc:
            raise ClusterError("the program that started this cluster is gone") from exc


def _without_parts(handler: Callable[[Link, Any], Any], link: Link, head: Any, _: tuple[memoryview, ...]) -> Any:
    return handler(link, head)


def split(address: WorkerAddress) -> tuple[str, int]:
    """The name of the group that this worker belongs to (its parent's address, for a child), and its rank in it."""
    name, _, rank = address.get_name().rpartition(":")
    if not name:
        raise InvalidInput(f"{address.get_name()!r} is the name of a group; a worker's address ends in its rank")
    return name, int(rank)

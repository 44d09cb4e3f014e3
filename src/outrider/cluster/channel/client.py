"""The user's side of a channel: one line to each channel's process, shared by all threads and coroutines of this one.

Invariants:
- Requests go out in the order in which they were made, those made while the loop was busy together in one frame.
- Every request ends: with its outcome, at its deadline, or with `ChannelLost` when the channel's process is gone.
- An item that comes for a request that was given up goes back to the channel.
- Puts that the channel has not taken in yet hold at most `WINDOW_BYTES` there (or one item); the rest wait here.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from outrider.cluster.channel.frames import (
    ANSWERS,
    FRAME_BYTES,
    FRAME_PARTS,
    ITEM_COST,
    MORE,
    REQUESTS,
    Content,
    Op,
    declared,
    n_bytes,
    received,
)
from outrider.cluster.channel.queues import End
from outrider.cluster.channel.shared import Shared, UnreadableItem, can_share
from outrider.cluster.post import Endpoint, Link, Part, Post
from outrider.core.errors import CallLate, ChannelClosed, ChannelEmpty, ChannelError, ChannelFull, ChannelLost, PeerLost

WINDOW_BYTES = 8 << 20

GRACE_SECONDS = 1.0
"""How long after a deadline the channel may take to say which way a request ended."""


class Request(Future[Any]):
    """One operation on its way, and its outcome. Cancelling it gives it up in the channel too.

    The result of a get is its haul, of other operations None.
    """

    def __init__(
        self,
        line: "Line",
        code: Op,
        *operation: Any,
        items: Sequence[Content] = (),
        timeout: float | None = None,
        end_at_timeout: End = End.LATE,
        takes_on_arrival: bool = False,
    ) -> None:
        super().__init__()
        self.line = line
        self.ticket = next(line.tickets)
        self.operation = [code, self.ticket, *operation]
        self.items = items
        self.cost = sum(map(n_bytes, items)) + ITEM_COST * len(items)
        self.timeout = timeout
        self.end_at_timeout = end_at_timeout
        self.takes_on_arrival = takes_on_arrival
        self.timer: asyncio.TimerHandle | None = None
        self.haul = Haul(line)

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self.line.post_operation([Op.GIVE_UP, self.ticket, End.LATE])
        return is_cancelled


class Haul:
    """Items that have come, still packed, and the leases on them: until one says otherwise, they may go back."""

    __slots__ = ("error", "items", "leases", "line")

    def __init__(self, line: "Line") -> None:
        self.line = line
        self.error: UnreadableItem | None = None
        self.items: list[Sequence[Part]] = []
        self.leases: list[int] = []

    def add(self, leases: list[int], places: Sequence[Any], parts: Iterator[Part]) -> None:
        self.leases += leases
        try:
            for content in received(places, parts):
                self.items.append(content.parts() if isinstance(content, Shared) else content)
        except UnreadableItem as exc:
            self.error = exc

    def take(self) -> None:
        """They are this process's now."""
        self._settle(Op.ACKNOWLEDGE)

    def give_back(self) -> None:
        self._settle(Op.GIVE_BACK)

    def _settle(self, code: Op) -> None:
        leases, self.leases = self.leases, []
        if leases:
            self.line.post_operation([code, 0, leases])


class Lines:
    """The lines of one process's post, by where they lead. It is the service that hears the answers on all of them."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.by_link: dict[Link, Line] = {}
        self._lines: dict[Endpoint, Line] = {}

    @classmethod
    def of(cls, post: Post) -> "Lines":
        """The one of this post."""
        lines = post.services.setdefault(ANSWERS, cls(post))
        assert isinstance(lines, cls)
        return lines

    def line(self, endpoint: Endpoint, name: str) -> "Line":
        return self._lines.setdefault(endpoint, Line(self, endpoint, name))

    def __call__(self, link: Link, head: Any, parts: tuple[memoryview, ...]) -> None:
        if (line := self.by_link.get(link)) is not None:
            line.answered(head, iter(parts))


class Line:
    """The line to one channel. `send` and `post_operation` may be called from any thread, the rest is on the loop."""

    def __init__(self, lines: Lines, endpoint: Endpoint, name: str) -> None:
        self.tickets = itertools.count(1)
        self.name = name
        self.is_near = can_share(lines.post.endpoint, endpoint)
        self.post = lines.post
        self.loop = lines.post.loop
        self._lines = lines
        self._endpoint = endpoint
        self._inbox: deque[Request | list[Any]] = deque()
        self._is_awake = False
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._sent: dict[int, Request] = {}
        self._held: deque[Request] = deque()
        self._n_not_entered = 0

    def send(self, request: Request) -> None:
        self._inbox.append(request)
        self._wake()

    def post_operation(self, operation: list[Any]) -> None:
        """Send an operation that has no outcome of its own."""
        self._inbox.append(operation)
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed
                self._fail("this process's post is closed")

    async def ask(self, service: str, head: Any) -> Any:
        """What the channel answers to a question that waits for nothing."""
        link = await self.post.link(self._endpoint)
        return (await link.ask(service, head)).head

    def loss(self, why: str) -> ChannelLost:
        return ChannelLost(f"channel {self.name!r} is gone, and what it held with it: its process ended ({why})")

    def _flush(self) -> None:
        self._is_awake = False
        if self._link is None:
            self._forget_leases()
            if self._opening is None and self._inbox:
                self._opening = self.loop.create_task(self._open(), name=f"connect to channel {self.name}")
            return
        frame = _Frame(self._link)
        while self._inbox:
            request = self._inbox.popleft()
            if isinstance(request, list):
                frame.add(request, ())
            elif not request.cancelled():
                self._start(request, frame)
        frame.send()

    def _forget_leases(self) -> None:
        """What concerns former leases and requests ended with the link."""
        for _ in range(len(self._inbox)):
            if isinstance(request := self._inbox.popleft(), Request):
                self._inbox.append(request)

    def _start(self, request: Request, frame: "_Frame") -> None:
        if request.cost and (self._held or not self._fits(request)):
            if not request.operation[2]:
                self._end(request, End.FULL)
                return
            self._held.append(request)
        else:
            self._stage(request, frame)
        if request.timeout is not None:
            request.timer = self.loop.call_later(request.timeout, self._expire, request)

    def _fits(self, request: Request) -> bool:
        return not self._n_not_entered or self._n_not_entered + request.cost <= WINDOW_BYTES

    def _stage(self, request: Request, frame: "_Frame") -> None:
        self._sent[request.ticket] = request
        self._n_not_entered += request.cost
        if request.items:
            places, parts = declared(request.items)
            frame.add([*request.operation, places], parts)
        else:
            frame.add(request.operation, ())

    def _go_on(self) -> None:
        """Send puts that were held, now that others have entered."""
        assert self._link is not None
        frame = _Frame(self._link)
        while self._held and (self._held[0].cancelled() or self._fits(self._held[0])):
            request = self._held.popleft()
            if not request.cancelled():
                self._stage(request, frame)
            elif request.timer is not None:
                request.timer.cancel()
        frame.send()

    def _expire(self, request: Request) -> None:
        """The deadline has passed: what the channel says now is the outcome, if it says something soon."""
        if request.ticket not in self._sent:
            self._held.remove(request)
            self._end(request, End.LATE)
            return
        self.post_operation([Op.GIVE_UP, request.ticket, request.end_at_timeout])
        request.timer = self.loop.call_later(GRACE_SECONDS, self._end, request, End.LATE)

    def answered(self, head: list[list[Any]], parts: Iterator[Part]) -> None:
        """Take outcomes. The receipts for what has come are out before anyone sees it."""
        ends: list[tuple[Request, End, Any]] = []
        for ticket, end, *outcome in head:
            request = self._sent[ticket] if end == MORE else self._sent.pop(ticket)
            self._n_not_entered -= request.cost
            if len(outcome) > 1:
                leases, places = outcome
                request.haul.add(leases, places, parts)
            if end != MORE:
                ends.append((request, End(end), outcome[0]))
        self._send_receipts([request for request, _, _ in ends])
        for request, end, outcome in ends:
            if end is End.UNREADABLE:
                self._send_streamed(request)
            else:
                self._end(request, end, outcome)
        if self._held:
            self._go_on()

    def _send_streamed(self, request: Request) -> None:
        """Send items whole that the channel's process could not find in this one, and all that follow."""
        assert self._link is not None
        self.is_near = False
        request.items = [content.parts() if isinstance(content, Shared) else content for content in request.items]
        frame = _Frame(self._link)
        self._stage(request, frame)
        frame.send()

    def _send_receipts(self, requests: Sequence[Request]) -> None:
        receipts: list[int] = []
        for request in requests:
            if request.takes_on_arrival and request.haul.leases and not request.done() and not request.haul.error:
                request.takes_on_arrival = request.set_running_or_notify_cancel()
                if request.takes_on_arrival:
                    receipts += request.haul.leases
                    request.haul.leases = []
        if receipts and self._link is not None:
            self._link.tell(REQUESTS, [[Op.ACKNOWLEDGE, 0, receipts]])

    def _end(self, request: Request, end: End, outcome: Any = None) -> None:
        if request.timer is not None:
            request.timer.cancel()
        if request.done() or not (request.running() or request.set_running_or_notify_cancel()):
            request.haul.give_back()
        elif end is not End.DONE:
            request.set_exception(self._refusal(request, end, outcome))
        elif request.haul.error is not None:
            request.haul.give_back()
            request.set_exception(request.haul.error)
        elif outcome == 0 and request.operation[0] in {Op.ACKNOWLEDGE, Op.GIVE_BACK}:
            request.set_exception(ChannelError(f"this lease on an item of channel {self.name!r} was over"))
        else:
            request.set_result(request.haul if request.operation[0] == Op.GET else None)

    def _refusal(self, request: Request, end: End, outcome: Any) -> Exception:
        name = f"channel {self.name!r}"
        if end is End.CLOSED:
            return ChannelClosed(f"{name} is closed" + ("" if request.cost else " and has nothing more to read"))
        if end is End.FULL:
            return ChannelFull(f"{name} is full; `put` waits for room")
        key = f" of key {request.operation[3]!r}"
        if end is End.EMPTY:
            return ChannelEmpty(f"{name} holds nothing{key} for a reader that may not wait")
        if not request.cost:
            return CallLate(f"{name}: nothing came{key} within {request.timeout:g} s")
        n_items = len(request.items)
        n_entered = n_items - (n_items if outcome is None else outcome)
        return CallLate(
            f"{name} had no room within {request.timeout:g} s: {n_entered} of {n_items} items{key} entered; "
            "does anybody read it?"
        )

    async def _open(self) -> None:
        try:
            link = await self.post.link(self._endpoint)
        except PeerLost as exc:
            self._fail(str(exc))
            return
        except asyncio.CancelledError:
            self._fail("this process's post was closed")
            raise
        finally:
            self._opening = None
        if link.is_lost:
            self._fail("the connection ended")
            return
        self._link = link
        self._lines.by_link[link] = self
        link.on_lost.append(lambda: self._lost(link))
        self._flush()

    def _lost(self, link: Link) -> None:
        self._link = None
        self._lines.by_link.pop(link, None)
        self._fail("the connection to it ended")

    def _fail(self, why: str) -> None:
        """End all there is. Where the channel is still there, whoever comes later is connected again."""
        requests = [*self._sent.values(), *self._held]
        self._sent.clear()
        self._held.clear()
        self._n_not_entered = 0
        while self._inbox:
            request = self._inbox.popleft()
            if isinstance(request, Request):
                requests.append(request)
        for request in requests:
            if request.timer is not None:
                request.timer.cancel()
            if not request.done() and request.set_running_or_notify_cancel():
                request.set_exception(self.loss(why))


class _Frame:
    """Operations that go out together."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._head: list[list[Any]] = []
        self._parts: list[Part] = []
        self._n_bytes = 0

    def add(self, operation: list[Any], parts: Sequence[Part]) -> None:
        self._head.append(operation)
        if parts:
            self._parts += parts
            self._n_bytes += sum(map(len, parts))
            if self._n_bytes >= FRAME_BYTES or len(self._parts) >= FRAME_PARTS:
                self.send()

    def send(self) -> None:
        if self._head:
            self._link.tell(REQUESTS, self._head, self._parts)
            self._head, self._parts, self._n_bytes = [], [], 0

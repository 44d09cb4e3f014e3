"""The process of a channel: its state, served on a post.

Everything happens on the post's event loop. The outcomes of one frame of requests go out together, one frame for each
process that is concerned. A process whose link is lost leaves the channel at once.
"""

from collections.abc import Iterator
from typing import Any

from outrider.cluster.channel.frames import (
    ANSWERS,
    CLOSE,
    FRAME_BYTES,
    FRAME_PARTS,
    MORE,
    REQUESTS,
    STATE,
    Content,
    Op,
    declared,
    portions,
    received,
)
from outrider.cluster.channel.queues import End, Get, Item, Put, Queues
from outrider.cluster.channel.shared import Shared, UnreadableItem, can_share
from outrider.cluster.post import Link, Message, Part, Post

OWN_BYTES = 1 << 16
"""A part up to this size is copied out of its frame, so that one item that stays does not keep the others' memory."""


class ChannelHost:
    """A channel on this process's post. `maxsize` bounds its items, `max_bytes` their bytes; 0 is no bound."""

    def __init__(self, post: Post, maxsize: int = 0, max_bytes: int = 0) -> None:
        self._post = post
        self._queues = Queues(maxsize, max_bytes)
        self._users: dict[Link, _Answers] = {}
        self._to_send: set[_Answers] = set()
        post.serve(REQUESTS, self._requested)
        post.serve(STATE, self._state)
        post.serve(CLOSE, self._close)

    def _requested(self, link: Link, head: Any, parts: tuple[memoryview, ...]) -> None:
        if link not in self._users:
            self._users[link] = _Answers(link, is_near=can_share(self._post.endpoint, link.endpoint))
            link.on_lost.append(lambda: self._lost(link))
        following: Iterator[Part] = iter(parts)
        if len(parts) > 1:
            following = iter([bytes(part) if len(part) <= OWN_BYTES else part for part in parts])
        for code, ticket, *operation in head:
            try:
                self._operate(link, following, code, ticket, operation)
            except UnreadableItem:
                self._answer(link, [ticket, End.UNREADABLE, 0])
        self._send()

    def _operate(self, link: Link, parts: Iterator[Part], code: int, ticket: int, operation: list[Any]) -> None:
        match code:
            case Op.PUT:
                may_wait, key, weights, places = operation
                contents = zip(received(places, parts), weights, strict=True)
                items = [Item(key, content, weight) for content, weight in contents]
                self._queues.put(Put(link, ticket, items), may_wait=may_wait)
            case Op.GET:
                may_wait, *wanted = operation
                self._queues.get(Get(link, ticket, *wanted), may_wait=may_wait)
            case Op.GIVE_UP:
                self._queues.give_up(link, ticket, End(*operation))
            case Op.ACKNOWLEDGE:
                self._settled(link, ticket, self._queues.acknowledge(link, *operation))
            case Op.GIVE_BACK:
                self._settled(link, ticket, self._queues.give_back(link, *operation))

    def _settled(self, link: Link, ticket: int, n_held: int) -> None:
        if ticket:
            self._answer(link, [ticket, End.DONE, n_held])

    def _answer(self, link: Link, outcome: list[Any]) -> None:
        answers = self._users[link]
        answers.add(outcome)
        self._to_send.add(answers)

    def _state(self, link: Link, head: Any, parts: Any) -> Message:  # noqa: ARG002 the signature of a service
        """The size of a key (or of all), whether there is no room, and the counters."""
        return Message([self._queues.size(head), self._queues.is_full(), self._queues.counts()])

    def _close(self, link: Link, head: bool, parts: Any) -> Message:  # noqa: ARG002 the signature of a service
        self._queues.close(drain=head)
        self._send()
        return Message()

    def _lost(self, link: Link) -> None:
        del self._users[link]
        self._queues.leave(link)
        self._send()

    def _send(self) -> None:
        ended, self._queues.ended = self._queues.ended, []
        for request in ended:
            link = request.owner
            assert isinstance(link, Link)
            if isinstance(request, Put):
                self._answer(link, [request.ticket, request.end, request.n_left])
            else:
                self._users[link].add_items(request)
                self._to_send.add(self._users[link])
        for answers in self._to_send:
            answers.send()
        self._to_send.clear()


class _Answers:
    """What is to be told to one process in the next frame."""

    def __init__(self, link: Link, *, is_near: bool) -> None:
        self._link = link
        self._is_near = is_near
        self._head: list[list[Any]] = []
        self._parts: list[Part] = []
        self._n_bytes = 0

    def add(self, outcome: list[Any]) -> None:
        self._head.append(outcome)

    def add_items(self, get: Get) -> None:
        items = [self._reachable(item.content) for item in get.items]
        for portion in portions(items):
            if self._n_bytes >= FRAME_BYTES or len(self._parts) >= FRAME_PARTS:
                self.send()
            end = get.end if portion.stop == len(items) else MORE
            places, parts = declared(items[portion])
            self._head.append([get.ticket, end, get.leases[portion], places])
            self._parts += parts
            self._n_bytes += sum(map(len, parts))
        if not items:
            self._head.append([get.ticket, get.end, [], []])

    def _reachable(self, content: Content) -> Content:
        return content.parts() if isinstance(content, Shared) and not self._is_near else content

    def send(self) -> None:
        if self._head:
            self._link.tell(ANSWERS, self._head, self._parts)
            self._head, self._parts, self._n_bytes = [], [], 0

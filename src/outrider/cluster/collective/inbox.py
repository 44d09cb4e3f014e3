"""The receiving end: letters come whole, through shared memory, or piece by piece, and go into the mailbox.

Invariants:
- Nothing of a letter is handed to a user before all of it has come.
- A letter whose sender is lost, or gives up, before all of it has come is withdrawn.
- A segment goes back to its sender once: when its content was copied, or when the last object that lies in it is gone.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from outrider.cluster.collective.devices import Gpus, Offer, patience
from outrider.cluster.collective.mailbox import Kind, Letter, Mailbox
from outrider.cluster.collective.segments import Maps, SegmentRef, Steps, offsets_of, watched
from outrider.cluster.post import Link, Message, Post
from outrider.cluster.post.wire import fresh_memory
from outrider.core.decoding import convert
from outrider.core.errors import UnknownWorker

Parts = tuple[memoryview, ...]


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """What a letter is, before or with its content. `number` is unique on its link."""

    sender: str
    receiver: str
    kind: Kind
    number: int
    lengths: tuple[int, ...]
    segment: SegmentRef | None = None
    is_written: bool = False
    offers: tuple[Offer, ...] = ()


class Inbox:
    """Installs itself on the post, and lives on its event loop."""

    def __init__(self, receiver: str, post: Post, mailbox: Mailbox, gpus: Gpus) -> None:
        self._receiver = receiver
        self._gpus = gpus
        self._loop = post.loop
        self._mailbox = mailbox
        self._links: dict[str, set[Link]] = {}
        self._silences: dict[str, asyncio.Event] = {}
        self._maps = Maps()
        self._arriving: dict[tuple[Link, int], tuple[str, Letter]] = {}
        post.serve("mail.letter", self._whole)
        post.serve("mail.segment", self._shared)
        post.serve("mail.written", self._written)
        post.serve("mail.stream", self._streamed)
        post.serve("mail.piece", self._piece)
        post.serve("mail.withdraw", self._withdrawn)
        post.serve("mail.offer", self._offered)
        post.serve("mail.forget", self._forget)

    def _letter(self, link: Link, head: Any) -> tuple[Announcement, Letter]:
        found = convert(head, Announcement)
        if found.receiver != self._receiver:
            raise UnknownWorker(f"{found.receiver} is not here: {self._receiver} has taken its place")
        if link not in self._links.setdefault(found.sender, set()):
            self._links[found.sender].add(link)
            link.on_lost.append(partial(self._lost, found.sender, link))
        return found, Letter(found.kind, found.lengths)

    def _whole(self, link: Link, head: Any, parts: Parts) -> Awaitable[None] | None:
        found, letter = self._letter(link, head)
        letter.parts = parts
        letter.arrived(letter.n_bytes)
        return self._deliver(link, found, letter)

    def _shared(self, link: Link, head: Any, _: Parts) -> Message | Awaitable[Message]:
        found, letter = self._letter(link, head)
        assert found.segment is not None
        memory = self._maps.open(link, found.segment)
        if memory is None:
            return Message(False)
        give_back = partial(self._give_back, link, found.segment.number)
        offsets, n_bytes = offsets_of(found.lengths)
        letter.parts = _cut(watched(memory, n_bytes, give_back), offsets, found.lengths)
        if found.is_written:
            letter.arrived(letter.n_bytes)
        else:
            letter.steps = Steps(memory, found.segment.n_bytes)
            self._expect(link, found, letter)
        waiting = self._deliver(link, found, letter)
        return Message(True) if waiting is None else _then_true(waiting)

    def _streamed(self, link: Link, head: Any, _: Parts) -> Awaitable[None] | None:
        found, letter = self._letter(link, head)
        self._expect(link, found, letter)
        return self._deliver(link, found, letter)

    def _deliver(self, link: Link, found: Announcement, letter: Letter) -> Awaitable[None] | None:
        admitted = self._mailbox.deliver(found.sender, letter)
        return None if admitted is None else self._admitted(link, found.sender, letter, admitted)

    async def _admitted(self, link: Link, sender: str, letter: Letter, admitted: "asyncio.Future[None]") -> None:
        try:
            await admitted
        except asyncio.CancelledError:
            if not (link.is_lost and letter.is_whole):
                self._mailbox.withdraw(sender, letter)
            raise

    def _offered(self, link: Link, head: Any, parts: Parts) -> Message | Awaitable[Message]:
        found, letter = self._letter(link, head)
        if not self._gpus.has(found.offers):
            return Message(False)
        letter.parts, letter.offers = parts, found.offers
        self._expect(link, found, letter)
        self._mailbox.deliver(found.sender, letter)
        self._loop.call_later(patience(letter.n_bytes), self._recall, link, found.number, letter)
        return self._pulled(link, found.number, letter)

    async def _pulled(self, link: Link, number: int, letter: Letter) -> Message:
        """Whether it was; if not, it is withdrawn, and its sender sends it in another way."""
        try:
            return Message(await letter.more_than(letter.n_bytes))
        finally:
            self._withdrawn(link, number, ())

    def _recall(self, link: Link, number: int, letter: Letter) -> None:
        if not letter.is_pulling:
            self._withdrawn(link, number, ())

    def _expect(self, link: Link, found: Announcement, letter: Letter) -> None:
        self._arriving[link, found.number] = (found.sender, letter)

    def _written(self, link: Link, head: Any, _: Parts) -> None:
        number, n_bytes = head
        self._arrived(link, number, n_bytes)

    def _piece(self, link: Link, head: Any, parts: Parts) -> None:
        number, offset, n_arrived = head
        found = self._arriving.get((link, number))
        if found is None:
            return
        _, letter = found
        if letter.memory is None:
            offsets, n_bytes = offsets_of(letter.lengths)
            letter.memory = fresh_memory(n_bytes)
            letter.parts = _cut(letter.memory, offsets, letter.lengths)
        for part in parts:
            letter.memory[offset : offset + part.nbytes] = part
            offset += part.nbytes
        self._arrived(link, number, n_arrived)

    def _arrived(self, link: Link, number: int, n_bytes: int) -> None:
        found = self._arriving.get((link, number))
        if found is None:
            return
        _, letter = found
        letter.arrived(n_bytes)
        if letter.is_whole:
            del self._arriving[link, number]

    def _withdrawn(self, link: Link, head: Any, _: Parts) -> None:
        sender, letter = self._arriving.pop((link, head), (None, None))
        if sender is not None and letter is not None and not letter.is_whole:
            self._mailbox.withdraw(sender, letter)

    def _lost(self, sender: str, link: Link) -> None:
        for number in [number for one, number in self._arriving if one is link]:
            self._withdrawn(link, number, ())
        self._maps.drop(link)
        self._links[sender].discard(link)
        if not self._links[sender]:
            del self._links[sender]
            if (silence := self._silences.pop(sender, None)) is not None:
                silence.set()

    async def silence(self, sender: str) -> None:
        """Wait until all that this sender sent over links that have come here has been read to the end."""
        if sender in self._links:
            await self._silences.setdefault(sender, asyncio.Event()).wait()

    def _forget(self, link: Link, head: Any, _: Parts) -> None:
        self._maps.forget(link, head)

    def _give_back(self, link: Link, number: int) -> None:
        """Called by whichever thread drops the last reference, perhaps in the midst of anything."""
        with suppress(RuntimeError):  # the loop is closed, and the sender lost with it
            self._loop.call_soon_threadsafe(link.tell, "mail.free", number)


def _cut(memory: memoryview, offsets: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
    return [memory[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]


async def _then_true(waiting: Awaitable[None]) -> Message:
    await waiting
    return Message(True)

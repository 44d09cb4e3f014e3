"""The sending end: small letters go whole, large ones through shared memory on one node and in pieces between nodes.

Invariants:
- Letters to one worker are announced in the order of the calls.
- No copy of more than `SMALL_BYTES` is made on the event loop.
- A letter that its sender gives up is withdrawn, unless it was received already.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective.devices import MANY_PARTS, Cargo, Gpus
from outrider.cluster.collective.inbox import Announcement
from outrider.cluster.collective.mailbox import Kind
from outrider.cluster.collective.peers import Peers
from outrider.cluster.collective.segments import ALIGNMENT, IS_POSSIBLE, STEP_BYTES, Segment, SegmentPool, offsets_of
from outrider.cluster.post import Link, Post
from outrider.core.errors import ClusterError, PeerLost

LARGE_BYTES = 256_000
SMALL_BYTES = 1 << 20
"""Copied on the event loop: that takes less time than another thread's beginning and end."""

PIECE_BYTES = 1 << 20
_GAP = memoryview(bytes(ALIGNMENT))

N_UNANSWERED = 256
"""So many small letters to one worker may wait to be taken in."""


@dataclass(slots=True)
class _Way:
    """To one worker."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    unanswered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(N_UNANSWERED))
    shares_memory: bool = IS_POSSIBLE
    error: ClusterError | None = None
    """Why no way was found, for all letters up to the number `n_hopeless`: they waited at the same time."""
    n_hopeless: int = 0


class Outbox:
    """Installs itself on the post, and lives on its event loop."""

    def __init__(self, sender: str, post: Post, peers: Peers, copiers: Executor, gpus: Gpus) -> None:
        self._sender = sender
        self._gpus = gpus
        self._node = post.endpoint.node
        self._loop = post.loop
        self._peers = peers
        self._copiers = copiers
        self.segments = SegmentPool()
        self._ways: dict[WorkerAddress, _Way] = {}
        self._n_letters = 0
        post.serve("mail.free", self._freed)

    async def send(self, receiver: WorkerAddress, kind: Kind, cargo: Cargo) -> None:
        """Returns when the receiver's process has the letter."""
        try:
            await self._send(receiver, kind, cargo)
        except PeerLost as loss:
            raise await self._peers.verdict(receiver, loss) from loss

    async def _send(self, receiver: WorkerAddress, kind: Kind, cargo: Cargo) -> None:
        way = self._ways.setdefault(receiver, _Way())
        parts = cargo.parts
        self._n_letters += 1
        letter = Announcement(self._sender, receiver.get_name(), kind, self._n_letters, cargo.lengths)
        async with way.turn:
            link = await self._link(way, receiver, letter.number)
            if cargo.far:
                if await self._offer(link, letter, cargo):
                    return
                await self._loop.run_in_executor(self._copiers, cargo.bring_near)
            if sum(letter.lengths) >= LARGE_BYTES or len(parts) > MANY_PARTS:
                await self._send_large(way, link, letter, parts)
                return
            await way.unanswered.acquire()
            answer = link.request("mail.letter", letter, parts)
            answer.add_done_callback(lambda _: way.unanswered.release())
        await answer

    async def _send_large(self, way: _Way, link: Link, letter: Announcement, parts: Sequence[memoryview]) -> None:
        if way.shares_memory and link.endpoint is not None and link.endpoint.node == self._node:
            if await self._share(link, letter, parts):
                return
            way.shares_memory = False
        await self._stream(link, letter, parts)

    async def _link(self, way: _Way, receiver: WorkerAddress, number: int) -> Link:
        if way.error is not None and number <= way.n_hopeless:
            raise copy(way.error)
        try:
            return await self._peers.link(receiver)
        except ClusterError as exc:
            way.error, way.n_hopeless = exc, self._n_letters
            raise

    async def _offer(self, link: Link, letter: Announcement, cargo: Cargo) -> bool:
        """Whether the receiver has copied what lies on the GPU; the rest goes with the offer, if it is not much."""
        if link.endpoint is None or link.endpoint.node != self._node or not cargo.is_mostly_far:
            return False
        offers = await self._loop.run_in_executor(self._copiers, self._gpus.offers, cargo.far)
        if not offers:
            return False
        try:
            return bool((await link.ask("mail.offer", replace(letter, offers=offers), cargo.parts)).head)
        except BaseException:
            link.tell("mail.withdraw", letter.number)
            raise

    async def _stream(self, link: Link, letter: Announcement, parts: Sequence[memoryview]) -> None:
        try:
            await link.ask("mail.stream", letter)
            for piece in _pieces(parts):
                head = (letter.number, piece.offset, piece.n_sent)
                if piece.n_sent == sum(letter.lengths):
                    await link.ask("mail.piece", head, piece.views)
                else:
                    link.tell("mail.piece", head, piece.views)
                    await link.flushed()
        except asyncio.CancelledError:
            link.tell("mail.withdraw", letter.number)
            raise

    async def _share(self, link: Link, letter: Announcement, parts: Sequence[memoryview]) -> bool:
        """Whether the receiver could open the segment."""
        offsets, n_bytes = offsets_of(letter.lengths)
        segment = self.segments.take(n_bytes)
        self.segments.lend(segment, link)
        try:
            if letter.kind is Kind.TENSOR and n_bytes > STEP_BYTES:
                is_open = await self._write_and_tell(link, letter, segment, parts[0])
            else:
                if n_bytes <= SMALL_BYTES and segment.is_warm:
                    _write(segment, offsets, parts)
                else:
                    await self._loop.run_in_executor(self._copiers, _write, segment, offsets, parts)
                announced = replace(letter, segment=segment.ref, is_written=True)
                is_open = (await link.ask("mail.segment", announced)).head
        except BaseException:
            self.segments.drop(segment)
            link.tell("mail.withdraw", letter.number)
            raise
        if not is_open:
            self.segments.take_back(segment.ref.number)
        return bool(is_open)

    async def _write_and_tell(self, link: Link, letter: Announcement, segment: Segment, content: memoryview) -> bool:
        """Announce first, and count the steps of the copy, so that the receiver copies at the same time."""
        segment.steps.reset()
        answer = link.request("mail.segment", replace(letter, segment=segment.ref))
        try:
            await self._loop.run_in_executor(self._copiers, _write_in_steps, segment, content)
            is_open = bool((await answer).head)
        finally:
            answer.cancel()
        if is_open:
            await link.ask("mail.written", (letter.number, content.nbytes))
        return is_open

    def _freed(self, _: Link, head: Any, __: tuple[memoryview, ...]) -> None:
        self.segments.take_back(head)


def _write(segment: Segment, offsets: Sequence[int], parts: Sequence[memoryview]) -> None:
    for offset, part in zip(offsets, parts, strict=True):
        segment.write(offset, part)


def _write_in_steps(segment: Segment, content: memoryview) -> None:
    for offset in range(0, content.nbytes, STEP_BYTES):
        segment.write(offset, content[offset : offset + STEP_BYTES])
        segment.steps.add()
        os.sched_yield()  # who follows may have been put to wait for this core


class _Piece(NamedTuple):
    """What lies at `offset` of a letter's memory, and how much of its content has been sent with it."""

    offset: int
    views: list[memoryview]
    n_sent: int


def _pieces(parts: Sequence[memoryview]) -> Iterator[_Piece]:
    """The parts as they lie behind each other, in pieces of bounded size."""
    views: list[memoryview] = []
    begin = end = n_sent = 0
    for part in parts:
        if gap := -end % ALIGNMENT:
            views.append(_GAP[:gap])
            end += gap
        for at in range(0, part.nbytes, PIECE_BYTES):
            views.append(part[at : at + PIECE_BYTES])
            end += views[-1].nbytes
            n_sent += views[-1].nbytes
            if end - begin >= PIECE_BYTES or len(views) >= MANY_PARTS:
                yield _Piece(begin, views, n_sent)
                views, begin = [], end
    if views:
        yield _Piece(begin, views, n_sent)

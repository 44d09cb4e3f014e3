"""What has come for a worker and was not received yet: a queue for each sender and kind, bounded in bytes.

Invariants:
- Letters of one sender and kind are handed out in the order in which they came, in the order of the calls for them.
- A letter waits for room unless somebody waits for it: a full mailbox never keeps a receiver from what it wants.
- What is handed out and turns out to be withdrawn gives its receiver the first place in the queue again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outrider.cluster.collective.devices import Offer
from outrider.cluster.collective.segments import Steps
from outrider.core.errors import ClusterError

ROOM_BYTES = 1 << 30
MIX_UP_SECONDS = 4.0
"""So long may one kind lie here while the other is waited for, before the receiver is told of the mix-up.

Not if the worker has ever received that kind from that sender: another of its threads does, and may be busy.
"""


class Kind(StrEnum):
    """How it was sent, and must be received."""

    OBJECT = "object"
    TENSOR = "tensor"

    @property
    def other(self) -> "Kind":
        return Kind.TENSOR if self is Kind.OBJECT else Kind.OBJECT


class Letter:
    """One message: it may be handed out while its content is still on its way. Lives on the post's event loop."""

    def __init__(self, kind: Kind, lengths: Sequence[int]) -> None:
        self.kind = kind
        self.lengths = lengths
        self.n_bytes = sum(lengths)
        self.n_arrived = 0
        self.parts: Sequence[Any] = ()
        self.memory: memoryview | None = None
        """Where pieces of it are put together."""
        self.steps: Steps | None = None
        """Those of the sender that writes it into shared memory."""
        self.offers: Sequence[Offer] = ()
        """What of it lies on the sender's GPU."""
        self.is_pulling = False
        self.is_withdrawn = False
        self.getter: asyncio.Future[Letter] | None = None
        """Who waits instead of the receiver that has this letter, once it is withdrawn."""
        self._news: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        return self.n_arrived >= self.n_bytes

    def arrived(self, n_bytes: int) -> None:
        """So much of it is there, counted from the start."""
        self.n_arrived = max(self.n_arrived, n_bytes)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None

    def withdraw(self) -> None:
        self.is_withdrawn = True
        self._tell()

    async def more_than(self, n_bytes: int) -> bool:
        """Wait until more has come, or all of it; False if it never will."""
        while not self.is_withdrawn and self.n_arrived <= n_bytes and not self.is_whole:
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)
        return not self.is_withdrawn


@dataclass(slots=True, eq=False)
class _Waiting:
    """A letter that has found no room yet."""

    letter: Letter
    stream: "_Stream"
    admitted: "asyncio.Future[None]"
    is_over: bool = False

    def end(self) -> None:
        """It waits no more, whether admitted or withdrawn."""
        self.is_over = True
        self.stream.waiting.remove(self)


@dataclass(slots=True)
class _Stream:
    letters: deque[Letter] = field(default_factory=deque)
    waiting: deque[_Waiting] = field(default_factory=deque)
    getters: "deque[asyncio.Future[Letter]]" = field(default_factory=deque)
    was_asked_for: bool = False

    def live_getter(self) -> "asyncio.Future[Letter] | None":
        while self.getters:
            if not self.getters[0].done():
                return self.getters[0]
            self.getters.popleft()
        return None


class Mailbox:
    """Lives on the post's event loop."""

    def __init__(self, room_bytes: int = ROOM_BYTES, mix_up_seconds: float = MIX_UP_SECONDS) -> None:
        self.n_bytes = 0
        """Waiting to be received."""
        self._room_bytes = room_bytes
        self._mix_up_seconds = mix_up_seconds
        self._streams: dict[tuple[str, Kind], _Stream] = {}
        self._line: deque[_Waiting] = deque()

    def deliver(self, sender: str, letter: Letter) -> "asyncio.Future[None] | None":
        """Take it in: at once (None), or when there is room for it."""
        stream = self._stream(sender, letter.kind)
        getter = stream.live_getter()
        if getter is not None and not stream.letters and not stream.waiting:
            stream.getters.popleft()
            getter.set_result(letter)
            return None
        if self._has_room(letter) and not self._in_line():
            self._keep(stream, letter)
            self._expect_claim(sender, letter.kind)
            return None
        waiting = _Waiting(letter, stream, asyncio.get_running_loop().create_future())
        stream.waiting.append(waiting)
        self._line.append(waiting)
        self._expect_claim(sender, letter.kind)
        return waiting.admitted

    def getter(self, sender: str, kind: Kind, *, is_first: bool = False) -> "asyncio.Future[Letter]":
        """What this sender sent next. Cancel it, or `give_up` on it, when nobody waits for it any more."""
        stream = self._stream(sender, kind)
        stream.was_asked_for = True
        found: asyncio.Future[Letter] = asyncio.get_running_loop().create_future()
        if stream.live_getter() is not None and not is_first:
            stream.getters.append(found)
        elif (letter := self._take(stream)) is not None:
            found.set_result(letter)
        else:
            stream.getters.appendleft(found)
            self._expect_claim(sender, kind.other)
        return found

    def give_up(self, sender: str, getter: "asyncio.Future[Letter]") -> None:
        """A receiver stops waiting; a letter that was handed to it meanwhile goes back."""
        if not getter.done():
            getter.cancel()
        elif not getter.cancelled() and getter.exception() is None:
            self.put_back(sender, getter.result())

    def put_back(self, sender: str, letter: Letter) -> None:
        """The letter is the first of its queue again."""
        if letter.is_withdrawn:
            if letter.getter is not None:
                self.give_up(sender, letter.getter)
            return
        stream = self._stream(sender, letter.kind)
        if (getter := stream.live_getter()) is not None:
            stream.getters.popleft()
            getter.set_result(letter)
        else:
            stream.letters.appendleft(letter)
            self.n_bytes += letter.n_bytes

    def withdraw(self, sender: str, letter: Letter) -> None:
        """Its sender gave up, or was lost before all of it had come. What was received whole stays received."""
        if letter.is_withdrawn:
            return
        stream = self._stream(sender, letter.kind)
        waiting = next((one for one in stream.waiting if one.letter is letter), None)
        if waiting is not None:
            waiting.end()
        elif letter in stream.letters:
            stream.letters.remove(letter)
            self.n_bytes -= letter.n_bytes
        elif letter.is_whole:
            return
        else:
            letter.getter = self.getter(sender, letter.kind, is_first=True)
        letter.withdraw()
        self._admit()

    def _stream(self, sender: str, kind: Kind) -> _Stream:
        return self._streams.setdefault((sender, kind), _Stream())

    def _has_room(self, letter: Letter) -> bool:
        return self.n_bytes == 0 or self.n_bytes + letter.n_bytes <= self._room_bytes

    def _in_line(self) -> bool:
        while self._line and self._line[0].is_over:
            self._line.popleft()
        return bool(self._line)

    def _keep(self, stream: _Stream, letter: Letter) -> None:
        stream.letters.append(letter)
        self.n_bytes += letter.n_bytes

    def _take(self, stream: _Stream) -> Letter | None:
        if stream.letters:
            letter = stream.letters.popleft()
            self.n_bytes -= letter.n_bytes
            self._admit()
            return letter
        if stream.waiting:
            waiting = stream.waiting[0]
            waiting.end()
            _set(waiting.admitted)
            return waiting.letter
        return None

    def _admit(self) -> None:
        while self._in_line() and self._has_room(self._line[0].letter):
            waiting = self._line.popleft()
            waiting.end()
            self._keep(waiting.stream, waiting.letter)
            _set(waiting.admitted)

    def _expect_claim(self, sender: str, kind: Kind) -> None:
        """Look again later if this kind lies here while the other one is waited for."""
        if self._is_mixed_up(sender, kind):
            asyncio.get_running_loop().call_later(self._mix_up_seconds, self._complain, sender, kind)

    def _is_mixed_up(self, sender: str, kind: Kind) -> bool:
        here, there = self._stream(sender, kind), self._stream(sender, kind.other)
        return bool(here.letters or here.waiting) and not here.was_asked_for and there.live_getter() is not None

    def _complain(self, sender: str, kind: Kind) -> None:
        if not self._is_mixed_up(sender, kind):
            return
        here, there = self._stream(sender, kind), self._stream(sender, kind.other)
        n_bytes = (here.letters[0] if here.letters else here.waiting[0].letter).n_bytes
        wanted, needed = ("recv_tensor", "recv") if kind is Kind.OBJECT else ("recv", "recv_tensor")
        why = f"{wanted} waits for {sender}, but what came is one {kind} of {n_bytes} bytes: receive it with {needed}"
        while (getter := there.live_getter()) is not None:
            getter.set_exception(ClusterError(why))


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)

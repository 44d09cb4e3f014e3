"""One connection between two posts: requests with answers, notices without, and the loss of the other side.

Invariants:
- Nothing but the handshake is read from a peer that has not proven that it is the member it should be, nor sent to one.
- The peer of a Unix socket is a process of the same user.
- Every request ends: with an answer, a refusal, or `PeerLost` when the connection ends.
- What a peer asked is cancelled when it gives up or is lost. An answer that crosses a cancellation is not dropped
  unseen: it goes to the asker's `unclaimed`.
"""

import asyncio
import inspect
import itertools
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from outrider.cluster.post.endpoint import Endpoint
from outrider.cluster.post.error_data import ErrorData
from outrider.cluster.post.handshake import Handshake, Way
from outrider.cluster.post.wire import Frame, FrameReader, Kind, Part, encode
from outrider.core.decoding import convert
from outrider.core.errors import ClusterError, OutriderError, PeerLost

_log = logging.getLogger(__name__)

HANDSHAKE_BYTES = 8192
HIGH_WATER_BYTES = 1 << 20
WRITE_BYTES = 1 << 26
"""Given to the transport at once: TLS takes no more than 2 GiB."""
STRANGER = "a stranger"
UNPROVEN = "the other side is gone, does not know the key of this cluster, or is not the one that was meant"
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket, as the kernel knows them."""


class Message(NamedTuple):
    """A head that MessagePack can hold, and raw buffers."""

    head: Any = None
    parts: Sequence[Part] = ()


Handler = Callable[["Link", Any, tuple[memoryview, ...]], "Message | Awaitable[Message | None] | None"]


class House(Protocol):
    """What a link must know of the post it belongs to."""

    key: bytes
    endpoint: Endpoint
    services: dict[str, Handler]


class _Asked(NamedTuple):
    answer: "asyncio.Future[Message]"
    unclaimed: Callable[[Message], None] | None


class Link(FrameReader):
    """Lives on its post's event loop; use it there only. `wanted` is whom it shall reach; None: it was accepted."""

    def __init__(self, house: House, wanted: Endpoint | None = None) -> None:
        super().__init__(HANDSHAKE_BYTES)
        self.endpoint: Endpoint | None = None
        """The other side, once it is proven."""
        self.on_lost: list[Callable[[], None]] = []
        self.is_lost = False
        self._house = house
        self._wanted = wanted
        self._handshake: Handshake | None = None
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._noticing: set[asyncio.Future[Message | None]] = set()
        self._room: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(
        self,
        service: str,
        head: Any = None,
        parts: Sequence[Part] = (),
        *,
        unclaimed: Callable[[Message], None] | None = None,
    ) -> Message:
        """The other side's answer; what its handler raised is raised here."""
        answer = self.request(service, head, parts, unclaimed=unclaimed)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None and unclaimed is not None:
                unclaimed(answer.result())
            raise

    def request(
        self,
        service: str,
        head: Any = None,
        parts: Sequence[Part] = (),
        *,
        unclaimed: Callable[[Message], None] | None = None,
    ) -> "asyncio.Future[Message]":
        """Send it before anything that is sent later; what is returned ends as `ask` does. To give it up, cancel it."""
        if self.is_lost:
            raise self._loss()
        number = next(self._numbers)
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = _Asked(answer, unclaimed)
        self._write(Kind.ASK, number, (service, head), parts)
        answer.add_done_callback(partial(self._given_up, number))
        return answer

    def _given_up(self, number: int, answer: "asyncio.Future[Message]") -> None:
        if answer.cancelled():
            self._write(Kind.GIVE_UP, number, None, ())

    def tell(self, service: str, head: Any = None, parts: Sequence[Part] = ()) -> None:
        """Send what needs no answer. Nobody hears it if the link is lost."""
        self._write(Kind.TELL, 0, (service, head), parts)

    async def flushed(self) -> None:
        """Wait until not much is left to be sent; raises `PeerLost` if it never will be."""
        while self._room is not None:
            await asyncio.shield(self._room)
        if self.is_lost:
            raise self._loss()

    def close(self) -> None:
        """End the connection once what is on its way has been sent; `ended` tells when. `abort` does not wait."""
        if self._transport is None:
            self.connection_lost(None)
        else:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def name(self) -> str:
        return STRANGER if self.endpoint is None else self.endpoint.name

    @property
    def socket(self) -> Any:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def _loss(self) -> PeerLost:
        return PeerLost(f"the connection to {self.name} ended")

    def _write(self, kind: Kind, number: int, head: Any, parts: Sequence[Part]) -> None:
        if self._transport is None or self.is_lost or self._transport.is_closing():
            return
        for piece in encode(kind, number, head, parts):
            for at in range(0, len(piece), WRITE_BYTES):
                self._transport.write(piece if len(piece) <= WRITE_BYTES else memoryview(piece)[at : at + WRITE_BYTES])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = transport
        way = Way.UNIX if self.socket.family == socket.AF_UNIX else Way.TLS
        if way is Way.UNIX and (user := _user_of_peer(self.socket)) != os.geteuid():
            self.garbage_received(f"it is a process of user {user}")
            return
        self._handshake = Handshake(self._house.key, self._house.endpoint, way=way, wanted=self._wanted)
        if (opening := self._handshake.opening()) is not None:
            self._write(Kind.TELL, 0, opening, ())

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the loss counts, not its reason
        if self.is_lost:
            return
        self.is_lost = True
        self.ended.set_result(None)
        self.resume_writing()
        if not self.ready.done():
            self.ready.set_exception(PeerLost(UNPROVEN))
            self.ready.exception()
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(self._loss())
                asked.answer.exception()
        self._asked.clear()
        for task in self._serving.values():  # not before it has begun: a handler is told that it is given up
            self._loop.call_soon(task.cancel)
        for notice in self._noticing:
            self._loop.call_soon(notice.cancel)
        for callback in self.on_lost:
            callback()

    def garbage_received(self, why: str) -> None:
        level = logging.INFO if self.endpoint is None else logging.WARNING  # strangers may come in any number
        _log.log(level, "%s is cut off: %s", self.name, why)
        self._handshake = None
        self.abort()

    def frame_received(self, frame: Frame) -> None:
        if self.endpoint is None:
            self._shake_hands(frame.head)
        elif frame.kind == Kind.ASK:
            self._serve(frame)
        elif frame.kind == Kind.TELL:
            self._notice(frame)
        elif frame.kind == Kind.GIVE_UP:
            if (task := self._serving.get(frame.number)) is not None:
                self._loop.call_soon(task.cancel)
        else:
            self._answered(frame)

    def _shake_hands(self, said: Any) -> None:
        if self._handshake is None or self.ready.done():  # it was not waited for any longer
            return
        try:
            reply = self._handshake.take(said)
        except (PeerLost, msgspec.ValidationError) as exc:
            self.garbage_received(f"not a member of this cluster, or the wrong one ({exc})")
            return
        if reply is not None:
            self._write(Kind.TELL, 0, reply, ())
        if self._handshake.peer is not None:
            self.endpoint, self._handshake = self._handshake.peer, None
            self.max_frame_bytes = None
            self.ready.set_result(None)

    def _serve(self, frame: Frame) -> None:
        service, head = frame.head
        try:
            reply = self._handler(service)(self, head, frame.parts)
        except Exception as exc:  # noqa: BLE001 it is told to who asked
            self._refuse(frame.number, exc)
            return
        if inspect.isawaitable(reply):
            task = self._loop.create_task(self._finish(frame.number, reply), name=f"{service} for {self.name}")
            self._serving[frame.number] = task
        else:
            self._reply(frame.number, reply)

    def _handler(self, service: str) -> Handler:
        try:
            return self._house.services[service]
        except KeyError:
            raise ClusterError(f"{self._house.endpoint.name} has no service {service!r}") from None

    async def _finish(self, number: int, reply: Awaitable[Message | None]) -> None:
        try:
            self._reply(number, await reply)
        except asyncio.CancelledError:
            self._refuse(number, ClusterError("given up"))
            raise
        except Exception as exc:  # noqa: BLE001 it is told to who asked
            self._refuse(number, exc)
        finally:
            self._serving.pop(number, None)

    def _reply(self, number: int, reply: Message | None) -> None:
        head, parts = reply or Message()
        self._write(Kind.ANSWER, number, head, parts)

    def _refuse(self, number: int, error: Exception) -> None:
        if not isinstance(error, OutriderError):
            _log.error("a request of %s failed", self.name, exc_info=error)
            error = ClusterError(f"{type(error).__name__}: {error}")
        self._write(Kind.REFUSAL, number, ErrorData.of(error), ())

    def _notice(self, frame: Frame) -> None:
        """Notices are taken in the order in which they came, up to the first wait of each."""
        service, head = frame.head
        try:
            reply = self._handler(service)(self, head, frame.parts)
        except Exception as exc:  # noqa: BLE001 nobody waits for it
            self._log_notice(exc)
            return
        if inspect.isawaitable(reply):
            task = asyncio.ensure_future(reply)
            self._noticing.add(task)
            task.add_done_callback(self._noticed)

    def _noticed(self, task: "asyncio.Future[Message | None]") -> None:
        self._noticing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_notice(error)

    def _log_notice(self, error: BaseException) -> None:
        _log.error("a notice of %s could not be taken", self.name, exc_info=error)

    def _answered(self, frame: Frame) -> None:
        asked = self._asked.pop(frame.number, None)
        if asked is None:
            return
        if frame.kind == Kind.REFUSAL:
            if not asked.answer.done():
                asked.answer.set_exception(_refusal(frame.head))
            return
        message = Message(frame.head, frame.parts)
        if not asked.answer.done():
            asked.answer.set_result(message)
        elif asked.unclaimed is not None:
            asked.unclaimed(message)


def _refusal(head: Any) -> Exception:
    try:
        told = convert(head, ErrorData)
    except msgspec.ValidationError as exc:
        return ClusterError(f"it was refused, and the reason cannot be read: {exc}")
    return told.exception() or ClusterError(str(told))


def _user_of_peer(unix: Any) -> int:
    """The user whose process connected, or listens, at the other end."""
    _, user, _ = CREDENTIALS.unpack(unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(user)

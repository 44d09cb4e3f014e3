"""One connection between two posts: requests with answers, notices without, and the loss of the other side.

Invariants:
- Nothing but the greeting is read from a peer that has not proven that it knows the key, nor sent to one.
- Every request ends: with an answer, a refusal, or `PeerLost` when the connection ends.
- What a peer asked is cancelled when it gives up or is lost. An answer that crosses a cancellation is not dropped
  unseen: it goes to the asker's `unclaimed`.
"""

import asyncio
import hmac
import inspect
import itertools
import logging
import pickle
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from outrider.cluster.post.wire import Frame, FrameReader, Kind, Part, encode
from outrider.core.decoding import convert
from outrider.core.errors import ClusterError, OutriderError, PeerLost

_log = logging.getLogger(__name__)

PROTOCOL = 1
NONCE_BYTES = 16
GREETING_BYTES = 4096
HIGH_WATER_BYTES = 1 << 20


class Endpoint(msgspec.Struct, frozen=True):
    """Where a post listens. `node` is the same text for processes that share a kernel's sockets and process ids."""

    node: str
    unix: str
    host: str
    port: int


class Message(NamedTuple):
    """A head that MessagePack can hold, and raw buffers."""

    head: Any = None
    parts: Sequence[Part] = ()


Handler = Callable[["Link", Any, tuple[memoryview, ...]], "Message | Awaitable[Message | None] | None"]


class House(Protocol):
    """What a link must know of the post it belongs to."""

    name: str
    key: bytes
    endpoint: Endpoint
    services: dict[str, Handler]


class _Asked(NamedTuple):
    answer: "asyncio.Future[Message]"
    unclaimed: Callable[[Message], None] | None


class Link(FrameReader):
    """Lives on its post's event loop; use it there only."""

    def __init__(self, house: House, *, accepts: bool) -> None:
        super().__init__(GREETING_BYTES)
        self.name = "a stranger"
        self.endpoint: Endpoint | None = None
        self.on_lost: list[Callable[[], None]] = []
        self.is_lost = False
        self._house = house
        self._accepts = accepts
        self._nonces = (secrets.token_bytes(NONCE_BYTES), b"")
        self._is_proven = False
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
    def socket(self) -> Any:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def _loss(self) -> PeerLost:
        return PeerLost(f"the connection to {self.name} ended")

    def _write(self, kind: Kind, number: int, head: Any, parts: Sequence[Part]) -> None:
        if self._transport is None or self.is_lost or self._transport.is_closing():
            return
        for piece in encode(kind, number, head, parts):
            self._transport.write(piece)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = transport
        if self._accepts:
            self._write(Kind.TELL, 0, {"protocol": PROTOCOL, "nonce": self._nonces[0]}, ())

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
            self.ready.set_exception(PeerLost("the other side does not know the key of this cluster, or is gone"))
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
        _log.warning("%s is cut off: %s", self.name, why)
        self.abort()

    def frame_received(self, frame: Frame) -> None:
        if not self._is_proven:
            self._greet(frame.head)
        elif frame.kind == Kind.ASK:
            self._serve(frame)
        elif frame.kind == Kind.TELL:
            self._notice(frame)
        elif frame.kind == Kind.GIVE_UP:
            if (task := self._serving.get(frame.number)) is not None:
                self._loop.call_soon(task.cancel)
        else:
            self._answered(frame)

    def _greet(self, head: Any) -> None:
        """Prove to each other that both know the key; neither sends it."""
        try:
            if self._accepts:
                self._check(head, b"asks", nonce=head["nonce"])
                self._introduce({"proof": self._proof(b"serves")})
            elif "proof" not in head:
                self._begin(head)
                return
            else:
                self._check(head, b"serves", nonce=self._nonces[0])
        except (KeyError, TypeError, msgspec.ValidationError, PeerLost) as exc:
            self.garbage_received(f"not a member of this cluster ({exc})")
            return
        self.max_frame_bytes = None
        self._is_proven = True
        self.ready.set_result(None)

    def _begin(self, head: Any) -> None:
        if head["protocol"] != PROTOCOL:
            raise PeerLost(f"it speaks protocol {head['protocol']}, this Outrider {PROTOCOL}: use one version")
        self._nonces = (self._nonces[0], head["nonce"])
        self._introduce({"nonce": self._nonces[0], "proof": self._proof(b"asks")})

    def _introduce(self, proof: dict[str, Any]) -> None:
        endpoint = msgspec.to_builtins(self._house.endpoint)
        self._write(Kind.TELL, 0, {**proof, "name": self._house.name, "endpoint": endpoint}, ())

    def _check(self, head: Any, role: bytes, *, nonce: bytes) -> None:
        """`_nonces` are ours and theirs; the proof is over the server's and the client's, in that order."""
        if self._accepts:
            self._nonces = (self._nonces[0], nonce)
        if not hmac.compare_digest(head["proof"], self._proof(role)):
            raise PeerLost("wrong key")
        self.name = str(head["name"])
        self.endpoint = convert(head["endpoint"], Endpoint)

    def _proof(self, role: bytes) -> bytes:
        ours, theirs = self._nonces
        order = ours + theirs if self._accepts else theirs + ours
        return hmac.digest(self._house.key, role + order, "sha256")

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
            raise ClusterError(f"{self._house.name} has no service {service!r}") from None

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
        self._write(Kind.REFUSAL, number, None, (pickle.dumps(error),))

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
                asked.answer.set_exception(pickle.loads(frame.parts[0]))  # noqa: S301 a proven member of the cluster
            return
        message = Message(frame.head, frame.parts)
        if not asked.answer.done():
            asked.answer.set_result(message)
        elif asked.unclaimed is not None:
            asked.unclaimed(message)

"""Messages between any two workers: objects and tensors, buffered at the receiver, in order for each pair."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective.copying import Copying
from outrider.cluster.collective.devices import Cargo, Gpus, Landing
from outrider.cluster.collective.inbox import Inbox
from outrider.cluster.collective.mailbox import MIX_UP_SECONDS, ROOM_BYTES, Kind, Letter, Mailbox
from outrider.cluster.collective.memory import TensorBuffer, readable, writable
from outrider.cluster.collective.outbox import SMALL_BYTES, Outbox
from outrider.cluster.collective.peers import Peers, WhoIsWhere, died
from outrider.cluster.pending import Pending
from outrider.cluster.post import Post
from outrider.cluster.post.parcel import pack, unpack
from outrider.core.errors import CallLate, ClusterError, InvalidInput, TensorMismatch

T = TypeVar("T")

N_THREADS = 4
DEADLINE_SECONDS = 10_800.0
"""Of an operation that was given none: a peer that lives and says nothing for so long will not."""
COPY_SECONDS = 1.0
"""So long the end of a copy is waited for when its receiver gives up, or its sender is gone."""


class CollectiveGroup:
    """What a worker delegates its communication to. Its methods may be called from any thread.

    `send` returns when the receiver's process has the message, which waits there until it is received; when more than
    `room_bytes` wait, senders wait too. A message that is given up at its deadline is withdrawn, unless it was taken in
    already. With `async_op` a `Pending` is returned, and what is sent must not be changed before that has ended.

    Objects and tensors are queued apart. Who waits for one kind while the other lies there unclaimed is told so.

    A peer that dies makes `send` and `recv` raise `WorkerDied`, after all that had come from it was received; one that
    does not exist, `UnknownWorker`; a deadline that passes, `CallLate`.
    """

    def __init__(
        self,
        address: WorkerAddress,
        post: Post,
        directory: WhoIsWhere,
        *,
        room_bytes: int = ROOM_BYTES,
        mix_up_seconds: float = MIX_UP_SECONDS,
        gpus: Gpus | None = None,
    ) -> None:
        name = address.get_name()
        self.address = address
        self._name = name
        self._post = post
        self._is_closed = False
        self._mailbox = Mailbox(room_bytes, mix_up_seconds)
        self._gpus = gpus or Gpus()
        self._inbox = Inbox(name, post, self._mailbox, self._gpus)
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix=f"mail of {name}")
        self._peers = Peers(post, directory, self._inbox.silence)
        self._outbox = Outbox(name, post, self._peers, self._threads, self._gpus)

    def send(
        self, item: Any, dst: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """Any object that can be pickled; the memory of arrays and tensors inside it is sent as it lies."""
        what = f"send from {self._name} to {dst.get_name()}"
        far: dict[int, Any] = {}
        try:
            parts = [memoryview(part) for part in pack(item, far)]
        except InvalidInput:
            raise
        except Exception as exc:
            raise InvalidInput(f"{what}: this {type(item).__name__} cannot be pickled: {exc}") from exc
        cargo = Cargo(parts, dict(zip(far, self._gpus.ready(list(far.values())), strict=True)))
        return self._start(partial(self._outbox.send, dst, Kind.OBJECT, cargo), what, timeout, async_op=async_op)

    def recv(self, src: WorkerAddress, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next object that `src` sent here, or a `Pending` of it. Arrays and tensors in it may be written to."""
        what = f"recv at {self._name} from {src.get_name()}"
        landing = self._gpus.landing()
        if not async_op:
            return unpack(self._run(partial(self._receive, src, landing), what, timeout).parts)
        future: list[Future[Any]] = []
        pending = self._submit(partial(self._receive_and_unpack, src, landing, future), what, timeout)
        future.append(pending)
        return Pending(pending, what)

    def send_tensor(
        self, tensor: Any, dst: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """The bytes of a tensor and nothing else: `recv_tensor` must bring a buffer of their number."""
        what = f"send_tensor from {self._name} to {dst.get_name()}"
        if self._gpus.is_far(tensor):
            cargo = Cargo([memoryview(b"")], {0: self._gpus.ready([tensor])[0]})
        else:
            cargo = Cargo([readable(tensor)], {})
        return self._start(partial(self._outbox.send, dst, Kind.TENSOR, cargo), what, timeout, async_op=async_op)

    def recv_tensor(
        self, tensor: Any, src: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """Fill `tensor` with the next one that `src` sent here; after an error its content is undefined."""
        what = f"recv_tensor at {self._name} from {src.get_name()}"
        buffer, landing = writable(tensor), self._gpus.landing(tensor) if self._gpus.is_far(tensor) else None
        return self._start(partial(self._receive_tensor, src, buffer, landing), what, timeout, async_op=async_op)

    def close(self) -> None:
        """Operations that still wait end with an error. The post is closed by its owner."""
        self._is_closed = True
        with suppress(ClusterError):
            self._post.submit(self._end())
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _end(self) -> None:
        self._peers.close()
        self._outbox.segments.close()

    def _start(
        self, operation: Callable[[], Coroutine[Any, Any, T]], what: str, timeout: float | None, *, async_op: bool
    ) -> "Pending[T] | T":
        if async_op:
            return Pending(self._submit(operation, what, timeout), what)
        return self._run(operation, what, timeout)

    def _run(self, operation: Callable[[], Coroutine[Any, Any, T]], what: str, timeout: float | None) -> T:
        return self._post.run(self._within(operation, what, timeout))

    def _submit(self, operation: Callable[[], Coroutine[Any, Any, T]], what: str, timeout: float | None) -> "Future[T]":
        return self._post.submit(self._within(operation, what, timeout))

    async def _within(self, operation: Callable[[], Coroutine[Any, Any, T]], what: str, timeout: float | None) -> T:
        if self._is_closed:
            raise ClusterError(f"{what}: {self._name} is closed")
        seconds = DEADLINE_SECONDS if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds) as scope:
                return await operation()
        except TimeoutError:
            if not scope.expired():
                raise
            raise CallLate(f"{what} did not end within {seconds:g} s") from None

    async def _claim(self, src: WorkerAddress, getter: "asyncio.Future[Letter]") -> Letter:
        """The letter that this getter gets; it may not be whole yet."""
        try:
            if getter.done():
                return getter.result()
            death, tell = self._peers.death(src), partial(_tell_death, getter, src)
            death.add_done_callback(tell)
            try:
                return await getter
            finally:
                death.remove_done_callback(tell)
        except BaseException:
            self._mailbox.give_up(src.get_name(), getter)
            raise

    async def _receive(self, src: WorkerAddress, landing: Landing) -> Letter:
        """The next object, whole."""
        getter: asyncio.Future[Letter] | None = self._mailbox.getter(src.get_name(), Kind.OBJECT)
        while getter is not None:
            letter = await self._claim(src, getter)
            try:
                await self._pull(src, letter, landing)
                if await letter.more_than(letter.n_bytes):
                    break
            except BaseException:
                self._mailbox.put_back(src.get_name(), letter)
                raise
            getter = letter.getter
        return letter

    async def _pull(self, src: WorkerAddress, letter: Letter, landing: Landing | None) -> None:
        """Copy what lies on the sender's GPU; if that is impossible it is refused, and sent in another way."""
        if not letter.offers or letter.is_whole or letter.is_withdrawn:
            return
        letter.is_pulling = True
        pulled: dict[int, Any] | None = None
        try:
            if landing is not None:
                copying = self._post.loop.run_in_executor(self._threads, self._gpus.pull, letter.offers, landing)
                withdrawal = self._post.loop.create_task(letter.more_than(letter.n_bytes))
                try:
                    news: set[asyncio.Future[Any]] = {copying, withdrawal}
                    await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    withdrawal.cancel()
                    await asyncio.wait({copying}, timeout=COPY_SECONDS)
                pulled = copying.result() if copying.done() else None
            if pulled is not None and not letter.is_withdrawn:
                letter.parts = [pulled.get(at, part) for at, part in enumerate(letter.parts)]
                letter.arrived(letter.n_bytes)
        finally:
            self._mailbox.withdraw(src.get_name(), letter)

    async def _receive_and_unpack(self, src: WorkerAddress, landing: Landing, future: "list[Future[Any]]") -> Any:
        letter = await self._receive(src, landing)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(partial(self._return_unwanted, src.get_name(), letter, future))
        return await self._post.loop.run_in_executor(self._threads, unpack, letter.parts)

    def _return_unwanted(self, sender: str, letter: Letter, future: "list[Future[Any]]", task: Any) -> None:
        """A letter stays the next one if its receiver was cancelled, or late, while it was being opened."""
        is_late = not task.cancelled() and isinstance(task.exception(), CallLate)
        if task.cancelled() or is_late or any(one.cancelled() for one in future):
            self._mailbox.put_back(sender, letter)

    async def _receive_tensor(self, src: WorkerAddress, buffer: TensorBuffer, landing: Landing | None) -> None:
        getter: asyncio.Future[Letter] | None = self._mailbox.getter(src.get_name(), Kind.TENSOR)
        while getter is not None:
            letter = await self._claim(src, getter)
            if letter.n_bytes != buffer.view.nbytes:
                letter.arrived(letter.n_bytes)
                raise TensorMismatch(
                    f"{self._name} received {letter.n_bytes} bytes from {src.get_name()} for {buffer.what},"
                    f" which has {buffer.view.nbytes}; what came is dropped"
                )
            if await self._copy(src, letter, buffer.view, landing):
                break
            getter = letter.getter
        if buffer.finish is not None and not letter.offers:
            await self._post.loop.run_in_executor(self._threads, buffer.finish)

    async def _copy(self, src: WorkerAddress, letter: Letter, target: memoryview, landing: Landing | None) -> bool:
        """Copy while it comes; False if it is withdrawn before its end."""
        copying = Copying(letter, target)
        try:
            await self._pull(src, letter, landing)
            if letter.offers:
                copying.at = letter.n_arrived
            if letter.steps is not None:
                await self._on_a_thread(copying)
            while not copying.is_whole and await letter.more_than(copying.at):
                if letter.is_whole and letter.n_bytes <= SMALL_BYTES:
                    copying.go_on()
                else:
                    await self._on_a_thread(copying)
        except BaseException:
            self._mailbox.put_back(src.get_name(), letter)
            raise
        if letter.is_withdrawn:
            return False
        letter.arrived(letter.n_bytes)
        letter.parts = ()
        return True

    async def _on_a_thread(self, copying: Copying) -> None:
        """Whose memory it is may use it when this has ended, also if it gave up."""
        running = self._post.loop.run_in_executor(self._threads, copying.go_on)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            copying.give_up()
            await asyncio.wait({running}, timeout=COPY_SECONDS)
            raise


def _tell_death(getter: "asyncio.Future[Letter]", src: WorkerAddress, death: "asyncio.Task[str]") -> None:
    """Who waits gets an error, since nothing will come any more."""
    if not getter.done():
        getter.set_exception(died(src, death))

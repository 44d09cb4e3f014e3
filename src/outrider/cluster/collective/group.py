"""Messages between any two workers: objects and tensors, buffered at the receiver, in order for each pair."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective.inbox import Inbox
from outrider.cluster.collective.mailbox import ROOM_BYTES, Kind, Letter, Mailbox
from outrider.cluster.collective.memory import TensorBuffer, copy, readable, writable
from outrider.cluster.collective.outbox import LARGE_BYTES, Outbox
from outrider.cluster.collective.peers import Peers, WhoIsWhere, died
from outrider.cluster.pending import Pending
from outrider.cluster.post import Post
from outrider.cluster.post.parcel import pack, unpack
from outrider.core.errors import CallLate, ClusterError, InvalidInput, TensorMismatch

T = TypeVar("T")

N_THREADS = 4


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
        self, address: WorkerAddress, post: Post, directory: WhoIsWhere, *, room_bytes: int = ROOM_BYTES
    ) -> None:
        name = address.get_name()
        self.address = address
        self._name = name
        self._post = post
        self._is_closed = False
        self._mailbox = Mailbox(room_bytes)
        self._inbox = Inbox(name, post, self._mailbox)
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix=f"mail of {name}")
        self._peers = Peers(post, directory, self._inbox.silence)
        self._outbox = Outbox(name, post, self._peers, self._threads)

    def send(
        self, item: Any, dst: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """Any object that can be pickled; the memory of arrays and tensors inside it is sent as it lies."""
        what = f"send from {self._name} to {dst.get_name()}"
        try:
            parts = [memoryview(part) for part in pack(item)]
        except InvalidInput:
            raise
        except Exception as exc:
            raise InvalidInput(f"{what}: this {type(item).__name__} cannot be pickled: {exc}") from exc
        return self._start(partial(self._outbox.send, dst, Kind.OBJECT, parts), what, timeout, async_op=async_op)

    def recv(self, src: WorkerAddress, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next object that `src` sent here, or a `Pending` of it. Arrays and tensors in it may be written to."""
        what = f"recv at {self._name} from {src.get_name()}"
        if not async_op:
            return unpack(self._run(partial(self._receive, src), what, timeout).parts)
        future: list[Future[Any]] = []
        pending = self._submit(partial(self._receive_and_unpack, src, future), what, timeout)
        future.append(pending)
        return Pending(pending, what)

    def send_tensor(
        self, tensor: Any, dst: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """The bytes of a tensor and nothing else: `recv_tensor` must bring a buffer of their number."""
        what = f"send_tensor from {self._name} to {dst.get_name()}"
        sending = partial(self._outbox.send, dst, Kind.TENSOR, [readable(tensor)])
        return self._start(sending, what, timeout, async_op=async_op)

    def recv_tensor(
        self, tensor: Any, src: WorkerAddress, async_op: bool = False, timeout: float | None = None
    ) -> Pending[None] | None:
        """Fill `tensor` with the next one that `src` sent here; after an error its content is undefined."""
        what = f"recv_tensor at {self._name} from {src.get_name()}"
        return self._start(partial(self._receive_tensor, src, writable(tensor)), what, timeout, async_op=async_op)

    def close(self) -> None:
        """Operations that still wait end with an error. The post is closed by its owner."""
        self._is_closed = True
        with suppress(ClusterError):
            self._post.submit(self._end())
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _end(self) -> None:
        self._peers.close()
        self._outbox.segments.close()

    # operations, on the caller's thread

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
        try:
            async with asyncio.timeout(timeout) as scope:
                return await operation()
        except TimeoutError:
            if not scope.expired():
                raise
            raise CallLate(f"{what} did not end within {timeout:g} s") from None

    # receiving, on the loop

    async def _claim(self, src: WorkerAddress, getter: "asyncio.Future[Letter]") -> Letter:
        """The letter that this getter gets; it may not be whole yet."""
        try:
            if not getter.done():
                death = self._peers.death(src)
                waiting: set[asyncio.Future[Any]] = {getter, death}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not getter.done():
                    getter.set_exception(died(src, death))
            return getter.result()
        except BaseException:
            self._mailbox.give_up(src.get_name(), getter)
            raise

    async def _receive(self, src: WorkerAddress) -> Letter:
        """The next object, whole."""
        getter: asyncio.Future[Letter] | None = self._mailbox.getter(src.get_name(), Kind.OBJECT)
        while getter is not None:
            letter = await self._claim(src, getter)
            try:
                if await letter.more_than(letter.n_bytes):
                    break
            except asyncio.CancelledError:
                self._mailbox.put_back(src.get_name(), letter)
                raise
            getter = letter.getter
        return letter

    async def _receive_and_unpack(self, src: WorkerAddress, future: "list[Future[Any]]") -> Any:
        letter = await self._receive(src)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(partial(self._return_unwanted, src.get_name(), letter, future))
        return await self._post.loop.run_in_executor(self._threads, unpack, letter.parts)

    def _return_unwanted(self, sender: str, letter: Letter, future: "list[Future[Any]]", task: Any) -> None:
        """A letter stays the next one if its receiver was cancelled, or late, while it was being opened."""
        is_late = not task.cancelled() and isinstance(task.exception(), CallLate)
        if task.cancelled() or is_late or any(one.cancelled() for one in future):
            self._mailbox.put_back(sender, letter)

    async def _receive_tensor(self, src: WorkerAddress, buffer: TensorBuffer) -> None:
        getter: asyncio.Future[Letter] | None = self._mailbox.getter(src.get_name(), Kind.TENSOR)
        while getter is not None:
            letter = await self._claim(src, getter)
            if letter.n_bytes != buffer.view.nbytes:
                raise TensorMismatch(
                    f"{self._name} received {letter.n_bytes} bytes from {src.get_name()} for {buffer.what},"
                    f" which has {buffer.view.nbytes}; what came is dropped"
                )
            if await self._copy(src, letter, buffer.view):
                break
            getter = letter.getter
        if buffer.finish is not None:
            await self._post.loop.run_in_executor(self._threads, buffer.finish)

    async def _copy(self, src: WorkerAddress, letter: Letter, target: memoryview) -> bool:
        """Copy while it comes; False if it is withdrawn before its end."""
        at = 0
        try:
            while at < letter.n_bytes:
                if not await letter.more_than(at):
                    return False
                end = letter.n_arrived
                step = target[at:end], letter.parts[0][at:end]
                if end - at < LARGE_BYTES:
                    copy(*step)
                else:
                    await self._post.loop.run_in_executor(self._threads, copy, *step)
                at = end
        except asyncio.CancelledError:
            self._mailbox.put_back(src.get_name(), letter)
            raise
        letter.parts = ()
        return True

"""What a channel's user holds: items on their way, and items on lease."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outrider.cluster.channel.client import Haul, Request
from outrider.cluster.channel.frames import Op
from outrider.cluster.pending import Pending
from outrider.cluster.post.parcel import unpack
from outrider.core.errors import ChannelError

if TYPE_CHECKING:
    from outrider.cluster.channel.channel import Channel

T = TypeVar("T")


class PendingItems(Pending[T]):
    """Items on their way. They are taken when somebody has them here; those that nobody takes go back.

    Cancelling an await of it gives the items up, and so does dropping it.
    """

    def __init__(self, request: Request, receive: Callable[[Haul], T], what: str) -> None:
        super().__init__(request, what)
        self._request = request
        self._receive = receive
        self._lock = Lock()
        self._received: list[T] = []

    def wait(self, timeout: float | None = None) -> T:
        super().wait(timeout)
        return self._value()

    async def async_wait(self) -> T:
        try:
            await asyncio.wrap_future(self._request)
        except asyncio.CancelledError:
            self._drop()
            raise
        return self._value()

    def _value(self) -> T:
        with self._lock:
            if not self._received:
                self._received.append(self._receive(self._request.result()))
            return self._received[0]

    def _drop(self) -> None:
        if not self._request.cancel() and not self._received and self._request.exception() is None:
            self._request.haul.give_back()

    def __del__(self) -> None:
        if "_received" in self.__dict__ and not self._received and not self._request.cancelled():
            self._drop()


class Leased(Generic[T]):
    """An item that is this process's until it says what has become of it: `ack` or `give_back`, or its end.

    As a context manager it yields the item, acknowledges it at the end of the block, and gives it back if that raises.
    """

    def __init__(self, channel: "Channel", haul: Haul) -> None:
        self._channel = channel
        self._leases, haul.leases = haul.leases, []
        self.item: T = unpack(haul.items[0])

    def ack(self, async_op: bool = False) -> Pending[None] | None:
        """The work is done and the item gone. Raises `ChannelError` if the lease was over: another has the item."""
        return self._settle(Op.ACKNOWLEDGE, async_op=async_op)

    def give_back(self, async_op: bool = False) -> Pending[None] | None:
        """Somebody else shall have it: it stands where it stood."""
        return self._settle(Op.GIVE_BACK, async_op=async_op)

    def __enter__(self) -> T:
        return self.item

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ack() if kind is None else self.give_back()

    def _settle(self, code: Op, *, async_op: bool) -> Pending[None] | None:
        if not self._leases:
            raise ChannelError(f"this lease on an item of {self._channel} has ended before")
        leases, self._leases = self._leases, []
        return self._channel.settle(code, leases, async_op=async_op)


class AllOf(Future[None]):
    """Done when all of these are; fails with the first that fails."""

    def __init__(self, requests: Sequence[Future[Any]]) -> None:
        super().__init__()
        self._requests = requests
        self._lock = Lock()
        self._n_left = len(requests)
        for request in requests:
            request.add_done_callback(self._one_is_done)

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            for request in self._requests:
                request.cancel()
        return is_cancelled

    def _one_is_done(self, request: Future[Any]) -> None:
        with self._lock:
            self._n_left -= 1
            if self.done():
                return
            if request.cancelled():
                super().cancel()
            elif (error := request.exception()) is not None:
                self.set_exception(error)
            elif not self._n_left:
                self.set_result(None)

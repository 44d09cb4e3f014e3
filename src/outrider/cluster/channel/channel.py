"""A named queue between workers: any number of producers and consumers, in any process of the cluster."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from outrider.cluster.cargo import fault, pickled
from outrider.cluster.channel.arguments import DEFAULT_KEY, check_batch, weights_of
from outrider.cluster.channel.client import Haul, Line, Lines, Request
from outrider.cluster.channel.frames import CLOSE, FRAME_PARTS, STATE, Content, Op, n_bytes, portions
from outrider.cluster.channel.handles import AllOf, Leased, PendingItems
from outrider.cluster.channel.queues import End
from outrider.cluster.channel.shared import LARGE_BYTES, Shared
from outrider.cluster.pending import Pending
from outrider.cluster.post import Endpoint, Post
from outrider.cluster.post.parcel import pack, unpack
from outrider.core.errors import CallLate, ClusterError, InvalidInput, PeerLost

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.group import WorkerGroup

ANSWER_SECONDS = 10.0


class Channel:
    """One end of a channel; all ends are equal, and one may be used by many threads and coroutines.

    Items of one key leave in the order in which they came. `put` returns when the channel has the item: it is safe then
    whatever happens to its producer, as long as the channel's own process lives. An item is taken when `get` returns;
    one that is on its way to a reader who dies, or gives up, goes to the next reader, in its old place. `lease` keeps
    it so until the reader says that its work is done.

    Methods that wait take `timeout` (seconds; `CallLate` is raised then) and `async_op`: True returns a handle at once,
    to be awaited in any event loop or waited for in a thread. A channel may be pickled, and sent to any worker.
    """

    def __init__(self, post: Post | Callable[[], Post], endpoint: Endpoint, name: str) -> None:
        self.name = name
        self._post = post
        self._endpoint = endpoint
        self._line: Line | None = None
        self._group: WorkerGroup[Any] | None = None

    @classmethod
    def create(
        cls,
        name: str,
        node_id: int = 0,
        maxsize: int = 0,
        *,
        max_bytes: int = 0,
        cluster: "Cluster | None" = None,
        store: str | None = None,
        allow_pickle: bool = False,
    ) -> Any:
        """A new channel in a process of its own on that node. It holds up to `maxsize` items and `max_bytes`; 0: any.

        It ends with the cluster, with the worker that created it, or by `shutdown`. With the URL of a `store` its items
        lie there instead, and outlive all processes; that is a `DurableChannel`, without bounds and without a cluster,
        for plain data unless `allow_pickle` is set.
        """
        if store is not None:
            if maxsize or max_bytes:
                raise InvalidInput(
                    f"channel {name!r} lies in a store, and has no bounds: leave out maxsize and max_bytes"
                )
            return cls.connect(name, store=store, allow_pickle=allow_pickle)
        from outrider.cluster.channel.finding import start  # noqa: PLC0415 a channel is served by a worker

        cluster = cluster or _cluster()
        group, endpoint = start(cluster, name, node_id, maxsize, max_bytes)
        channel = cls(cluster.post, endpoint, name)
        channel._group = group
        return channel

    @classmethod
    def connect(
        cls, name: str, *, cluster: "Cluster | None" = None, store: str | None = None, allow_pickle: bool = False
    ) -> Any:
        """The channel of that name, which somebody has created or is about to. `UnknownWorker` if nobody does."""
        if store is not None:
            from outrider.cluster.channel.durable import DurableChannel  # noqa: PLC0415 few channels need a store

            return DurableChannel(name, store, allow_pickle=allow_pickle)
        from outrider.cluster.channel.finding import find  # noqa: PLC0415 a channel is served by a worker

        cluster = cluster or _cluster()
        return cls(cluster.post, find(cluster, name), name)

    def __repr__(self) -> str:
        return f"channel {self.name!r}"

    def put(
        self,
        item: Any,
        weight: float = 0,
        key: str = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Pending[None] | None:
        """Add an item; waits while the channel is full. With `async_op`, leave its buffers alone until it is done."""
        request = self._put([self._pack(item)], [weight], key, waits=not async_op, timeout=timeout)
        return Pending(request, f"a put on {self}") if async_op else _result(request)

    def put_nowait(self, item: Any, weight: float = 0, key: str = DEFAULT_KEY) -> None:
        """Add an item, or raise `ChannelFull` at once."""
        _result(self._put([self._pack(item)], [weight], key, may_wait=False))

    def put_many(
        self,
        items: Iterable[Any],
        weight: float | Sequence[float] = 0,
        key: str = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Pending[None] | None:
        """Add items in their order, in one message; `weight` is that of each, or there is one for each.

        They enter one after the other as there is room, so at a deadline some may have; `CallLate` says how many.
        """
        packed = [self._pack(item) for item in items]
        weights = weights_of(weight, len(packed), self)
        stretches = list(portions(packed)) or [slice(0)]
        puts = [self._put(packed[part], weights[part], key, waits=not async_op, timeout=timeout) for part in stretches]
        request = puts[0] if len(puts) == 1 else AllOf(puts)
        return Pending(request, f"a put of {len(packed)} items on {self}") if async_op else _result(request)

    def get(self, key: str = DEFAULT_KEY, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next item; waits for one."""
        request = self._get(key, 1, None, waits=not async_op, timeout=timeout, takes_on_arrival=not async_op)
        return PendingItems(request, _taken_one, f"a get on {self}") if async_op else _one(_result(request))

    def get_nowait(self, key: str = DEFAULT_KEY) -> Any:
        """The next item, or `ChannelEmpty` at once."""
        return _one(_result(self._get(key, 1, None, may_wait=False, takes_on_arrival=True)))

    def get_batch(
        self,
        n: int | None = None,
        *,
        weight: float | None = None,
        key: str = DEFAULT_KEY,
        max_wait: float | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """A list of the next items: `n` of them, or as many as weigh up to `weight`; both: what is reached first.

        An item that weighs more than `weight` comes alone, one that weighs nothing joins any batch. After `max_wait`
        seconds the batch is what there is, which may be nothing. Of a closed channel the last batch may be smaller.
        """
        check_batch(n, weight, self)
        is_content = max_wait is not None and (timeout is None or max_wait <= timeout)
        request = self._get(
            key,
            n,
            weight,
            waits=not async_op,
            timeout=max_wait if is_content else timeout,
            end_at_timeout=End.DONE if is_content else End.LATE,
            takes_on_arrival=not async_op,
        )
        return PendingItems(request, _taken, f"a get_batch on {self}") if async_op else _all(_result(request))

    def lease(self, key: str = DEFAULT_KEY, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next item as a `Leased`: it goes to another reader if this process dies before it is acknowledged."""
        request = self._get(key, 1, None, waits=not async_op, timeout=timeout)
        if async_op:
            return PendingItems(request, lambda haul: Leased(self, haul), f"a lease on {self}")
        return Leased(self, _result(request))

    def qsize(self, key: str | None = None) -> int:
        """How many items a reader could have now: of one key, or of all."""
        return int(self._ask(STATE, key)[0])

    def empty(self, key: str | None = None) -> bool:
        return self.qsize(key) == 0

    def full(self) -> bool:
        """Whether a further item would have to wait."""
        return bool(self._ask(STATE, None)[1])

    def stats(self) -> dict[str, int]:
        """What was put, acknowledged, given back and dropped so far; what is here, leased and waiting now."""
        return dict(self._ask(STATE, None)[2])

    def close(self, *, drain: bool = True) -> None:
        """Take no more items, for anyone. Readers get what is left, or nothing, and then `ChannelClosed`."""
        self._ask(CLOSE, drain)

    def shutdown(self) -> None:
        """End the channel's process and free its name; what it holds is lost. Only who created the channel can."""
        if self._group is None:
            raise InvalidInput(f"{self} was not created here; close() closes it for all")
        self._group.close()

    def settle(self, code: Op, leases: Sequence[int], *, async_op: bool) -> Pending[None] | None:
        """End leases; for `Leased`."""
        request = self._sent(Request(self._open_line(), code, leases), waits=not async_op)
        return Pending(request, f"the end of a lease on {self}") if async_op else _result(request)

    def __reduce__(self) -> tuple[Any, ...]:
        return Channel, (_post_of_this_process, self._endpoint, self.name)

    def _open_line(self) -> Line:
        if self._line is None:
            post = self._post if isinstance(self._post, Post) else self._post()
            self._line = Lines.of(post).line(self._endpoint, self.name)
        return self._line

    def _pack(self, item: Any) -> Content:
        try:
            parts = pack(item)
            if len(parts) >= FRAME_PARTS:
                parts = [pickled(item)]
        except Exception as exc:
            if (why := fault(item)) is None:
                raise
            raise InvalidInput(f"a {type(item).__name__} cannot be put on {self}: {why}") from exc
        is_large = self._open_line().is_near and n_bytes(parts) >= LARGE_BYTES
        return Shared.written(parts) if is_large else parts

    def _put(
        self,
        items: Sequence[Content],
        weights: Sequence[float],
        key: str,
        *,
        waits: bool = True,
        may_wait: bool = True,
        timeout: float | None = None,
    ) -> Request:
        self._check(key, weights)
        operation = (Op.PUT, may_wait, key, weights)
        return self._sent(Request(self._open_line(), *operation, items=items, timeout=timeout), waits=waits)

    def _get(
        self,
        key: str,
        n: int | None,
        weight: float | None,
        *,
        waits: bool = True,
        may_wait: bool = True,
        **how: Any,
    ) -> Request:
        self._check(key, ())
        return self._sent(Request(self._open_line(), Op.GET, may_wait, key, n, weight, **how), waits=waits)

    def _sent(self, request: Request, *, waits: bool) -> Request:
        if waits and _running_loop() is request.line.loop:
            raise ClusterError(f"a call on {self} that waits was made on the post's own event loop; use async_op=True")
        request.line.send(request)
        return request

    def _check(self, key: object, weights: Iterable[object]) -> None:
        if not isinstance(key, str):
            raise InvalidInput(f"a key of {self} is text, not {key!r}")
        for weight in weights:
            if not isinstance(weight, int | float) or not weight >= 0:
                raise InvalidInput(f"a weight on {self} is a number of at least 0, not {weight!r}")

    def _ask(self, service: str, head: Any) -> Any:
        line = self._open_line()
        try:
            return line.post.run(line.ask(service, head), timeout=ANSWER_SECONDS)
        except PeerLost as exc:
            raise line.loss(str(exc)) from None
        except TimeoutError:
            raise CallLate(f"{self} did not answer within {ANSWER_SECONDS:g} s") from None


def _result(request: Future[Any]) -> Any:
    """Wait in this thread. A wait that is interrupted gives the request up."""
    try:
        return request.result()
    finally:
        request.cancel()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _one(haul: Haul) -> Any:
    return unpack(haul.items[0])


def _all(haul: Haul) -> list[Any]:
    return [unpack(parts) for parts in haul.items]


def _taken_one(haul: Haul) -> Any:
    item = _one(haul)
    haul.take()
    return item


def _taken(haul: Haul) -> list[Any]:
    items = _all(haul)
    haul.take()
    return items


def _cluster() -> "Cluster":
    from outrider.cluster.cluster import Cluster  # noqa: PLC0415 a cluster starts channels

    return Cluster.current()


def _post_of_this_process() -> Post:
    return _cluster().post

"""A channel whose items lie in a store, and so outlive every process.

An item is a rollout with the tag `channel/NAME/KEY`; its input is the item (`stored.py`). A reader claims it under a
lease that is renewed while the reader lives, and ends it `succeeded`; what a dead reader held is queued again when its
lease runs out. Give channels a store of their own: a worker of rollouts that takes any tag would take their items.
"""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from outrider.cluster.channel.arguments import DEFAULT_KEY, check_batch, weights_of
from outrider.cluster.channel.stored import from_stored, to_stored
from outrider.cluster.pending import Pending
from outrider.core.crash_points import reached
from outrider.core.errors import (
    CallLate,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    InvalidInput,
    LeaseLost,
    StoreError,
)
from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.core.status import LIVE, QUEUED, AttemptStatus
from outrider.store import Store, open_store

T = TypeVar("T")

_log = logging.getLogger(__name__)

LEASE_SECONDS = 4.0
OPEN_SECONDS = 30.0
LOOK_SECONDS = 1.0
"""So often a reader that waits looks whether the channel was closed; items wake it at once."""
HAND_BACK_SECONDS = 5.0


class DurableChannel:
    """The methods of `Channel`, each a transaction of the store. It has no bound, and its readers share no order.

    Items are plain data. With `allow_pickle` other items are pickled, and pickles are read: then everyone who can write
    to the store can run code in this process.

    Owns a thread and a connection; end them by `disconnect`, or use it as a context manager.
    """

    def __init__(
        self, name: str, url: str, *, lease_seconds: float = LEASE_SECONDS, allow_pickle: bool = False
    ) -> None:
        self.name = name
        self._allow_pickle = allow_pickle
        self._config = RolloutConfig(unresponsive_seconds=lease_seconds, max_attempts=1_000_000)
        self._reader = f"channel-{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._held: dict[str, AttemptedRollout] = {}
        self._beating: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=f"durable channel {name}", daemon=True)
        self._thread.start()
        try:
            self._store: Store = self._call(_open(url), f"{self} did not open {url}", False, OPEN_SECONDS)
        except BaseException:
            self._stop()
            raise

    def __repr__(self) -> str:
        return f"durable channel {self.name!r}"

    def put(
        self,
        item: Any,
        weight: float = 0,
        key: str = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Add an item; it is in the store when this returns."""
        return self.put_many([item], weight, key, async_op, timeout)

    def put_many(
        self,
        items: Iterable[Any],
        weight: float | Sequence[float] = 0,
        key: str = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Add all of them in one transaction."""
        packed = [self._packed(item) for item in items]
        weights = weights_of(weight, len(packed), self)
        requests = [
            RolloutRequest(input=text, tag=self._tag(key), config=self._config, metadata={"weight": weight})
            for text, weight in zip(packed, weights, strict=True)
        ]
        return self._call(self._put(requests, timeout), f"a put on {self} was not done", async_op, None)

    def get(self, key: str = DEFAULT_KEY, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next item; waits for one."""
        return self._call(self._get(key, timeout), f"a get on {self} was not done", async_op, None)

    def get_nowait(self, key: str = DEFAULT_KEY) -> Any:
        """The next item, or `ChannelEmpty` at once."""
        if not (items := self.get_batch(1, key=key, max_wait=0.0)):
            raise ChannelEmpty(f"{self} holds nothing of key {key!r} for a reader that may not wait")
        return items[0]

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
        """As `Channel.get_batch`."""
        check_batch(n, weight, self)

        async def batch() -> list[Any]:
            return await self._take(await self._claim(key, n, weight, max_wait, timeout))

        return self._call(batch(), f"a get_batch on {self} was not done", async_op, None)

    def lease(self, key: str = DEFAULT_KEY, async_op: bool = False, timeout: float | None = None) -> Any:
        """The next item as a `DurableLease`."""

        async def lease() -> DurableLease[Any]:
            claimed = await self._claim(key, 1, None, None, timeout)
            (item,) = await self._read(claimed)
            return DurableLease(self, claimed[0], item)

        return self._call(lease(), f"a lease on {self} was not done", async_op, None)

    def qsize(self, key: str = DEFAULT_KEY) -> int:
        """How many items of a key a reader could have now."""
        return int(self._call(self._count(key, QUEUED), f"{self} did not answer", False, OPEN_SECONDS))

    def empty(self, key: str = DEFAULT_KEY) -> bool:
        return self.qsize(key) == 0

    def close(self, *, drain: bool = True) -> None:
        """Take no more items under this name, for anyone and for good. Readers get what is left, or nothing."""
        self._call(self._close(drain=drain), f"{self} was not closed", False, OPEN_SECONDS)

    def disconnect(self) -> None:
        """Let go of the store. What this process has on lease goes to others when the leases run out. Idempotent."""
        if self._thread.is_alive():
            self._call(self._end(), f"{self} was not left", False, OPEN_SECONDS)
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def settle(self, claimed: AttemptedRollout, status: AttemptStatus, *, async_op: bool) -> Any:
        """End a lease; for `DurableLease`."""
        return self._call(self._settle(claimed, status), f"a lease on {self} was not ended", async_op, OPEN_SECONDS)

    async def _put(self, requests: Sequence[RolloutRequest], timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._refuse_closed()
                await self._store.enqueue_many_rollouts(requests)
                reached("channel.put")
        except TimeoutError:
            raise CallLate(f"{self} did not say within {timeout:g} s whether it has the items") from None

    async def _get(self, key: str, timeout: float | None) -> Any:
        (item,) = await self._take(await self._claim(key, 1, None, None, timeout))
        return item

    async def _claim(
        self, key: str, n: int | None, weight: float | None, max_wait: float | None, timeout: float | None
    ) -> list[AttemptedRollout]:
        """Claim a batch; what was claimed for one that does not come about is handed back."""
        batch: list[AttemptedRollout] = []
        limit = min([seconds for seconds in (max_wait, timeout) if seconds is not None], default=None)
        is_late = False
        try:
            async with asyncio.timeout(limit or None):
                is_late = not await self._fill(batch, key, n, weight, may_wait=limit != 0)
        except TimeoutError:
            is_late = True
        except BaseException:
            await asyncio.shield(asyncio.wait_for(self._hand_back(batch), HAND_BACK_SECONDS))
            raise
        if is_late and timeout is not None and (max_wait is None or timeout < max_wait):
            await self._hand_back(batch)
            raise CallLate(f"{self}: {len(batch)} items came of key {key!r} within {timeout:g} s")
        return batch

    async def _fill(
        self, batch: list[AttemptedRollout], key: str, n: int | None, weight: float | None, *, may_wait: bool
    ) -> bool:
        """Whether the batch is whole, or nothing more will come."""
        total = wait = 0.0
        while (n is None or len(batch) < n) and (weight is None or total < weight):
            limit = n - len(batch) if n is not None and weight is None else 1
            claimed = await self._dequeue(key, limit, wait)
            wait = LOOK_SECONDS if may_wait else 0.0
            total += sum(map(_weight, claimed))
            if weight is not None and batch and total > weight:
                await self._hand_back(claimed)
                return True
            batch += claimed
            if not claimed and (not may_wait or await self._is_drained(key)):
                if may_wait and not batch:
                    raise ChannelClosed(f"{self} is closed and has nothing more to read of key {key!r}")
                return may_wait
        return True

    async def _dequeue(self, key: str, limit: int, wait: float) -> list[AttemptedRollout]:
        """A claim that is cancelled half-way is repeated by its id, and what it brought handed back."""
        ask = {"worker_id": self._reader, "tags": [self._tag(key)], "request_id": secrets.token_hex(8)}
        try:
            claimed = await self._store.dequeue_many_rollouts(limit, wait=wait, **ask)  # type: ignore[arg-type]
        except asyncio.CancelledError:
            again = self._store.dequeue_many_rollouts(limit, wait=0.0, **ask)  # type: ignore[arg-type]
            await self._hand_back(await asyncio.wait_for(again, HAND_BACK_SECONDS))
            raise
        reached("channel.claimed")
        self._held.update((one.attempt.attempt_id, one) for one in claimed)
        if self._held and self._beating is None:
            self._beating = self._loop.create_task(self._beat(), name=f"leases of {self}")
        return list(claimed)

    async def _take(self, claimed: Sequence[AttemptedRollout]) -> list[Any]:
        items = await self._read(claimed)
        for one in claimed:
            await self._settle(one, AttemptStatus.SUCCEEDED)
        return items

    async def _read(self, claimed: Sequence[AttemptedRollout]) -> list[Any]:
        """The items; if one cannot be read here, all are handed back."""
        items = []
        for one in claimed:
            try:
                items.append(from_stored(one.input, allow_pickle=self._allow_pickle))
            except ChannelError as exc:
                await self._hand_back(claimed)
                raise ChannelError(f"item {one.rollout_id} of {self} {exc}") from exc.__cause__
        return items

    async def _hand_back(self, claimed: Iterable[AttemptedRollout]) -> None:
        for one in claimed:
            with suppress(ChannelError):  # others may have it already
                await self._settle(one, AttemptStatus.CANCELLED)

    async def _settle(self, claimed: AttemptedRollout, status: AttemptStatus) -> None:
        self._held.pop(claimed.attempt.attempt_id, None)
        try:
            await self._store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
            reached("channel.settled")
        except LeaseLost as exc:
            raise ChannelError(f"this lease on an item of {self} was over: {exc.reason}") from exc

    async def _beat(self) -> None:
        """Renew the leases while there are any."""
        seconds = self._config.unresponsive_seconds / 4
        while True:
            try:
                for lost in await self._store.heartbeat(self._reader, self._held.keys(), wait=seconds):
                    self._held.pop(lost.attempt_id, None)
            except StoreError as exc:
                _log.warning("the leases of %s were not renewed: %s", self, exc)
                await asyncio.sleep(seconds)
            if not self._held:
                self._beating = None
                return

    async def _close(self, *, drain: bool) -> None:
        await self._store.enqueue_rollout(None, rollout_id=self._closed_id)
        reached("channel.close_noted")
        await self._store.cancel_rollouts([self._closed_id])
        reached("channel.closed")
        if not drain:
            left = await self._store.query_rollouts(status_in=QUEUED)
            mine = [one.rollout_id for one in left if (one.tag or "").startswith(self._tag(""))]
            await self._store.cancel_rollouts(mine)

    async def _refuse_closed(self) -> None:
        if await self._store.get_rollout_by_id(self._closed_id) is not None:
            raise ChannelClosed(f"{self} is closed")

    async def _is_drained(self, key: str) -> bool:
        is_closed = await self._store.get_rollout_by_id(self._closed_id) is not None
        return is_closed and not await self._count(key, QUEUED | LIVE)

    async def _count(self, key: str, states: Iterable[Any]) -> int:
        return (await self._store.query_rollouts(tag=self._tag(key), status_in=list(states), limit=0)).total

    async def _end(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        await self._store.close()

    @property
    def _closed_id(self) -> str:
        return f"channel/{self.name}/closed"

    def _tag(self, key: str) -> str:
        return f"channel/{self.name}/{key}"

    def _packed(self, item: Any) -> bytes | str:
        try:
            return to_stored(item, allow_pickle=self._allow_pickle)
        except InvalidInput as exc:
            raise InvalidInput(f"a {type(item).__name__} cannot be put on {self}: {exc}") from exc

    def _call(self, coroutine: Coroutine[Any, Any, T], what: str, async_op: bool, timeout: float | None) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if async_op:
            return _Revocable(future, what)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            raise CallLate(f"{what} within {timeout:g} s") from None
        finally:
            future.cancel()

    def _live(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(OPEN_SECONDS)


class _Revocable(Pending[T]):
    """Cancelling an await of it gives the operation up: what was claimed for it is handed back."""

    async def async_wait(self) -> T:
        return await asyncio.wrap_future(self._future)


class DurableLease(Generic[T]):
    """As `Leased`: `ack` or `give_back`; as a context manager it does the one or the other."""

    def __init__(self, channel: DurableChannel, claimed: AttemptedRollout, item: T) -> None:
        self._channel = channel
        self._claimed = claimed
        self.item = item

    def ack(self, async_op: bool = False) -> Any:
        return self._channel.settle(self._claimed, AttemptStatus.SUCCEEDED, async_op=async_op)

    def give_back(self, async_op: bool = False) -> Any:
        return self._channel.settle(self._claimed, AttemptStatus.CANCELLED, async_op=async_op)

    def __enter__(self) -> T:
        return self.item

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ack() if kind is None else self.give_back()


def _weight(claimed: AttemptedRollout) -> float:
    """As its producer said; nothing if somebody else put it there and said no number."""
    weight = claimed.metadata.get("weight")
    return weight if isinstance(weight, int | float) else 0.0


async def _open(url: str) -> Store:
    return await open_store(url)

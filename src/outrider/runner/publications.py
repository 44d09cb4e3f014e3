"""What trainers publish, as one worker knows it.

Invariants:
- Nothing is asked of the store before something here needs to know.
- Nobody is told of a version, or that calls may begin, before the store was looked at once.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from outrider.core.clock import Clock, sleep, wait
from outrider.core.errors import PolicyError, StoreError, StoreUnavailable
from outrider.core.published import PublishedPolicy, published_in
from outrider.store import Resources, Store
from outrider.store.outage import RepeatedCall

_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""How long one call waits for news."""

CALL_SECONDS = 30.0
"""How long the store may take to answer, beside what it waits."""

UNAVAILABLE_SECONDS = 1.0
"""The pause before trying a store again that could not be reached."""

PIN_SECONDS = 60.0
"""How long to wait at most for a version that was not published yet."""


class Publications:
    """The newest published policy and those before it; `run` keeps them up to date once `need` was called.

    Each holds what it has in common with the one before: `model` and `base_urls` are None and empty only as long as
    none were ever published.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.newest = PublishedPolicy()
        self._store = store
        self._clock = clock
        self._seen: dict[int, PublishedPolicy] = {}
        self._needed = asyncio.Event()
        self._found: Resources | None = None
        self._has_looked = False
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    @property
    def is_needed(self) -> bool:
        return self._needed.is_set()

    def need(self) -> None:
        """Watch from now on."""
        self._needed.set()

    async def run(self) -> None:
        await self._needed.wait()
        after, looking = 0, RepeatedCall(self._store.outage)
        while True:
            try:
                with looking:
                    async with asyncio.timeout(LOOK_SECONDS + CALL_SECONDS):
                        # The first look must not wait: perhaps nothing was ever published.
                        seconds = LOOK_SECONDS if self._has_looked else 0.0
                        found = await self._store.get_latest_resources(after=after, wait=seconds)
            except (StoreUnavailable, TimeoutError):
                await sleep(self._clock, UNAVAILABLE_SECONDS)
                continue
            if found is not None:
                after = found.version
                self._take(found)
            self._has_looked = True
            self._tell()

    async def resources(self, version: int) -> Mapping[str, Any]:
        """One version of the resources. They never change, so the last one that was asked for is kept."""
        if self._found is None or self._found.version != version:
            async with asyncio.timeout(CALL_SECONDS):
                found = await self._store.handle().get_resources(version)  # perhaps from an agent's thread
            if found is None:
                raise StoreError(f"there is no version {version} of the resources in this store")
            self._found = found
        return self._found.resources

    async def reached(self, version: int) -> None:
        """Wait until this version is published, or a newer one."""
        await self._until(lambda: self.newest.version >= version)

    async def unpaused(self) -> None:
        """Wait until model calls may begin."""
        await self._until(lambda: not self.newest.paused)

    async def pinned(self, version: int, seconds: float) -> PublishedPolicy:
        """What was published as exactly this version.

        Raises `PolicyError` if it does not come within `seconds`, a minute at most, or can no longer come.
        """
        limit = min(seconds, PIN_SECONDS)
        is_there = await self._until(lambda: version in self._seen or self.newest.version >= version, limit)
        if version in self._seen:
            return self._seen[version]
        if version == self.newest.version:  # the version that all begin with need not be published
            return self.newest
        why = f"there is {self.newest.version} by now" if is_there else f"it was not published within {limit:g} s"
        raise PolicyError(
            f"the rollout is pinned to policy version {version}, which this worker has not seen: {why}",
            stage="policy.complete",
        )

    def completed(self, published: PublishedPolicy) -> PublishedPolicy:
        """A publication from the store's history, with what it leaves out as this worker has seen it, if it has."""
        return published.after(self._seen.get(published.version, PublishedPolicy()))

    async def _until(self, holds: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until it holds, or so many seconds: whether it does. Those who wait are woken in their order."""
        deadline = self._clock.monotonic() + seconds
        number = next(self._numbers)
        while not (self._has_looked and holds()):
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[number] = news
            try:
                if math.isinf(deadline):
                    await news
                elif not await wait(self._clock, news, deadline - self._clock.monotonic()):
                    return False
            finally:
                del self._waiters[number]
        return True

    def _take(self, found: Resources) -> None:
        try:
            published = published_in(found.resources)
        except msgspec.ValidationError as exc:
            _log.error("resources %d hold a policy that cannot be read, so they are left out: %s", found.version, exc)
            return
        before = self.newest
        if published is None or published.version < before.version:  # versions never fall: this one came late
            return
        self.newest = published.after(before)
        self._seen[published.version] = self.newest

    def _tell(self) -> None:
        for news in self._waiters.values():
            if not news.done():
                news.set_result(None)

"""A store as one process sees it over a bad network: calls and answers come late or never, and processes die."""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from outrider.core.errors import StoreUnavailable
from outrider.store import Store
from outrider.testing.virtual_time import RESOLUTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How bad it is: how long each way takes at most, and how often a call or an answer is lost."""

    latency_seconds: float = 0.01
    lost_calls: float = 0.02
    lost_answers: float = 0.02


class UnreliableStore:
    """Stands for one process's connection to `store`. Delays are the running loop's, chances are those of `rng`."""

    def __init__(self, store: Store, rng: random.Random, network: Network | None = None) -> None:
        self._store = store
        self._rng = rng
        self._network = network or Network()
        self._frozen_until = 0.0
        self.is_dead = False

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._over_network(found) if asyncio.iscoroutinefunction(found) else found

    def freeze(self, seconds: float) -> None:
        """Nothing gets through for so long, neither calls nor answers; then all of it does."""
        self._frozen_until = asyncio.get_running_loop().time() + seconds

    def die(self) -> None:
        """The process is gone: no further call reaches the store, and nobody hears an answer."""
        self.is_dead = True

    def _over_network(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(call)
        async def made(*args: Any, **kwargs: Any) -> Any:
            await self._travel(self._network.lost_calls, "the call was lost")
            answer = await call(*args, **kwargs)
            await self._travel(self._network.lost_answers, "the answer was lost")
            return answer

        return made

    async def _travel(self, lost: float, how: str) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._rng.uniform(0.0, self._network.latency_seconds))
        while (left := self._frozen_until - loop.time()) > RESOLUTION:  # noqa: ASYNC110 it may be frozen anew meanwhile
            await asyncio.sleep(left)
        if self.is_dead:
            raise StoreUnavailable("this process is dead")
        if self._rng.random() < lost:
            raise StoreUnavailable(how)

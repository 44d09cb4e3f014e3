"""The policy of each model call, as trainers publish it: the newest version, or the one a rollout is pinned to.

Invariants:
- No call begins while the newest publication is paused.
- A call has one policy from its beginning to its end. A policy that was opened for an earlier publication is closed
  when no call is under way on it.
- The worker's own policy is never closed here.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from outrider.agent.lending import Loan, Reopening
from outrider.core.clock import Clock
from outrider.core.errors import InvalidInput, OutriderError, PolicyError
from outrider.core.published import PublishedPolicy, Served
from outrider.policy import ChatPolicy
from outrider.policy.spec import PolicySpec
from outrider.runner.publications import Publications

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Opened:
    """A policy that was opened here. `roles` are the names and own specs of those in whose place it stands."""

    policy: ChatPolicy
    roles: set[tuple[str, PolicySpec]] = field(default_factory=set)
    n_calls: int = 0

    def serves(self, spec: PolicySpec, newest: PublishedPolicy) -> bool:
        return any(_spec_of(own, newest.served(name)) == spec for name, own in self.roles)


class PublishedPolicies:
    """Lends policies to the model calls of one worker. As long as nothing here is needed, that is its own."""

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._opened: dict[PolicySpec, _Opened] = {}
        self._opening = asyncio.Lock()
        self._call_ended = asyncio.Event()

    async def lend(
        self,
        policy: ChatPolicy,
        reopening: Reopening | None,
        *,
        pin: int | PublishedPolicy | None,
        seconds: float,
        name: str = "",
    ) -> Loan:
        """See `PolicyLender`."""
        if pin is None and not self._publications.is_needed:
            return Loan(policy)
        published, spec = await self._usable(reopening, name, pin, seconds)
        if spec is None or reopening is None:
            return Loan(policy, published.version)
        opened = self._opened[spec]
        opened.roles.add((name, reopening.spec))
        opened.n_calls += 1
        return Loan(opened.policy, published.version, partial(self._given_back, opened))

    def _given_back(self, opened: _Opened) -> None:
        opened.n_calls -= 1
        self._call_ended.set()

    async def run(self) -> None:
        """Close what is not used any more, until cancelled."""
        while True:
            await self._call_ended.wait()
            self._call_ended.clear()
            newest = self._publications.newest
            for spec, opened in tuple(self._opened.items()):
                if opened.n_calls == 0 and not opened.serves(spec, newest):
                    del self._opened[spec]
                    await _closed(opened.policy)

    async def close(self) -> None:
        while self._opened:
            _, opened = self._opened.popitem()
            await _closed(opened.policy)

    async def _usable(
        self, reopening: Reopening | None, name: str, pin: int | PublishedPolicy | None, seconds: float
    ) -> tuple[PublishedPolicy, PolicySpec | None]:
        """The publication to use now, and the policy of it that is open; None: the worker's own."""
        publications = self._publications
        publications.need()
        while True:
            pinned = await publications.pinned(pin, seconds) if isinstance(pin, int) else pin
            await publications.unpaused()
            published = publications.newest if pinned is None else publications.completed(pinned)
            spec = None if reopening is None else _spec_of(reopening.spec, published.served(name))
            if reopening is None or spec is None or spec in self._opened:
                return published, spec
            await self._open(reopening, spec, published.version)  # meanwhile another may be published, or a pause

    async def _open(self, reopening: Reopening, spec: PolicySpec, version: int) -> None:
        async with self._opening:
            if spec in self._opened:
                return
            try:
                self._opened[spec] = _Opened(await reopening.open(spec))
            except InvalidInput as exc:
                raise PolicyError(
                    f"policy version {version} cannot be used as it was published: {exc}", stage="policy.complete"
                ) from exc


class AttemptPolicies:
    """Lends them to one attempt, and knows since when it waits for one: the trainer that paused them may be dead."""

    __slots__ = ("_clock", "_policies", "_waiting")

    def __init__(self, policies: PublishedPolicies, clock: Clock) -> None:
        self._policies = policies
        self._clock = clock
        self._waiting: list[float] = []

    @property
    def waits_since(self) -> float | None:
        """When the first of the calls that still wait began to; None: no call waits."""
        return min(self._waiting, default=None)

    async def lend(
        self,
        policy: ChatPolicy,
        reopening: Reopening | None,
        *,
        pin: int | PublishedPolicy | None,
        seconds: float,
        name: str = "",
    ) -> Loan:
        """See `PolicyLender`."""
        began = self._clock.monotonic()
        self._waiting.append(began)
        try:
            return await self._policies.lend(policy, reopening, pin=pin, seconds=seconds, name=name)
        finally:
            self._waiting.remove(began)


def _spec_of(own: PolicySpec, served: Served) -> PolicySpec | None:
    """The policy to open where one is served; None: it is the worker's own."""
    from outrider.policy.openai.address import moved  # noqa: PLC0415 what only a trainer that publishes needs

    spec = moved(own, model=served.model or own.model, urls=served.base_urls or own.base_urls)
    return None if spec == own else spec


async def _closed(policy: ChatPolicy) -> None:
    try:
        await policy.close()
    except (OutriderError, OSError) as exc:
        _log.warning("a policy that is not used any more could not be closed: %s", exc)

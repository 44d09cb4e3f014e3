"""Claims: one statement takes the heads of the queue, for all callers of this process that ask at the same time.

Invariants:
- Rows are taken in the exact order of the queue, but for those that another claim is taking right now; no row is locked
  that is not taken, so that no other claim finds the queue empty while something waits in it.
- Every statement carries a request id, the caller's or one of its own, and each row its place in that request; both are
  unique together, so that a claim whose reply was lost can be sent again and takes nothing twice.
- The cost depends on the limit and the number of tags asked for, not on the number of rows or of other tags.
"""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, repeat
from operator import itemgetter
from secrets import token_hex
from typing import Any

from msgspec import Struct

from outrider.core.errors import StoreError
from outrider.core.ids import new_id
from outrider.core.lifecycle import Signal
from outrider.core.rollout import AttemptedRollout
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.held import Held
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.links import Links
from outrider.store.postgres.moves import Ending, end, landed
from outrider.store.postgres.queries import SQL
from outrider.store.postgres.workers import Workers
from outrider.store.rows import Current
from outrider.store.steps import ISOLATED, UNREADABLE, Claim, lane_of

CLAIMED_AT_ONCE = 256
"""Rollouts one statement takes at most, since each needs a worker named beforehand."""

MANY_TAGS = 16
LOOKED_AT = 256
"""A claim that names more tags than that looks for them first among so many rollouts."""

SPARE_CANDIDATES = 16
DEEPER = 8


def claim_key(claim: Claim) -> Hashable:
    """Claims with the same key can be carried out as one."""
    return claim.tags, claim.mode, claim.isolated, claim.request_id


def claimed_of(row: asyncpg.Record) -> tuple[Current, AttemptedRollout]:
    """A live rollout from the columns `queries.CLAIMED`. Raises one of `UNREADABLE`."""
    values = tuple(row)
    current = _current_of(values)
    return current, rows.attempted_of(values, rows.live_attempt(current))


def _current_of(values: Sequence[Any]) -> Current:
    seq, status, n_attempts, *rest = values[11:-1]
    return Current(seq, values[0], status, values[2], values[3], values[7], n_attempts, values[10], *rest)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One statement's worth of claims: a worker for each rollout it may take, after `n_before` of the same request."""

    request_id: str
    n_before: int
    worker_ids: list[str]

    def rest(self, n_taken: int) -> tuple[int, str, list[str], str, int]:
        """The parameters that all claims share, after `n_taken` were taken."""
        worker_ids = self.worker_ids[n_taken:]
        return len(worker_ids), token_hex(4), worker_ids, self.request_id, self.n_before + n_taken


class _Taken(Struct, frozen=True):
    """What one statement took: rollouts with their places among them, and the places of those that cannot be read."""

    rollouts: list[tuple[int, AttemptedRollout]]
    unreadable: list[int]

    def __len__(self) -> int:
        return len(self.rollouts) + len(self.unreadable)


class Claims:
    """Carries out claims, and remembers in `held` what this process holds, for the reports that will follow."""

    def __init__(self, links: Links, clock: DatabaseClock, bell: PostgresBell, workers: Workers, held: Held) -> None:
        self._links = links
        self._clock = clock
        self._bell = bell
        self._workers = workers
        self._held = held

    async def carry_out(self, claims: Sequence[Claim]) -> list[tuple[AttemptedRollout, ...]]:
        """What each of these claims, all with the same key, has got."""
        if claims[0].request_id is None:
            return await self._share(claims, new_id("rq"))
        # The same request, sent again before it was answered: one claim, and one answer for all.
        found = await self._recall(claims[0].request_id, claims[0].worker_id)
        if not found:
            (found,) = await self._share(claims[:1], claims[0].request_id)
        return [found] * len(claims)

    async def _share(self, claims: Sequence[Claim], request_id: str) -> list[tuple[AttemptedRollout, ...]]:
        """Claim for all of them under one request id, and give each its share."""
        first = claims[0]
        shares: list[list[AttemptedRollout]] = [[] for _ in claims]
        takers = chain.from_iterable(repeat(index, claim.limit) for index, claim in enumerate(claims))
        n_taken = 0
        while slice_of_takers := list(islice(takers, CLAIMED_AT_ONCE)):
            ask = _Ask(request_id, n_taken, [claims[index].worker_id for index in slice_of_takers])
            taken = await self._take(ask, first)
            for place, rollout in taken.rollouts:
                # With a request of the caller's own, perhaps what another process claimed by it a moment ago.
                index = 0 if first.request_id is not None else slice_of_takers[place - 1]
                shares[index].append(rollout)
            n_taken += len(taken)
            if len(taken) < len(slice_of_takers):
                break
            takers = chain([slice_of_takers[place - 1] for place in taken.unreadable], takers)
        return [tuple(share) for share in shares]

    async def _recall(self, request_id: str, worker_id: str) -> tuple[AttemptedRollout, ...]:
        """What a claim that a caller repeats has got before and still holds."""

        async def step(link: Link, _repeated: bool) -> Sequence[asyncpg.Record]:
            await self._workers.see(link, [worker_id])
            return await link.fetch(SQL["claimed_by_request"], request_id, 0)

        recalled = []
        for row in await self._links.run(step):
            with suppress(*UNREADABLE):  # it ends with its lease
                recalled.append(claimed_of(row)[1])
        return tuple(recalled)

    async def _take(self, ask: _Ask, claim: Claim) -> _Taken:
        """What was taken, places counted from 1. What cannot be read ends at once, as failed."""

        async def step(link: Link, repeated: bool) -> Sequence[asyncpg.Record]:
            await self._workers.see(link, ask.worker_ids)
            again = (SQL["claimed_by_request"], ask.request_id, ask.n_before)
            if repeated and (found := await link.fetch(*again)):
                return found
            try:
                return await self._take_heads(link, ask, claim)
            except asyncpg.UniqueViolationError:
                return await link.fetch(*again)

        taken = _Taken([], [])
        endings = []
        for row in await self._links.run(step):
            place = row[-1] - ask.n_before
            try:
                current, rollout = claimed_of(row)
            except UNREADABLE as exc:
                current = rows.set_aside(_current_of(tuple(row)))
                failure = rows.unreadable(f"rollout {current.rollout_id!r}", exc)
                endings.append(Ending(current, landed(current, Signal.FAIL), failure=failure))
                taken.unreadable.append(place)
            else:
                self._held.remember(current)
                taken.rollouts.append((place, rollout))
        taken.rollouts.sort(key=itemgetter(0))
        if endings:
            await self._end_unreadable(endings)
        return taken

    async def _end_unreadable(self, endings: Sequence[Ending]) -> None:
        with suppress(StoreError):  # then they end with their leases, and what else was claimed is not lost
            await self._links.transact(lambda link: end(link, self._bell, endings, self._clock.now()))
            self._bell.ring_here(Topic.ENDED)

    async def _take_heads(self, link: Link, ask: _Ask, claim: Claim) -> Sequence[asyncpg.Record]:
        now = self._clock.given
        if claim.takes_any:
            return await link.fetch(SQL["claim_of_all"], *ask.rest(0), now)
        if claim.tags is None and claim.mode is not None and not claim.isolated:
            return await link.fetch(SQL["claim_of_mode"], *ask.rest(0), now, claim.mode)
        taken: Sequence[asyncpg.Record] = []
        if claim.tags is not None and len(claim.tags) > MANY_TAGS and not claim.isolated:
            taken = await link.fetch(SQL["claim_of_tags"], *ask.rest(0), now, list(claim.tags), claim.mode, LOOKED_AT)
            if len(taken) == len(ask.worker_ids) or await link.fetchval(SQL["n_ahead"], LOOKED_AT) < LOOKED_AT:
                return taken
        lanes = await self._lanes(link, claim)
        if not lanes:
            return []
        if len(lanes) == 1:
            return await link.fetch(SQL["claim_of_lane"], *ask.rest(0), now, lanes[0])
        return [*taken, *await self._take_from_lanes(link, ask, len(taken), lanes, now)]

    @staticmethod
    async def _take_from_lanes(
        link: Link, ask: _Ask, n_before: int, lanes: list[str], now: float | None
    ) -> Sequence[asyncpg.Record]:
        """Take the best of several lanes; look deeper while others hold all candidates but more is waiting."""
        wanted = len(ask.worker_ids) - n_before
        depth = wanted + SPARE_CANDIDATES
        taken = await link.fetch(SQL["claim_of_lanes"], *ask.rest(n_before), now, lanes, depth)
        while len(taken) < wanted:
            deeper = depth * DEEPER
            n_waiting = await link.fetchval(SQL["n_waiting"], lanes, deeper)
            if n_waiting == 0:
                break
            depth = n_waiting + SPARE_CANDIDATES
            taken += await link.fetch(SQL["claim_of_lanes"], *ask.rest(n_before + len(taken)), now, lanes, depth)
            if n_waiting < deeper:
                break
        return taken

    @staticmethod
    async def _lanes(link: Link, claim: Claim) -> list[str]:
        """The lanes a claim takes from; lanes of unknown tags are found in the index."""
        if claim.tags is not None:
            return claim.lanes
        prefix = ISOLATED if claim.mode is None else lane_of(claim.mode, None, isolated=claim.isolated)
        return [row[0] for row in await link.fetch(SQL["lanes"], prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))]

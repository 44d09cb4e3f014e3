"""Workers: when they were heard of, and the heartbeats that renew their leases."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import astuple

from outrider.core.attempt import LostLease
from outrider.store import rows
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link
from outrider.store.postgres.links import Links
from outrider.store.postgres.queries import SQL
from outrider.store.rows import WORKER_SEEN_EVERY, Current
from outrider.store.steps import WorkerNote, lease_seconds

Heartbeat: TypeAlias = tuple[str, frozenset[str]]
"""A worker, and the attempts it believes to hold."""

REMEMBERED = 10_000


class Workers:
    """Notes that workers were heard of, and carries out heartbeats."""

    def __init__(self, links: Links, clock: DatabaseClock) -> None:
        self._links = links
        self._clock = clock
        self._seen: dict[str, float] = {}

    async def see(self, link: Link, worker_ids: Sequence[str]) -> None:
        """Note workers that have called; those noted a moment ago cost nothing.

        Remembered first: a claim and a heartbeat that are made together note their worker once.
        """
        now = self._clock.monotonic()
        due = sorted({name for name in worker_ids if now >= self._seen.get(name, -math.inf) + WORKER_SEEN_EVERY})
        if not due:
            return
        if len(self._seen) > REMEMBERED:
            self._seen.clear()
        self._seen.update(dict.fromkeys(due, now))
        try:
            await link.execute(SQL["see_workers"], due, self._clock.given, WORKER_SEEN_EVERY)
        except BaseException:
            for name in due:
                self._seen.pop(name, None)
            raise

    async def note(self, notes: Sequence[WorkerNote]) -> None:
        """Count what workers have done."""
        table = [astuple(note) for note in notes]
        values = (*map(list, zip(*table, strict=True)), self._clock.now())
        await self._links.execute_once(SQL["note_workers"], *values)

    async def renew(self, heartbeats: Sequence[Heartbeat]) -> list[tuple[LostLease, ...]]:
        """Renew leases; of each heartbeat, those that are lost."""
        return await self._links.run(lambda link, _: self._renew(link, heartbeats))

    async def _renew(self, link: Link, heartbeats: Sequence[Heartbeat]) -> list[tuple[LostLease, ...]]:
        now = self._clock.given
        await self.see(link, [name for name, _ in heartbeats])
        wanted = {(name, attempt_id) for name, attempt_ids in heartbeats for attempt_id in attempt_ids}
        kept: set[tuple[str, str]] = set()
        if wanted:
            places = [seq for _, attempt_id in wanted if (seq := rows.seq_of(attempt_id)) is not None]
            held = [Current(*row) for row in await link.fetch(SQL["held"], places)]
            held = [current for current in held if (current.worker_id, current.attempt_id) in wanted]
            renewed = await self._prolong(link, held, now)
            kept = {(current.worker_id, current.attempt_id) for current in held if current.attempt_id in renewed}
        reasons = await ends_of(link, [attempt_id for _, attempt_id in wanted - kept])
        return [
            tuple(
                LostLease(attempt_id=attempt_id, reason=reasons[attempt_id])
                for attempt_id in sorted(attempt_ids)
                if (name, attempt_id) not in kept
            )
            for name, attempt_ids in heartbeats
        ]

    @staticmethod
    async def _prolong(link: Link, held: Sequence[Current], now: float | None) -> set[str]:
        """The attempts whose lease was renewed, among those that held one a moment ago."""
        if not held:
            return set()
        leases = [(current.seq, current.n_attempts, *lease_seconds(current.config)) for current in held]
        renewed = await link.fetch(SQL["renew"], *map(list, zip(*leases, strict=True)), now)
        return {row[0] for row in renewed}


async def ended_attempts(link: Link, places: Mapping[str, int | None]) -> dict[str, Sequence[Any]]:
    """Of these attempts and the places of their rollouts, those that have ended: the rollout's id, then its columns."""
    if not places:
        return {}
    known = [seq for seq in places.values() if seq is not None]
    return {row[1]: tuple(row) for row in await link.fetch(SQL["attempts_by_id"], list(places), known)}


async def ends_of(link: Link, attempt_ids: Sequence[str]) -> dict[str, str]:
    """Why these attempts no longer hold a lease."""
    ended = await ended_attempts(link, {id: rows.seq_of(id) for id in attempt_ids})
    return {id: str(ended[id][4]) if id in ended else "no such attempt" for id in attempt_ids}

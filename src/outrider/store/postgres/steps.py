"""The other atomic steps of the PostgreSQL engine: enqueue, start, change, cancel, revoke, expire, publish."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from secrets import token_hex
from typing import Any

from outrider.core.errors import OutriderError, RolloutConflict, UnknownId
from outrider.core.lifecycle import Signal
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.status import RolloutStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.held import Held
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.claims import claimed_of
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.links import Links
from outrider.store.postgres.moves import Ending, end, landed, topics_of
from outrider.store.postgres.queries import SQL
from outrider.store.postgres.workers import Workers
from outrider.store.protocol import Resources
from outrider.store.rows import Current
from outrider.store.steps import Change, Lease, NewRollout, Revocation, lane_of, lease_of

EXPIRED_AT_ONCE = 500
TALLIED_AT = 2_000
"""Rollouts that have ended since the tallies were kept, from which on they are added; of enqueues a tenth as many."""

TALLIED_AT_ONCE = 20_000
ENQUEUED_AT_ONCE = 2_000
"""Rows in one statement at most."""

BYTES_AT_ONCE = 32 << 20
"""Payload in one statement about at most, since the server takes no message of a gigabyte."""

LANE = 8
"""Where the lane stands among the parameters of `insert_rollouts` and `change`."""


class PostgresSteps:
    """Steps on a few connections; each rings the bell for what it changed."""

    def __init__(self, links: Links, clock: DatabaseClock, bell: PostgresBell, workers: Workers, held: Held) -> None:
        self._links = links
        self._clock = clock
        self._bell = bell
        self._workers = workers
        self._held = held

    async def enqueue(self, calls: Sequence[Sequence[NewRollout]]) -> list[tuple[Rollout, ...] | OutriderError]:
        """Add the rollouts of several calls, each call whole or not at all.

        All are tried in one statement; if an id is taken that does nothing, and each call looks into its own ids.
        """
        together = [new for call in calls for new in call]
        now = self._clock.now()
        if await self._insert_all(together, now):
            self._bell.ring_here(Topic.QUEUE)
            return [tuple(rows.fresh_rollout(new, now) for new in call) for call in calls]
        return [await self._enqueue_alone(call) for call in calls]

    async def _insert_all(self, together: Sequence[NewRollout], now: float) -> bool:
        """Whether all rollouts could be inserted; else none was."""
        slices = list(_slices(together))
        if len(slices) > 1:
            return False
        values = (*_columns(slices[0]), now, self._bell.channel, self._bell.message([Topic.QUEUE]))

        async def step(link: Link, _repeated: bool) -> bool:
            try:
                await link.fetch(SQL["insert_and_notify"], *values)
            except asyncpg.UniqueViolationError:
                return False
            return True

        return await self._links.run(step)

    async def _enqueue_alone(self, call: Sequence[NewRollout]) -> tuple[Rollout, ...] | OutriderError:
        async def step(link: Link) -> tuple[Rollout, ...]:
            now = self._clock.now()
            known = await insert_new(link, call, now)
            await link.execute(SQL["notify"], self._bell.channel, self._bell.message([Topic.QUEUE]))
            return tuple(known.get(new.rollout_id) or rows.fresh_rollout(new, now) for new in call)

        try:
            rollouts = await self._links.transact(step)
        except OutriderError as exc:
            return exc
        self._bell.ring_here(Topic.QUEUE)
        return rollouts

    async def start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        """Enqueue and claim; repeated with the same id it returns the attempt that the first call began."""

        async def step(link: Link) -> tuple[Current, AttemptedRollout]:
            if await insert_new(link, [new], self._clock.now()):
                row = await link.fetchrow(SQL["claimed_by_id"], new.rollout_id)
            else:
                row = await link.fetchrow(SQL["claim_one"], new.rollout_id, token_hex(4), worker_id, self._clock.given)
            assert row is not None
            if row["expires_at"] is None or row["worker_id"] != worker_id:
                raise RolloutConflict(new.rollout_id)
            return claimed_of(row)

        current, rollout = await self._links.transact(step)
        self._held.remember(current)
        await self._links.run(lambda link, _: self._workers.see(link, [worker_id]))
        return rollout

    async def cancel(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        """Cancel those that have not ended, in the order given."""

        async def read(link: Link) -> list[Ending]:
            found = {row["rollout_id"]: Current(*row) for row in await link.fetch(SQL["lock_current"], rollout_ids)}
            for rollout_id in rollout_ids:
                if rollout_id not in found:
                    raise UnknownId("rollout", rollout_id)
            currents = [found[rollout_id] for rollout_id in rollout_ids]
            open_ones = [current for current in currents if not RolloutStatus(current.status).is_final]
            return [Ending(current, landed(current, Signal.CANCEL)) for current in open_ones]

        return tuple(current.rollout_id for current in await self._take_away(read))

    async def revoke(self, revocation: Revocation) -> tuple[str, ...]:
        """Take all leases of a worker; the attempts concerned."""

        async def read(link: Link) -> list[Ending]:
            held = [Current(*row) for row in await link.fetch(SQL["lock_held"], revocation.worker_id)]
            signal, failure, isolates = revocation.signal(len(held)), revocation.failure, revocation.isolates
            return [Ending(current, landed(current, signal), failure=failure, isolates=isolates) for current in held]

        return tuple(current.attempt_id for current in await self._take_away(read))

    async def expire(self, now: float) -> int:
        """Take away leases that are due at that time of the server; how many."""

        async def read(link: Link) -> list[Ending]:
            due = [Current(*row) for row in await link.fetch(SQL["lock_expired"], now, EXPIRED_AT_ONCE)]
            verdicts = [lease_of(current.config, current.started_at).verdict(current.worker_id, now) for current in due]
            return [
                Ending(current, landed(current, signal), failure=failure)
                for current, (signal, failure) in zip(due, verdicts, strict=True)
            ]

        return len(await self._take_away(read))

    async def _take_away(self, read: Callable[[Link], Awaitable[list[Ending]]]) -> list[Current]:
        """End what `read` has found and locked, and wake those who hold it; the rollouts as they were before."""

        async def step(link: Link) -> list[Ending]:
            endings = await read(link)
            await end(link, self._bell, endings, self._clock.now(), [Topic.REVOKED])
            return endings

        endings = await self._links.transact(step)
        if endings:
            self._bell.ring_all_here({Topic.REVOKED, *topics_of(endings)})
        return [ending.current for ending in endings]

    async def tally(self) -> None:
        """Add to the tallies what was enqueued and what has ended since, unless somebody else does."""

        async def step(link: Link) -> bool:
            behind = await link.fetchval(SQL["lock_tallied"])
            if behind is None:
                return True
            # A statement sees all that was committed before it, and so all ends up to the place that is read here.
            end = await link.fetchval(SQL["feed_end"])
            to = min(behind + TALLIED_AT_ONCE, end)
            await link.execute(SQL["tally_enqueued"])
            await link.execute(SQL["tally_ended"], behind, to)
            await link.execute(SQL["set_tallied"], to)
            return bool(to == end)

        if not await self._links.run(lambda link, _: link.fetchval(SQL["is_tallied"], TALLIED_AT, TALLIED_AT // 10)):
            while not await self._links.transact(step):
                pass

    async def change(self, change: Change) -> Rollout:
        """Change a rollout that waits."""

        async def step(link: Link) -> Rollout:
            row = await link.fetchrow(SQL["lock_waiting"], change.rollout_id)
            if row is None:
                raise UnknownId("rollout", change.rollout_id)
            new, rollout = rows.changed_of(tuple(row), change)
            values = [column[0] for column in _columns([new])]
            values[LANE] = lane_of(new.request.mode, new.request.tag, isolated=rollout.is_set_aside)
            await link.execute(SQL["change"], *values)
            # Also of one that keeps its lane: a claim has passed it over while it was locked.
            await link.execute(SQL["notify"], self._bell.channel, self._bell.message([Topic.QUEUE]))
            return rollout

        rollout = await self._links.transact(step)
        self._bell.ring_here(Topic.QUEUE)
        return rollout

    async def put_resources(self, resources_id: str, data: bytes) -> Resources:
        """Publish the next version."""

        async def step(link: Link) -> Resources:
            await link.execute(SQL["lock_resources"])
            row = await link.fetchrow(SQL["insert_resources"], resources_id, data, self._clock.now())
            assert row is not None
            await link.execute(SQL["notify"], self._bell.channel, self._bell.message([Topic.PUBLISHED]))
            return rows.resources_of(tuple(row))

        resources = await self._links.transact(step)
        self._bell.ring_here(Topic.PUBLISHED)
        return resources


async def insert_new(link: Link, call: Sequence[NewRollout], now: float) -> dict[str, Rollout]:
    """Insert the rollouts whose ids are new; the others, if they are repetitions of what is there."""
    inserted: set[str] = set()
    for part in _slices(call):
        found = await link.fetch(SQL["insert_new_rollouts"], *_columns(part), now)
        inserted |= {row[0] for row in found}
    others = {new.rollout_id: new for new in call if new.rollout_id not in inserted}
    if not others:
        return {}
    known = {row[0]: rows.rollout_of(tuple(row)) for row in await link.fetch(SQL["rollouts_by_id"], list(others))}
    for rollout_id, new in others.items():
        if not new.matches(known[rollout_id]):
            raise RolloutConflict(rollout_id)
    return known


def _slices(together: Sequence[NewRollout]) -> Iterator[Sequence[NewRollout]]:
    """Stretches that fit into one statement each."""
    start = n_bytes = 0
    for place, new in enumerate(together):
        n_bytes += len(new.input) + len(new.metadata)
        if place > start and (place - start == ENQUEUED_AT_ONCE or n_bytes > BYTES_AT_ONCE):
            yield together[start:place]
            start, n_bytes = place, len(new.input) + len(new.metadata)
    yield together[start:]


def _columns(new: Sequence[NewRollout]) -> list[list[Any]]:
    """The parameters of `insert_rollouts`."""
    table = [
        (
            one.rollout_id,
            one.request.mode,
            one.request.tag,
            one.request.seed,
            one.request.group_id,
            one.request.priority,
            one.config,
            Lease(one.request.config, 0.0).renewed(0.0),
            one.lane,
            one.input,
            one.metadata,
            one.request.config.resources_version,
        )
        for one in new
    ]
    return [list(column) for column in zip(*table, strict=True)]

"""The ledger of groups in PostgreSQL: every step holds the ledger's row, so that steps and asks follow one another.

Invariants:
- A write looks at the epoch once it holds the row; whoever opened the ledger meanwhile is seen.
- An ask gets its number while its ledger's row is held, until it is committed: a lower number never appears later.
- Rows are locked in the order ledger, group, ask; no step that holds a rollout's row waits for a ledger's.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from outrider.core.account import Account
from outrider.core.errors import LedgerLost, UnknownId
from outrider.core.ledger import GroupEntry, Ledger
from outrider.store.bell import Topic
from outrider.store.ledger_rows import group_of, group_row, ledger_of, members_record
from outrider.store.ledger_steps import LedgerPlan, LedgerStep, plan_of
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.links import Links
from outrider.store.postgres.moves import leave_accounts
from outrider.store.postgres.queries import SQL
from outrider.store.postgres.steps import insert_new

ASKED_AT_ONCE = 1_000
"""Asks in one statement at most."""


class PostgresLedgers:
    """Steps on ledgers; each rings the bell for what it changed."""

    def __init__(self, links: Links, clock: DatabaseClock, bell: PostgresBell) -> None:
        self._links = links
        self._clock = clock
        self._bell = bell

    async def open(self, name: str, settings: bytes) -> Ledger:
        """Make the ledger, or begin its next epoch."""

        async def step(link: Link) -> Ledger:
            row = await link.fetchrow(SQL["open_ledger"], name, settings, self._clock.now())
            assert row is not None
            return ledger_of(tuple(row))

        return await self._links.transact(step)

    async def write(self, step: LedgerStep) -> None:
        """Carry out one step of the present owner."""
        causes = (Topic.QUEUE, step.new), (Topic.GRANTED, step.granted)
        topics = [topic for topic, cause in causes if cause]
        await self._links.transact(lambda link: self._write(link, step, topics))
        self._bell.ring_all_here(topics)

    async def _write(self, link: Link, step: LedgerStep, topics: Sequence[Topic]) -> None:
        ledger = await _hold(link, step)
        now = self._clock.now()
        found = await _groups(link, step.group_ids)
        known = await insert_new(link, step.new, now) if step.new else {}
        plan = plan_of(step, ledger, found, [new for new in step.new if new.rollout_id not in known], now)
        await _write_groups(link, step, plan, now)
        if step.fates:
            fates = [fate.value for fate in step.fates.values()]
            await link.execute(SQL["set_fates"], list(step.fates), fates, step.ledger)
        after = plan.version, plan.n_opened, plan.n_batches
        if after != (ledger.version, ledger.n_opened, ledger.n_batches):
            await link.execute(SQL["advance_ledger"], step.ledger, *after)
        if topics:
            await link.execute(SQL["notify"], self._bell.channel, self._bell.message(topics))

    async def ask(self, calls: Sequence[Sequence[tuple[str, str]]]) -> list[None]:
        """Note the asks of several calls, past those that cannot be."""
        rollout_ids, attempt_ids = map(list, zip(*chain.from_iterable(calls), strict=True))
        ring = self._bell.channel, self._bell.message([Topic.ASKED])
        values = (rollout_ids, attempt_ids, self._clock.now(), *ring)
        if await self._links.run(lambda link, _: link.fetch(SQL["ask"], *values)):
            self._bell.ring_here(Topic.ASKED)
        return [None] * len(calls)

    async def leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        left = rollout_id, attempt_id, account
        await self._links.run(lambda link, _: leave_accounts(link, [left]))


async def _hold(link: Link, step: LedgerStep) -> Ledger:
    """The ledger, held until the transaction ends, if the step is its present owner's."""
    row = await link.fetchrow(SQL["hold_ledger"], step.ledger)
    if row is None:
        raise UnknownId("ledger", step.ledger)
    ledger = ledger_of(tuple(row))
    if ledger.epoch != step.epoch:
        raise LedgerLost(step.ledger, step.epoch, ledger.epoch)
    return ledger


async def _groups(link: Link, group_ids: Sequence[str]) -> dict[str, GroupEntry]:
    rows = await link.fetch(SQL["groups_by_id"], group_ids) if group_ids else []
    return {row["group_id"]: group_of(tuple(row)) for row in rows}


async def _write_groups(link: Link, step: LedgerStep, plan: LedgerPlan, now: float) -> None:
    if plan.inserted:
        try:
            await link.execute(SQL["insert_groups"], *_columns(map(group_row, plan.inserted)))
        except asyncpg.UniqueViolationError as exc:
            raise asyncpg.TransactionRollbackError("another ledger has just opened a group of the same id") from exc
    if step.granted:
        # Of several grants to one attempt the first counts.
        first = {(grant.attempt_id, grant.group_id): grant.version for grant in reversed(step.granted)}
        await link.execute(SQL["grant"], *_columns(first), list(first.values()), step.ledger)
    if plan.moved:
        await link.execute(SQL["move_groups"], now, *_columns(map(_move_row, plan.moved)))
    if plan.closed:
        await link.execute(SQL["forget_asks"], plan.closed)


def _move_row(entry: GroupEntry) -> tuple[Any, ...]:
    """The parameters of `move_groups` for one group."""
    return entry.group_id, entry.state.value, entry.batch, members_record(entry), entry.reason


def _columns(table: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*table, strict=True)]

"""The public methods on ledgers, accounts and leave to begin, the same for every engine."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outrider.core import wire
from outrider.core.account import Account, AttemptAccount, Tally
from outrider.core.errors import InvalidInput
from outrider.core.ledger import Ask, Asks, GroupEntry, GroupState, Ledger, LedgerWrite, MemberProgress
from outrider.core.page import Page
from outrider.store.bell import Topic
from outrider.store.ledger_steps import GroupQuery, step_of
from outrider.store.steps import (
    check_feed,
    check_id,
    check_integer,
    check_kind,
    checked_account,
    checked_ids,
    members,
    several,
)
from outrider.store.waiting import Waiting


class LedgerMethods(Waiting):
    """See `outrider.store.protocol` for what these methods promise, and `outrider.core.ledger` for the invariants."""

    async def open_ledger(self, name: str, settings: Mapping[str, Any] | None = None) -> Ledger:
        self._check_writable()
        check_id("name of a ledger", name)
        check_kind("settings", {} if settings is None else settings, Mapping)
        return await self._open_ledger(name, wire.encode(dict(settings or {})))

    async def query_ledgers(self) -> tuple[Ledger, ...]:
        return await self._ledgers()

    async def write_ledger(self, ledger: Ledger, write: LedgerWrite) -> None:
        self._check_writable()
        await self._write_ledger(step_of(ledger, write))

    async def query_groups(
        self,
        ledger: str,
        *,
        states: Collection[GroupState | str] | None = None,
        batch: int | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> Page[GroupEntry]:
        return await self._query_groups(
            GroupQuery(
                ledger=ledger,
                states=members("states", GroupState, states),
                batch=batch,
                group_ids=None if group_ids is None else checked_ids("group_ids", group_ids),
                limit=limit,
                offset=offset,
            )
        )

    async def count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]:
        check_id("ledger", ledger)
        return await self._count_groups(ledger)

    async def ask_to_begin(self, asks: Sequence[tuple[str, str]]) -> None:
        self._check_writable()
        checked = tuple(map(_checked_ask, several("asks", asks, "pairs of rollout_id and attempt_id")))
        if checked:
            await self._ask(checked)

    async def asks_after(self, ledger: str, cursor: int = 0, *, limit: int = 1000, wait: float = 0.0) -> Asks:
        check_id("ledger", ledger)
        check_feed(cursor, limit)

        async def look() -> tuple[tuple[int, Ask], ...]:
            return await self._asks_after(ledger, cursor, limit)

        found = await self._look_until(Topic.ASKED, look, wait)
        return Asks(items=tuple(ask for _, ask in found), cursor=found[-1][0] if found else cursor)

    async def grants(self, attempt_ids: Collection[str], *, wait: float = 0.0) -> Mapping[str, int]:
        async def look() -> tuple[tuple[str, int], ...]:
            wanted = frozenset(checked_ids("attempt_ids", attempt_ids))
            granted = await self._grants(wanted) if wanted else {}
            return tuple(granted.items())

        return dict(await self._look_until(Topic.GRANTED, look, wait))

    async def leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        self._check_writable()
        check_id("rollout_id", rollout_id)
        check_id("attempt_id", attempt_id)
        await self._leave_account(rollout_id, attempt_id, checked_account(account))

    async def query_accounts(self, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
        wanted = checked_ids("rollout_ids", rollout_ids)
        return await self._query_accounts(wanted) if wanted else ()

    async def late_accounts(self, ledger: str, *, limit: int = 1000) -> tuple[AttemptAccount, ...]:
        check_id("ledger", ledger)
        check_integer("limit", limit, bits=64, least=1)
        return await self._late_accounts(ledger, limit)

    async def tally(self, ledger: str) -> Tally:
        check_id("ledger", ledger)
        return await self._tally(ledger)

    async def query_progress(self, ledger: str) -> tuple[MemberProgress, ...]:
        check_id("ledger", ledger)
        return await self._query_progress(ledger)


def _checked_ask(ask: tuple[str, str]) -> tuple[str, str]:
    match ask:
        case rollout_id, attempt_id:
            check_id("rollout_id", rollout_id)
            check_id("attempt_id", attempt_id)
            return rollout_id, attempt_id
        case _:
            raise InvalidInput(f"{ask!r} is not a request; give a pair of rollout_id and attempt_id for each attempt")

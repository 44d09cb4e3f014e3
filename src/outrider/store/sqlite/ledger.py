"""The steps of the SQLite engine on ledgers. Each checks everything before it writes, and writes by the batch."""

import json
from collections.abc import Sequence
from typing import Any

from outrider.core.account import Account
from outrider.core.errors import UnknownId
from outrider.core.ledger import Grant, GroupEntry, Ledger
from outrider.store import ledger_rows
from outrider.store.bell import Topic
from outrider.store.ledger_steps import LedgerPlan, LedgerStep, clocks_of, plan_of
from outrider.store.sqlite.reads import SQL
from outrider.store.sqlite.steps import SqliteSteps
from outrider.store.steps import NewRollout, account_record


class SqliteLedgers(SqliteSteps):
    """The writer's desk, with the steps on ledgers."""

    def open_ledger(self, name: str, settings: bytes) -> Ledger:
        return ledger_rows.ledger_of(self._db.execute(SQL["open_ledger"], (name, settings, self._now)).fetchone())

    def write_ledger(self, step: LedgerStep) -> None:
        row = self._db.execute(SQL["ledger"], (step.ledger,)).fetchone()
        if row is None:
            raise UnknownId("ledger", step.ledger)
        ledger = ledger_rows.ledger_of(row)
        known = self._known(step.new)
        fresh = [one for one in step.new if one.rollout_id not in known]
        plan = plan_of(step, ledger, self._groups(step.group_ids), fresh, self._now)
        for one in step.new:
            if one.rollout_id in known:
                self._repetition(one)
        self._many("insert_group", [ledger_rows.group_row(entry) for entry in plan.inserted])
        self._insert_members(fresh)
        self._grant(step)
        self._move(plan)
        self._many("set_fate", [(fate.value, attempt_id, step.ledger) for attempt_id, fate in step.fates.items()])
        reached = (plan.version, plan.n_opened, plan.n_batches)
        if reached != (ledger.version, ledger.n_opened, ledger.n_batches):
            self._db.execute(SQL["set_ledger"], (*reached, step.ledger))

    def ask(self, asks: Sequence[tuple[str, str]]) -> None:
        if self._db.execute(SQL["insert_asks"], (self._now, json.dumps(asks))).rowcount > 0:
            self._topics.add(Topic.ASKED)

    def leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        row = self._db.execute(SQL["ended_attempt"], (rollout_id, attempt_id, attempt_id)).fetchone()
        if row is not None:
            values = (attempt_id, account.completion_tokens, account_record(account), row[0])
            self._db.execute(SQL["insert_account"], values)

    def _known(self, new: Sequence[NewRollout]) -> frozenset[str]:
        """Which of them are there already."""
        if not new:
            return frozenset()
        ids = json.dumps([one.rollout_id for one in new])
        return frozenset(rollout_id for (rollout_id,) in self._db.execute(SQL["known_rollouts"], (ids,)))

    def _groups(self, group_ids: Sequence[str]) -> dict[str, GroupEntry]:
        found = self._db.execute(SQL["groups"], (json.dumps(group_ids),)) if group_ids else ()
        return {row[0]: ledger_rows.group_of(row) for row in found}

    def _insert_members(self, new: Sequence[NewRollout]) -> None:
        if not new:
            return
        (last,) = self._db.execute(SQL["last_seq"]).fetchone()
        members, inputs = [], []
        for seq, one in enumerate(new, last + 1):
            request = one.request
            columns = (request.mode.value, request.tag, request.seed, request.group_id, request.priority, one.config)
            members.append((seq, one.rollout_id, *columns, self._now, one.lane))
            inputs.append((seq, one.input, one.metadata))
        self._many("insert_member", members)
        self._many("insert_input", inputs)
        self._topics.add(Topic.QUEUE)

    def _grant(self, step: LedgerStep) -> None:
        """Grant what waits for it; what asked nothing, or was granted before, is passed over."""
        if not step.granted:
            return
        ids = json.dumps([grant.attempt_id for grant in step.granted])
        waiting = dict(self._db.execute(SQL["open_asks"], (ids, step.ledger)))
        effective: list[Grant] = []
        for grant in step.granted:
            if waiting.get(grant.attempt_id) == grant.group_id:
                del waiting[grant.attempt_id]
                effective.append(grant)
        if effective:
            self._many("set_granted", [(grant.version, grant.attempt_id) for grant in effective])
            self._many("set_clock", [(version, group_id) for group_id, version in clocks_of(effective).items()])
            self._topics.add(Topic.GRANTED)

    def _move(self, plan: LedgerPlan) -> None:
        self._many(
            "set_group",
            [
                (
                    entry.state.value,
                    entry.batch,
                    ledger_rows.members_record(entry),
                    entry.reason,
                    entry.moved_at.timestamp(),
                    entry.group_id,
                )
                for entry in plan.moved
            ],
        )
        if plan.closed:
            self._db.execute(SQL["forget_asks"], (json.dumps(plan.closed),))

    def _many(self, name: str, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            self._db.executemany(SQL[name], values)

"""The ledgers of the memory engine: groups, asks and accounts, with the steps on them.

Nothing here is found by going through all groups: they are indexed by ledger and state, asks by attempt and group, and
accounts by rollout; what is counted is counted as it changes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from msgspec.structs import replace

from outrider.core.account import Account, AttemptAccount, Fate, Tally
from outrider.core.attempt import Attempt
from outrider.core.clock import Clock, utc
from outrider.core.errors import UnknownId
from outrider.core.ledger import Ask, Grant, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.core.page import Page
from outrider.store import ledger_rows
from outrider.store.bell import Topic
from outrider.store.ledger_steps import GroupQuery, LedgerStep, clocks_of, plan_of
from outrider.store.memory.row import Row
from outrider.store.memory.steps import MemorySteps
from outrider.store.steps import Report, account_of, account_record, metadata_of


@dataclass(slots=True)
class _Ask:
    """Leave to begin that was asked for; `version` is set once it is granted."""

    seq: int
    ledger: str
    row: Row
    ask: Ask
    version: int | None = None

    @property
    def is_live(self) -> bool:
        return self.row.expires_at is not None and self.row.attempt_id == self.ask.attempt_id


@dataclass(slots=True)
class _Account:
    rollout_id: str
    attempt_id: str
    group_id: str
    ledger: str
    completion_tokens: int
    data: bytes
    fate: Fate | None = None

    @property
    def kept(self) -> AttemptAccount:
        return AttemptAccount(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            group_id=self.group_id,
            account=account_of(self.data),
            fate=self.fate,
        )


@dataclass(slots=True)
class _Ledger:
    """A ledger with what is found by it: `asks` are those not granted, oldest first, `late` what came too late."""

    standing: Ledger
    settings: bytes
    by_state: dict[GroupState, set[str]] = field(default_factory=lambda: {state: set() for state in GroupState})
    by_batch: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    counts: Counter[tuple[str, GroupState]] = field(default_factory=Counter)
    asks: dict[int, _Ask] = field(default_factory=dict)
    late: dict[str, _Account] = field(default_factory=dict)
    n_attempts: Counter[Fate | None] = field(default_factory=Counter)
    tokens: Counter[Fate | None] = field(default_factory=Counter)


class MemoryLedgers(MemorySteps):
    """The steps of the memory engine, those on ledgers among them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ledgers: dict[str, _Ledger] = {}
        self._groups: dict[str, GroupEntry] = {}
        self._n_asks = 0
        self._asks: dict[str, _Ask] = {}
        self._asks_of: defaultdict[str, list[str]] = defaultdict(list)
        self._accounts: dict[str, _Account] = {}
        self._accounts_of: defaultdict[str, list[_Account]] = defaultdict(list)
        self._open_accounts: defaultdict[str, list[_Account]] = defaultdict(list)

    def open_ledger(self, name: str, settings: bytes) -> Ledger:
        known = self._ledgers.get(name)
        opened_at = utc(self._clock.time())
        if known is None:
            new = Ledger(name=name, epoch=1, version=0, n_opened=0, n_batches=0, settings={}, opened_at=opened_at)
            known = self._ledgers[name] = _Ledger(new, settings)
        else:
            known.standing = replace(known.standing, epoch=known.standing.epoch + 1, opened_at=opened_at)
        return _shown(known)

    def ledgers(self) -> tuple[Ledger, ...]:
        return tuple(_shown(self._ledgers[name]) for name in sorted(self._ledgers))

    def write_ledger(self, step: LedgerStep) -> None:
        ledger = self._ledgers.get(step.ledger)
        if ledger is None:
            raise UnknownId("ledger", step.ledger)
        now = self._clock.time()
        found = {id: self._groups[id] for id in step.group_ids if id in self._groups}
        fresh = [one for one in step.new if one.rollout_id not in self._by_id]
        plan = plan_of(step, ledger.standing, found, fresh, now)
        for one in step.new:
            if one.rollout_id in self._by_id:
                self._repetition(one)
        for entry in plan.inserted:
            self._put_group(ledger, entry)
        for one in fresh:
            self._add(one, now)
        self._grant(ledger, step.granted)
        for entry in plan.moved:
            self._put_group(ledger, replace(entry, clock=self._groups[entry.group_id].clock))
        for group_id in plan.closed:
            self._close(ledger, group_id)
        for attempt_id, fate in step.fates.items():
            self._settle(ledger, attempt_id, fate)
        ledger.standing = replace(
            ledger.standing, version=plan.version, n_opened=plan.n_opened, n_batches=plan.n_batches
        )

    def groups(self, query: GroupQuery) -> Page[GroupEntry]:
        ledger = self._ledgers.get(query.ledger)
        found: list[GroupEntry] = []
        if ledger is not None:
            states = query.states if query.states is not None else tuple(GroupState)
            ids = set[str]().union(*(ledger.by_state[state] for state in states))
            if query.batch is not None:
                ids &= ledger.by_batch.get(query.batch, set())
            if query.group_ids is not None:
                ids &= set(query.group_ids)
            found = sorted((self._groups[id] for id in ids), key=lambda entry: entry.number)
        end = None if query.limit < 0 else query.offset + query.limit
        items = tuple(found[query.offset : end])
        return Page(items=items, total=len(found), limit=query.limit, offset=query.offset)

    def count_groups(self, name: str) -> Mapping[tuple[str, GroupState], int]:
        ledger = self._ledgers.get(name)
        return {} if ledger is None else {key: n for key, n in ledger.counts.items() if n}

    def ask(self, asks: Sequence[tuple[str, str]]) -> None:
        for rollout_id, attempt_id in asks:
            row = self._by_id.get(rollout_id)
            if row is None or row.expires_at is None or row.attempt_id != attempt_id or attempt_id in self._asks:
                continue
            group = self._groups.get(row.new.request.group_id or "")
            if group is None or group.state.is_closed:
                continue
            self._n_asks += 1
            ask = Ask(
                group_id=group.group_id,
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                asked_at=utc(self._clock.time()),
            )
            asked = _Ask(self._n_asks, group.ledger, row, ask)
            self._asks[attempt_id] = self._ledgers[group.ledger].asks[asked.seq] = asked
            self._asks_of[group.group_id].append(attempt_id)
            self.topics.add(Topic.ASKED)

    def asks_after(self, name: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
        ledger = self._ledgers.get(name)
        if ledger is None:
            return ()
        # From the end, so that asks before the cursor cost nothing.
        newest_first = takewhile(lambda asked: asked.seq > cursor, reversed(ledger.asks.values()))
        found = [asked for asked in newest_first if asked.is_live]
        return tuple((asked.seq, asked.ask) for asked in islice(reversed(found), limit))

    def grants(self, attempt_ids: frozenset[str]) -> Mapping[str, int]:
        found = ((id, self._asks[id].version) for id in attempt_ids if id in self._asks)
        return {id: version for id, version in found if version is not None}

    def report(self, report: Report) -> Attempt:
        attempt = super().report(report)
        if report.account is not None:
            self._keep_account(self._row(report.rollout_id), report.attempt_id, report.account)
        return attempt

    def leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        attempt = self._ended_attempts.get(attempt_id)
        if attempt is not None and attempt.rollout_id == rollout_id:
            self._keep_account(self._row(rollout_id), attempt_id, account)

    def accounts(self, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
        found = (one.kept for id in rollout_ids for one in self._accounts_of.get(id, ()))
        return ledger_rows.in_order(found, rollout_ids)

    def late_accounts(self, name: str, limit: int) -> tuple[AttemptAccount, ...]:
        ledger = self._ledgers.get(name)
        return () if ledger is None else tuple(one.kept for one in islice(ledger.late.values(), limit))

    def tally(self, name: str) -> Tally:
        ledger = self._ledgers.get(name)
        if ledger is None:
            return ledger_rows.tally_of(())
        return ledger_rows.tally_of((fate, n, ledger.tokens[fate]) for fate, n in ledger.n_attempts.items())

    def progress(self, name: str) -> tuple[MemberProgress, ...]:
        live = [(self._groups.get(row.new.request.group_id or ""), row) for row in self._live.values()]
        found = [
            (group.number, row.seq, row)
            for group, row in live
            if group is not None and group.ledger == name and group.state is GroupState.OPENED
        ]
        return tuple(self._progress_of(row) for _, _, row in sorted(found, key=lambda one: one[:2]))

    def _progress_of(self, row: Row) -> MemberProgress:
        current = row.current
        events = self._events.get(current.attempt_id)
        last = events[max(events)][:4] if events else (None, None, None, None)
        asked = self._asks.get(current.attempt_id)
        waited = (None, None) if asked is None else (asked.ask.asked_at.timestamp(), asked.version)
        about = (row.new.request.group_id, row.new.rollout_id, current.attempt_id, current.worker_id)
        return ledger_rows.progress_of((*about, current.tag, current.started_at, *last, *waited))

    def _put_group(self, ledger: _Ledger, entry: GroupEntry) -> None:
        before = self._groups.get(entry.group_id)
        if before is not None:
            ledger.by_state[before.state].discard(entry.group_id)
            ledger.counts[before.tag, before.state] -= 1
        self._groups[entry.group_id] = entry
        ledger.by_state[entry.state].add(entry.group_id)
        ledger.counts[entry.tag, entry.state] += 1
        if entry.batch is not None:
            ledger.by_batch[entry.batch].add(entry.group_id)

    def _grant(self, ledger: _Ledger, grants: Sequence[Grant]) -> None:
        effective = []
        for grant in grants:
            asked = self._asks.get(grant.attempt_id)
            if asked is None or asked.version is not None:
                continue
            if (asked.ledger, asked.ask.group_id) == (ledger.standing.name, grant.group_id):
                asked.version = grant.version
                del ledger.asks[asked.seq]
                effective.append(grant)
                self.topics.add(Topic.GRANTED)
        for group_id, version in clocks_of(effective).items():
            group = self._groups[group_id]
            clock = version if group.clock is None else min(group.clock, version)
            self._groups[group_id] = replace(group, clock=clock)

    def _close(self, ledger: _Ledger, group_id: str) -> None:
        """Forget what its members asked; accounts that have no fate are late from now on."""
        for attempt_id in self._asks_of.pop(group_id, ()):
            ledger.asks.pop(self._asks.pop(attempt_id).seq, None)
        for account in self._open_accounts.pop(group_id, ()):
            if account.fate is None:
                ledger.late[account.attempt_id] = account

    def _keep_account(self, row: Row, attempt_id: str, account: Account) -> None:
        group = self._groups.get(row.new.request.group_id or "")
        if group is None or attempt_id in self._accounts:
            return
        tokens = account.completion_tokens
        kept = _Account(row.new.rollout_id, attempt_id, group.group_id, group.ledger, tokens, account_record(account))
        self._accounts[attempt_id] = kept
        self._accounts_of[kept.rollout_id].append(kept)
        ledger = self._ledgers[group.ledger]
        ledger.n_attempts[None] += 1
        ledger.tokens[None] += tokens
        if group.state.is_closed:
            ledger.late[attempt_id] = kept
        else:
            self._open_accounts[group.group_id].append(kept)

    def _settle(self, ledger: _Ledger, attempt_id: str, fate: Fate) -> None:
        """Give an attempt its fate, unless it has one."""
        account = self._accounts.get(attempt_id)
        if account is None or account.fate is not None or account.ledger != ledger.standing.name:
            return
        account.fate = fate
        ledger.late.pop(attempt_id, None)
        for key, sign in ((None, -1), (fate, 1)):
            ledger.n_attempts[key] += sign
            ledger.tokens[key] += sign * account.completion_tokens


def _shown(ledger: _Ledger) -> Ledger:
    return replace(ledger.standing, settings=metadata_of(ledger.settings))

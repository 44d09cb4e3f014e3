"""Rows of the ledger's tables as values, the same for both SQL engines: times are unix seconds, payloads msgpack."""

from collections.abc import Iterable, Sequence
from typing import Any

from outrider.core import wire
from outrider.core.account import AttemptAccount, Fate, Tally
from outrider.core.clock import utc
from outrider.core.event import EventKind
from outrider.core.ledger import Ask, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.store.steps import account_of, metadata_of

LEDGER = "name, epoch, version, n_opened, n_batches, settings, opened_at"
"""The columns of `ledger_of`."""

GROUP = "group_id, ledger, number, state, tag, seed, size, clock, batch, members, reason, opened_at, moved_at"
"""The columns of `group_of` and `group_row`."""

ACCOUNT = "a.rollout_id, a.attempt_id, a.group_id, a.data, a.fate"
"""The columns of `attempt_account_of`."""

ASK = "a.ask_seq, a.group_id, a.rollout_id, a.attempt_id, a.asked_at"
"""The columns of `ask_of`: first its place."""

PROGRESS = (
    "r.group_id, r.rollout_id, r.attempt_id, r.worker_id, r.tag, r.started_at, e.place, e.kind, e.name, e.at, "
    "a.asked_at, a.version"
)
"""The columns of `progress_of`: `r` is the rollout, `e` its attempt's last event, `a` what that asked, if it did."""

CLOSED = ", ".join(f"'{state}'" for state in GroupState if state.is_closed)
"""The states of groups that are closed, for `IN`."""


def ledger_of(row: Sequence[Any]) -> Ledger:
    return Ledger(
        name=row[0],
        epoch=row[1],
        version=row[2],
        n_opened=row[3],
        n_batches=row[4],
        settings=metadata_of(row[5]),
        opened_at=utc(row[6]),
    )


def group_of(row: Sequence[Any]) -> GroupEntry:
    return GroupEntry(
        group_id=row[0],
        ledger=row[1],
        number=row[2],
        state=GroupState(row[3]),
        tag=row[4],
        seed=row[5],
        size=row[6],
        clock=row[7],
        batch=row[8],
        members=() if row[9] is None else tuple(wire.decode(row[9])),
        reason=row[10],
        opened_at=utc(row[11]),
        moved_at=utc(row[12]),
    )


def group_row(entry: GroupEntry) -> tuple[Any, ...]:
    return (
        *(entry.group_id, entry.ledger, entry.number, entry.state.value, entry.tag, entry.seed, entry.size),
        *(entry.clock, entry.batch, members_record(entry), entry.reason),
        *(entry.opened_at.timestamp(), entry.moved_at.timestamp()),
    )


def members_record(entry: GroupEntry) -> bytes | None:
    return wire.encode(list(entry.members)) if entry.members else None


def ask_of(row: Sequence[Any]) -> tuple[int, Ask]:
    return row[0], Ask(group_id=row[1], rollout_id=row[2], attempt_id=row[3], asked_at=utc(row[4]))


def attempt_account_of(row: Sequence[Any]) -> AttemptAccount:
    return AttemptAccount(
        rollout_id=row[0],
        attempt_id=row[1],
        group_id=row[2],
        account=account_of(row[3]),
        fate=None if row[4] is None else Fate(row[4]),
    )


def in_order(accounts: Iterable[AttemptAccount], rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
    """Rollout by rollout as asked, each with its attempts in their order, which their ids tell."""
    places = {rollout_id: place for place, rollout_id in enumerate(rollout_ids)}
    return tuple(sorted(accounts, key=lambda one: (places[one.rollout_id], int(one.attempt_id.split("-")[2]))))


def tally_of(rows: Iterable[tuple[str | None, int, int]]) -> Tally:
    """A tally from fate, how many attempts, how many tokens; what does not occur counts 0."""
    fates = (None, *Fate)
    n_attempts: dict[Fate | None, int] = dict.fromkeys(fates, 0)
    tokens: dict[Fate | None, int] = dict.fromkeys(fates, 0)
    for name, n, generated in rows:
        fate = None if name is None else Fate(name)
        n_attempts[fate], tokens[fate] = n, int(generated)
    return Tally(n_attempts=n_attempts, tokens=tokens)


def progress_of(row: Sequence[Any]) -> MemberProgress:
    place, kind, name, at, asked_at, version = row[6:]
    return MemberProgress(
        group_id=row[0],
        rollout_id=row[1],
        attempt_id=row[2],
        worker_id=row[3],
        tag=row[4],
        started_at=utc(row[5]),
        n_events=0 if place is None else place + 1,
        last_kind=None if kind is None else EventKind(kind),
        last_name=name or "",
        last_at=None if at is None else utc(at),
        asked_at=utc(asked_at) if asked_at is not None and version is None else None,
        is_granted=version is not None,
    )

"""Moving rollouts on when their attempts end: where to is `core.lifecycle`'s word, this writes it down."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.account import Account
from outrider.core.attempt import Attempt, Failure
from outrider.core.lifecycle import Signal
from outrider.core.status import Mode
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.driver import Link
from outrider.store.postgres.queries import SQL
from outrider.store.rows import Current, Landing, Outcome
from outrider.store.steps import account_record, failure_record, lane_of


class Ending(Struct, frozen=True):
    """A rollout as it was read, and where it goes. Without a `worker_id` the one in the row at that moment holds.

    `isolates`: if it waits again, it is set aside.
    """

    current: Current
    to: Landing
    worker_id: str | None = None
    reward: float | None = None
    failure: Failure | None = None
    account: Account | None = None
    isolates: bool = False

    @property
    def columns(self) -> tuple[Any, ...]:
        """The parameters of `set_ended` for this row; None for what is common."""
        current, to = self.current, self.to
        return (
            current.seq,
            current.n_attempts,
            None if current.is_live else False,
            None if to.status == "succeeded" else to.status,
            None if to.attempt_status == "succeeded" else to.attempt_status,
            None if to.n_failures == current.n_failures else to.n_failures,
            failure_record(self.failure),
            self.reward,
            self.worker_id,
        )

    @property
    def requeued_columns(self) -> tuple[Any, ...]:
        """The parameters of `set_requeued` for this row."""
        current, to = self.current, self.to
        lane = lane_of(Mode(current.mode), current.tag, isolated=self.isolates)
        outcome = (self.worker_id, to.attempt_status, self.reward)
        return current.seq, current.n_attempts, to.n_failures, failure_record(self.failure), lane, *outcome

    @property
    def account_columns(self) -> tuple[int, bytes] | tuple[None, None]:
        """The parameters of `keep_accounts` for this row."""
        account = self.account
        return (None, None) if account is None else (account.completion_tokens, account_record(account))


class Ended(Struct, frozen=True):
    """What the row said when it was ended: who held it, when it was last heard of, its events, and what was noted."""

    worker_id: str
    heartbeat_at: float
    n_events: int
    metadata: bytes | None

    def attempt(self, ending: Ending, now: float) -> Attempt:
        """The attempt as it was written; there is one only if the rollout was live."""
        current = ending.current
        if current.metadata != self.metadata:
            current = replace(current, metadata=self.metadata)
        outcome = Outcome(self.worker_id, ending.reward, ending.failure)
        status = rows.ATTEMPT_STATUS[ending.to.attempt_status]
        return rows.ended_attempt(current, status, outcome, now, heartbeat_at=self.heartbeat_at)


Endings: TypeAlias = Sequence[Ending]


def landed(current: Current, signal: Signal) -> Landing:
    """Where `signal` takes the rollout."""
    return rows.landing(current.status, signal, current.n_failures, current.config)


def topics_of(endings: Iterable[Ending]) -> set[Topic]:
    """Who waits for such endings."""
    return {Topic.QUEUE if ending.to.requeues else Topic.ENDED for ending in endings}


async def end(
    link: Link, bell: PostgresBell, endings: Endings, now: float, topics: Iterable[Topic] = ()
) -> dict[int, Ended]:
    """End those that still are as they were read, by seq, and notify `topics` and those that follow from the moves."""
    final = [ending for ending in endings if not ending.to.requeues]
    again = [ending for ending in endings if ending.to.requeues]
    ended: dict[int, Ended] = {}
    for name, several, topic in (("set_ended", final, Topic.ENDED), ("set_requeued", again, Topic.QUEUE)):
        if several:
            table = [ending.requeued_columns if ending.to.requeues else ending.columns for ending in several]
            values = (*_sparse(table), now, bell.channel, bell.message({*topics, topic}))
            statement = name
            if any(ending.account is not None for ending in several):
                statement += "_with_accounts"
                values += (*_sparse([ending.account_columns for ending in several]),)
            ended |= {row[0]: Ended(*row[1:5]) for row in await link.fetch(SQL[statement], *values)}
    return ended


async def leave_accounts(link: Link, accounts: Iterable[tuple[str, str, Account]]) -> None:
    """Keep what attempts took, given with rollout and attempt id, of those that have ended and have left none."""
    table = [(*ids, account.completion_tokens, account_record(account)) for *ids, account in accounts]
    if table:
        await link.execute(SQL["leave_accounts"], *map(list, zip(*table, strict=True)))


def _sparse(table: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """The columns of a table; one that says nothing is left empty, which costs less than to send each None."""
    columns = [list(column) for column in zip(*table, strict=True)]
    return [[] if column.count(None) == len(column) else column for column in columns]

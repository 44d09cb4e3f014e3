"""Moving rollouts on when their attempts end: where to is `core.lifecycle`'s word, this writes it down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.attempt import Attempt, Failure
from outrider.core.lifecycle import Move, Signal, advance
from outrider.core.status import Mode, RolloutStatus
from outrider.store import rows
from outrider.store.bell import Topic
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.driver import Link
from outrider.store.postgres.queries import SQL
from outrider.store.rows import Current, Outcome
from outrider.store.steps import config_of, failure_record, lane_of


@dataclass(frozen=True, slots=True)
class Ending:
    """A rollout as it was read, and where it goes. Without a `worker_id` the one in the row at that moment holds."""

    current: Current
    move: Move
    worker_id: str | None = None
    reward: float | None = None
    failure: Failure | None = None
    first_index: int | None = None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The parameters of `set_ended` for this row."""
        current, move = self.current, self.move
        return (
            current.seq,
            current.n_attempts,
            current.is_live,
            move.rollout,
            move.attempt,
            move.n_failures,
            failure_record(self.failure),
            self.reward,
            self.worker_id,
            lane_of(Mode(current.mode), current.tag) if move.requeues else None,
            self.first_index,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """What the row said when it was ended: who held it, when it was last heard of, and where its next event goes."""

    worker_id: str
    heartbeat_at: float
    next_event: int

    def attempt(self, ending: Ending, now: float) -> Attempt:
        """The attempt as it was written; there is one only if the rollout was live."""
        current = ending.current._replace(heartbeat_at=self.heartbeat_at)
        outcome = Outcome(self.worker_id, ending.reward, ending.failure)
        return rows.ended_attempt(current, ending.move.attempt, outcome, now)


def moved(current: Current, signal: Signal) -> Move:
    """Where `signal` takes the rollout."""
    status = RolloutStatus(current.status)
    return advance(status, signal, n_failures=current.n_failures, config=config_of(current.config))


def topics_of(endings: Iterable[Ending]) -> set[Topic]:
    """Who waits for such endings."""
    return {Topic.QUEUE if ending.move.requeues else Topic.ENDED for ending in endings}


async def end(
    link: Link, bell: PostgresBell, endings: Sequence[Ending], now: float, topics: Iterable[Topic] = ()
) -> dict[int, Ended]:
    """End those that still are as they were read, by seq, and notify `topics` and those that follow from the moves."""
    if not endings:
        return {}
    columns = [list(column) for column in zip(*(ending.columns for ending in endings), strict=True)]
    message = bell.message({*topics, *topics_of(endings)})
    found = await link.fetch(SQL["set_ended"], *columns, now, bell.channel, message)
    return {row[0]: Ended(row[1], row[2], row[3]) for row in found}

"""The life of a rollout as a table, and the pure function that walks it. Every store engine uses both.

Invariants:
- A final rollout never moves again.
- A live rollout (preparing, running) has exactly one live attempt, in the same state.
- An attempt that was handed back does not count against `max_attempts`; a failed one does.
- A permanent failure ends its rollout, whatever its configuration says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from outrider.core.rollout import RolloutConfig
from outrider.core.status import FINAL, LIVE, QUEUED, AttemptStatus, RolloutStatus


class Signal(StrEnum):
    """What can happen to a rollout."""

    CLAIM = "claim"
    RUN = "run"
    SUCCEED = "succeed"
    FAIL = "fail"
    GIVE_UP = "give_up"
    """It failed in a way that would come again."""
    TIME_OUT = "time_out"
    LOSE = "lose"
    HAND_BACK = "hand_back"
    CANCEL = "cancel"


ATTEMPT_AFTER: Mapping[Signal, AttemptStatus] = {
    Signal.CLAIM: AttemptStatus.PREPARING,
    Signal.RUN: AttemptStatus.RUNNING,
    Signal.SUCCEED: AttemptStatus.SUCCEEDED,
    Signal.FAIL: AttemptStatus.FAILED,
    Signal.GIVE_UP: AttemptStatus.FAILED,
    Signal.TIME_OUT: AttemptStatus.TIMEOUT,
    Signal.LOSE: AttemptStatus.UNRESPONSIVE,
    Signal.HAND_BACK: AttemptStatus.CANCELLED,
    Signal.CANCEL: AttemptStatus.CANCELLED,
}

ALLOWED: Mapping[Signal, frozenset[RolloutStatus]] = {
    Signal.CLAIM: QUEUED,
    Signal.RUN: LIVE,
    Signal.SUCCEED: LIVE,
    Signal.FAIL: LIVE,
    Signal.GIVE_UP: LIVE,
    Signal.TIME_OUT: LIVE,
    Signal.LOSE: LIVE,
    Signal.HAND_BACK: LIVE,
    Signal.CANCEL: QUEUED | LIVE,
}

ROLLOUT_AFTER: Mapping[Signal, RolloutStatus] = {
    Signal.CLAIM: RolloutStatus.PREPARING,
    Signal.RUN: RolloutStatus.RUNNING,
    Signal.SUCCEED: RolloutStatus.SUCCEEDED,
    Signal.HAND_BACK: RolloutStatus.REQUEUING,
    Signal.CANCEL: RolloutStatus.CANCELLED,
}
"""Where a signal leads by itself; a failure leads on by the rollout's configuration."""

REPORTED: Mapping[AttemptStatus, Signal] = {
    AttemptStatus.RUNNING: Signal.RUN,
    AttemptStatus.SUCCEEDED: Signal.SUCCEED,
    AttemptStatus.FAILED: Signal.FAIL,
    AttemptStatus.TIMEOUT: Signal.TIME_OUT,
    AttemptStatus.CANCELLED: Signal.HAND_BACK,
}
"""What a worker may report of its own attempt; only the store declares one unresponsive."""


@dataclass(frozen=True, slots=True)
class Move:
    """The states after a signal. `ends` tells a final state, `requeues` one that can be claimed again."""

    rollout: RolloutStatus
    attempt: AttemptStatus
    n_failures: int

    @property
    def ends(self) -> bool:
        return self.rollout in FINAL

    @property
    def requeues(self) -> bool:
        return self.rollout in QUEUED

    @property
    def is_live(self) -> bool:
        return self.rollout in LIVE


class IllegalMove(Exception):
    """The table has no such transition. Engines answer it with `LeaseLost` or leave the row alone."""


def advance(status: RolloutStatus, signal: Signal, *, n_failures: int, config: RolloutConfig) -> Move:
    """Where `signal` takes a rollout in `status` that has failed `n_failures` times so far."""
    if status not in ALLOWED[signal]:
        raise IllegalMove(f"{signal} is not possible for a rollout that is {status}")
    attempt = ATTEMPT_AFTER[signal]
    after = ROLLOUT_AFTER.get(signal)
    if after is None:
        n_failures += 1
        may_pass = signal is not Signal.GIVE_UP and attempt in config.retry_condition
        retry = may_pass and n_failures < config.max_attempts
        after = RolloutStatus.REQUEUING if retry else RolloutStatus.FAILED
    return Move(after, attempt, n_failures)

"""Attempts that left no account, since their worker was killed: counted from what the store has recorded of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from outrider.core.account import Account, AttemptAccount
from outrider.core.attempt import Attempt
from outrider.core.clock import Clock
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.ledger import LEDGER_KEY, GroupState
from outrider.core.rollout import Rollout
from outrider.core.status import LIVE, AttemptStatus, RolloutStatus
from outrider.core.turn import RESET
from outrider.store import Store
from outrider.store.outage import insist
from outrider.train.news import PAGE

OWN_SECONDS = 30.0
"""How long an attempt that is over has to leave its account itself, which may tell more than its events do."""


class _Expected(NamedTuple):
    n_accounts: int
    due: float
    is_cancelled: bool


class Unaccounted:
    """Rollouts of one ledger with fewer accounts than attempts that are over."""

    def __init__(self, store: Store, clock: Clock, ledger: str) -> None:
        self._store = store
        self._clock = clock
        self._ledger = ledger
        self._insistently = partial(insist, store.outage, clock)
        self._expected: dict[str, _Expected] = {}

    @property
    def hears_more(self) -> bool:
        """Whether an attempt was cancelled that is about to leave its account."""
        return any(one.is_cancelled for one in self._expected.values())

    def note(self, rollouts: Iterable[Rollout], accounts: Iterable[AttemptAccount]) -> None:
        """Remember those of these rollouts that lack an account."""
        n_accounts = Counter(one.rollout_id for one in accounts)
        now = self._clock.monotonic()
        for rollout in rollouts:
            n_over = rollout.n_attempts - (rollout.status in LIVE)
            if n_accounts[rollout.rollout_id] < n_over:
                known = self._expected.get(rollout.rollout_id)
                self._expected[rollout.rollout_id] = _Expected(
                    n_accounts=n_over,
                    due=now + OWN_SECONDS if known is None else known.due,
                    is_cancelled=rollout.status is RolloutStatus.CANCELLED,
                )

    async def look(self) -> None:
        """Remember those that lack an account in open groups, and among the rollouts that ended last."""
        store = self._store
        cursor = (await self._insistently(store.statistics)).cursor
        feed = await self._insistently(partial(store.finished_after, max(cursor - PAGE, 0), limit=PAGE))
        found = [rollout for rollout in feed.items if rollout.metadata.get(LEDGER_KEY) == self._ledger]
        unfinished = partial(store.query_groups, self._ledger, states=(GroupState.OPENED, GroupState.COMPLETE))
        for group in await self._insistently(unfinished):
            found += await self._insistently(partial(store.query_rollouts, group_id=group.group_id))
        self.note(found, await self._accounts([rollout.rollout_id for rollout in found]))

    async def settle(self, *, at_once: bool = False) -> None:
        """Make accounts for attempts that have had their time, or for all of them."""
        accounts = await self._accounts(list(self._expected))
        n_accounts = Counter(one.rollout_id for one in accounts)
        known = {one.attempt_id for one in accounts}
        now = self._clock.monotonic()
        for rollout_id, expected in list(self._expected.items()):
            is_missing = n_accounts[rollout_id] < expected.n_accounts
            is_over = at_once or expected.due <= now
            if is_missing and is_over:
                await self._leave_missing(rollout_id, known)
            if is_over or not is_missing:
                del self._expected[rollout_id]

    async def _leave_missing(self, rollout_id: str, known: set[str]) -> None:
        attempts = await self._insistently(partial(self._store.query_attempts, rollout_id))
        for attempt in attempts:
            if attempt.attempt_id in known or attempt.status.is_live:
                continue
            recorded = partial(self._store.query_events, rollout_id, attempt_id=attempt.attempt_id)
            account = account_of(attempt, (await self._insistently(recorded)).items)
            await self._insistently(partial(self._store.leave_account, rollout_id, attempt.attempt_id, account))

    async def _accounts(self, rollout_ids: Sequence[str]) -> Sequence[AttemptAccount]:
        return await self._insistently(partial(self._store.query_accounts, rollout_ids)) if rollout_ids else ()


def account_of(attempt: Attempt, events: Iterable[RecordedEvent]) -> Account:
    """What an attempt took, as far as its events tell."""
    turns, steps, reset_seconds = [], [], 0.0
    for event in events:
        if event.kind is EventKind.TURN:
            turns.append(event.data)
        elif event.kind is EventKind.STEP and event.name == RESET:
            reset_seconds += event.data.get("seconds", 0.0)
        elif event.kind is EventKind.STEP:
            steps.append(event.data)
    versions = [turn.get("policy_version", 0) for turn in turns]
    return Account(
        n_turns=len(turns),
        n_steps=len(steps),
        prompt_tokens=sum(turn.get("prompt_tokens", 0) for turn in turns),
        completion_tokens=sum(turn.get("completion_tokens", 0) for turn in turns),
        first_version=versions[0] if versions else None,
        last_version=versions[-1] if versions else None,
        reset_seconds=reset_seconds,
        model_seconds=sum(turn.get("seconds", 0.0) for turn in turns),
        env_seconds=sum(step.get("seconds", 0.0) for step in steps),
        failed=attempt.status in {AttemptStatus.FAILED, AttemptStatus.TIMEOUT},
    )

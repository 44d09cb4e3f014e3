"""A group while it is open: its members, those that ended well, and what its attempts took."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from outrider.core.account import Account, AttemptAccount, Fate
from outrider.core.ledger import GroupEntry, GroupMove, GroupState
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.train.filters import GroupResult
from outrider.train.seeding import is_hedge, seat_of

NO_ACCOUNT = Account()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """A member that ended well, and what it took."""

    rollout_id: str
    attempt_id: str
    reward: float
    account: Account


@dataclass(slots=True)
class Seat:
    """One of the members that a group needs. A hedge is a second rollout on the same seat: the first to end counts."""

    open_ids: list[str] = field(default_factory=list)
    n_hedges: int = 0
    result: MemberResult | None = None


class OpenGroup:
    """A group that is opened or complete. Tell it what ended; ask it what it has come to."""

    def __init__(self, *, group_id: str, number: int, tag: str, seed: int, size: int) -> None:
        self.group_id = group_id
        self.number = number
        self.tag = tag
        self.seed = seed
        self.size = size
        self.is_complete = False
        self.results: list[MemberResult] = []
        self.failure = ""
        self._seats: dict[int, Seat] = {}
        self._accounts: dict[str, AttemptAccount] = {}
        self._last: dict[str, str | None] = {}

    @property
    def open_ids(self) -> list[str]:
        """The rollouts that have not ended."""
        return [rollout_id for seat in self._seats.values() for rollout_id in seat.open_ids]

    @property
    def n_bytes(self) -> int:
        """What its results take up in the store."""
        return sum(result.account.n_bytes for result in self.results)

    @property
    def first_version(self) -> int | None:
        """The oldest policy version with which one of its results began, where it is known."""
        versions = [one.account.first_version for one in self.results]
        return min((version for version in versions if version is not None), default=None)

    @property
    def is_full(self) -> bool:
        return len(self.results) >= self.size

    @property
    def can_fill(self) -> bool:
        """Whether enough of its members can still end well."""
        return sum(seat.result is not None or bool(seat.open_ids) for seat in self._seats.values()) >= self.size

    def seat(self, rollout_id: str) -> Seat:
        return self._seats.setdefault(seat_of(rollout_id), Seat())

    def joined(self, rollout_id: str) -> None:
        """A rollout was enqueued for it."""
        seat = self.seat(rollout_id)
        seat.open_ids.append(rollout_id)
        seat.n_hedges += is_hedge(rollout_id)

    def ended(self, rollout: Rollout) -> list[str]:
        """A rollout of it has ended; those that nobody needs any more."""
        seat = self.seat(rollout.rollout_id)
        self._last[rollout.rollout_id] = rollout.attempt_id
        if rollout.rollout_id in seat.open_ids:
            seat.open_ids.remove(rollout.rollout_id)
        if rollout.status is not RolloutStatus.SUCCEEDED or seat.result is not None or self.is_full:
            self._note_failure(rollout)
            return []
        if rollout.reward is None:
            self.failure = f"{rollout.rollout_id} ended without a reward"
            return []
        attempt_id = rollout.attempt_id or ""
        account = self._accounts.get(attempt_id)
        seat.result = MemberResult(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt_id,
            reward=rollout.reward,
            account=NO_ACCOUNT if account is None else account.account,
        )
        self.results.append(seat.result)
        return self.open_ids if self.is_full else list(seat.open_ids)

    def accounted(self, accounts: Iterable[AttemptAccount]) -> None:
        """What attempts of it took. Tell it before the end of their rollout."""
        self._accounts |= {account.attempt_id: account for account in accounts}

    def result(self) -> GroupResult:
        accounts = [one.account for one in self.results]
        return GroupResult(
            group_id=self.group_id,
            tag=self.tag,
            seed=self.seed,
            rewards=tuple(one.reward for one in self.results),
            metrics=tuple(account.metrics for account in accounts),
            n_turns=tuple(account.n_turns for account in accounts),
            completion_tokens=tuple(account.completion_tokens for account in accounts),
        )

    def completed(self) -> GroupMove:
        self.is_complete = True
        members = tuple(one.rollout_id for one in self.results)
        return GroupMove(group_id=self.group_id, state=GroupState.COMPLETE, members=members)

    def fates(self, fate: Fate) -> Mapping[str, Fate]:
        """What becomes of its attempts as the group is closed: delivered (`TRAINED`), or dropped for this fate."""
        chosen = {one.attempt_id for one in self.results}
        left_over = Fate.SURPLUS if fate is Fate.TRAINED else fate

        def fate_of(one: AttemptAccount) -> Fate:
            if one.account.failed:
                return Fate.FAILED
            if self._last.get(one.rollout_id) != one.attempt_id:
                return Fate.ABORTED
            return fate if one.attempt_id in chosen else left_over

        return {attempt_id: fate_of(one) for attempt_id, one in self._accounts.items()}

    def tokens(self, attempt_id: str) -> int:
        return self._accounts[attempt_id].account.completion_tokens

    def _note_failure(self, rollout: Rollout) -> None:
        if rollout.failure is not None:
            failure = rollout.failure
            self.failure = (
                f"{rollout.rollout_id} failed {rollout.n_failures} times, last in {failure.stage or failure.boundary}: "
                f"{failure.message}"
            )


def late_fate(one: AttemptAccount, group: GroupEntry, *, is_last: bool) -> Fate:
    """The fate of an attempt whose account came after its group was closed: somebody else had ended it.

    `is_last`: its rollout had no other attempt after it.
    """
    if one.account.failed:
        return Fate.FAILED
    if not is_last:
        return Fate.ABORTED
    return Fate.SURPLUS if group.reason is None else Fate(group.reason.partition(":")[0])

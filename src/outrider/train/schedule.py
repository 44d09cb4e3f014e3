"""The schedule: what happens to groups, decided. Pure: no clock, no I/O; the same events give the same decisions.

Tell it what has happened, then `decide`: it answers with one write to the ledger and the rollouts to cancel, and takes
both for carried out. What it holds of a group is small; trajectories stay in the store.

Invariants:
- Members are enqueued in the order of their groups, so that a free slot takes a member of the oldest one.
- A first turn is granted by the staleness rule alone, oldest group first.
- A group is complete with the first `size` members that end well; the others are cancelled at once.
- A group that is dropped makes room for another one in the same decision. Where one group after the other fails, as
  in a broken environment, new ones are opened more and more slowly, until one is complete.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.account import AttemptAccount, Fate
from outrider.core.ledger import Ask, Grant, GroupEntry, GroupMove, GroupState, LedgerWrite, NewGroup
from outrider.core.rollout import Rollout, RolloutRequest
from outrider.core.task import Task
from outrider.train.config import SchedulerConfig
from outrider.train.filters import Filters
from outrider.train.groups import OpenGroup
from outrider.train.seeding import GroupSource, group_of, hedge_of, seat_of
from outrider.train.staleness import StalenessRule

FAILED_AT_ONCE = 8
"""So many groups may fail one after the other before new ones are opened more slowly."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0


@dataclass(slots=True)
class Decision:
    """What is to be written, and which rollouts are to be cancelled after that."""

    opened: list[NewGroup] = field(default_factory=list)
    members: list[RolloutRequest] = field(default_factory=list)
    granted: list[Grant] = field(default_factory=list)
    moved: list[GroupMove] = field(default_factory=list)
    fates: dict[str, Fate] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    def write(self) -> LedgerWrite:
        return LedgerWrite(
            opened=tuple(self.opened),
            members=tuple(self.members),
            granted=tuple(self.granted),
            moved=tuple(self.moved),
            fates=self.fates,
        )


class Schedule:
    """`flow` counts tokens by what became of them; read it, and take what you have read out of it."""

    def __init__(
        self, config: SchedulerConfig, ledger: str, *, batch_groups: int, tasks: Mapping[str, Sequence[Task]]
    ) -> None:
        self.rule = StalenessRule(
            batch_groups, max_staleness=config.staleness_bound, ahead=config.async_generation_ratio
        )
        self.source = GroupSource(config, ledger, tasks)
        self.groups: dict[str, OpenGroup] = {}
        self.flow: Counter[Fate] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.last_failure = ""
        """Which group failed last, and why."""
        self.n_bytes = 0
        """What finished members of groups that are not delivered take up in the store."""
        self._config = config
        self._filters = Filters(config.filters)
        self._asking: dict[str, dict[str, Ask]] = {}
        self._fresh: dict[str, None] = {}
        self._granted: dict[str, str] = {}
        self._settling: dict[str, None] = {}
        self._n_failed_in_a_row = 0
        self._open_at = -math.inf
        self._next = Decision()

    @property
    def n_held(self) -> int:
        return sum(map(len, self._asking.values()))

    def restore(
        self,
        version: int,
        entries: Iterable[GroupEntry],
        *,
        counts: Mapping[tuple[str, GroupState], int],
        member_ids: Iterable[str],
        ended: Iterable[Rollout],
        accounts: Iterable[AttemptAccount],
    ) -> None:
        """Go on from a ledger: its groups that are opened or complete, with their members.

        `ended` are those of them that have ended, in that order: so a group that was complete becomes complete again,
        by the same members.
        """
        self.rule.restore(version)
        for (tag, state), n in counts.items():
            self.source.made[tag] += n
            self.source.kept[tag] += n if state is not GroupState.DROPPED else 0
        for entry in entries:
            self._add(entry)
            if entry.clock is not None:
                self.rule.begin(entry.group_id, None, entry.clock)
        for account in accounts:
            self.accounted(account)
        for rollout_id in member_ids:
            self.groups[group_of(rollout_id)].joined(rollout_id)
        for rollout in ended:
            self.ended(rollout)

    def asked(self, ask: Ask, now: float) -> None:
        """An attempt asks to begin. An earlier attempt of the same rollout is over then."""
        if ask.group_id not in self.groups:
            return
        self._forget_attempt(ask.group_id, ask.rollout_id)
        self._asking.setdefault(ask.group_id, {})[ask.rollout_id] = ask
        self._fresh[ask.group_id] = None
        self.rule.ready(ask.group_id, seat_of(ask.rollout_id), now)

    def accounted(self, account: AttemptAccount) -> None:
        if account.group_id in self.groups:
            self.groups[account.group_id].accounted((account,))

    def ended(self, rollout: Rollout) -> None:
        """A rollout has ended, and its accounts have been told."""
        group = self.groups.get(rollout.group_id or "")
        if group is None:
            return
        n_results = len(group.results)
        self._next.cancelled += group.ended(rollout)
        if len(group.results) > n_results:
            self.n_bytes += group.results[-1].account.n_bytes
        else:
            self._forget_attempt(group.group_id, rollout.rollout_id)
        if not group.is_complete:
            self._settling[group.group_id] = None

    def may_hedge(self, group_id: str, rollout_id: str) -> bool:
        """Whether this member may be run a second time: if it runs once, and not too often already."""
        group = self.groups.get(group_id)
        if group is None or group.is_complete:
            return False
        seat = group.seat(rollout_id)
        return seat.open_ids == [rollout_id] and seat.n_hedges < self._config.max_refills

    def hedge(self, rollout: Rollout) -> None:
        """Run this member a second time beside the first. Only if it `may_hedge`."""
        group = self.groups[rollout.group_id or ""]
        hedge = hedge_of(rollout, group.seat(rollout.rollout_id).n_hedges + 1)
        assert hedge.rollout_id is not None
        self._next.members.append(hedge)
        group.joined(hedge.rollout_id)

    def published(self, now: float) -> None:
        """The trainer has a new version. Groups that are past the bound are dropped."""
        for group_id in self.rule.published(now):
            bound = self._config.staleness_bound
            self._drop(self.groups[str(group_id)], Fate.STALE, f"older than {bound} versions")

    def abort(self) -> None:
        """Drop all groups that are open."""
        for group in list(self.groups.values()):
            self._drop(group, Fate.ABORTED, "the scheduler was stopped")

    def decide(self, now: float, *, may_open: bool = True) -> Decision:
        """What follows from all that was told."""
        self._settle(now)
        if may_open:
            for _ in range(self._room() if now >= self._open_at else 0):
                self._open()
            self._grant(now)
        decision, self._next = self._next, Decision()
        return decision

    def deliver(self, now: float, number: int) -> tuple[list[OpenGroup], Decision]:
        """The batch, and its move in the ledger. Only when the rule says that it may be delivered."""
        batch = [self.groups.pop(str(group_id)) for group_id in self.rule.deliver(now)]
        batch.sort(key=lambda group: group.number)  # as it is read back, should it have to come again
        decision = Decision()
        for group in batch:
            decision.moved.append(GroupMove(group_id=group.group_id, state=GroupState.DELIVERED, batch=number))
            self._close(group, Fate.TRAINED, decision)
        return batch, decision

    def wake_at(self, now: float) -> float:
        """When to decide again although nothing has happened."""
        open_at = self._open_at if self._open_at > now else math.inf
        if self.rule.holds(now):
            return open_at
        return min([open_at, *(self.rule.wake_at(group_id) for group_id in self._asking)])

    def _add(self, group: GroupEntry | NewGroup) -> OpenGroup:
        added = OpenGroup(group_id=group.group_id, number=group.number, tag=group.tag, seed=group.seed, size=group.size)
        self.groups[group.group_id] = added
        self.rule.opened(group.group_id, group.size)
        return added

    def _room(self) -> int:
        if self.n_bytes >= self._config.max_buffer_bytes:
            return min(self.rule.n_room, max(self.rule.batch_groups - len(self.groups), 0))
        return self.rule.n_room

    def _open(self) -> None:
        new = self.source.next_group()
        group = self._add(new)
        for member in new.members:
            assert member.rollout_id is not None
            group.joined(member.rollout_id)
        self._next.opened.append(new)

    def _settle(self, now: float) -> None:
        """Complete or drop the groups in which something ended."""
        settling, self._settling = self._settling, {}
        for group_id in settling:
            group = self.groups.get(group_id)
            if group is None:
                continue
            if group.is_full:
                self._complete(group, now)
            elif not group.can_fill:
                self._fail(group, now)

    def _complete(self, group: OpenGroup, now: float) -> None:
        reason = self._filters.reason_to_drop(group.result())
        if reason is not None:
            self._drop(group, Fate.FILTERED, reason)
            return
        if not self.rule.completed(group.group_id, now, group.first_version):
            self._drop(group, Fate.STALE, f"begun at version {group.first_version}, earlier than it was allowed to")
            return
        self._next.moved.append(group.completed())
        self._asking.pop(group.group_id, None)
        self._n_failed_in_a_row, self._open_at = 0, -math.inf

    def _fail(self, group: OpenGroup, now: float) -> None:
        why = group.failure or "its members were cancelled"
        self._drop(group, Fate.FAILED, why)
        self.last_failure = f"group {group.group_id} ({group.tag}): {why}"
        self._n_failed_in_a_row += 1
        n_too_many = self._n_failed_in_a_row - FAILED_AT_ONCE
        if n_too_many > 0:
            self._open_at = now + min(FIRST_PAUSE_SECONDS * 2.0 ** min(n_too_many, 16), LONGEST_PAUSE_SECONDS)

    def _drop(self, group: OpenGroup, fate: Fate, why: str) -> None:
        del self.groups[group.group_id]
        self.rule.dropped(group.group_id)
        self.source.dropped(group.tag)
        self.dropped[group.tag, fate] += 1
        self._next.moved.append(
            GroupMove(group_id=group.group_id, state=GroupState.DROPPED, reason=f"{fate}: {why}"[:500])
        )
        self._next.cancelled += [rollout_id for rollout_id in group.open_ids if rollout_id not in self._next.cancelled]
        self._close(group, fate, self._next)

    def _close(self, group: OpenGroup, fate: Fate, decision: Decision) -> None:
        self._asking.pop(group.group_id, None)
        self._fresh.pop(group.group_id, None)
        self.n_bytes -= group.n_bytes
        for one in group.results:
            self._granted.pop(one.rollout_id, None)
        for rollout_id in group.open_ids:
            self._granted.pop(rollout_id, None)
        fates = group.fates(fate)
        decision.fates |= fates
        for attempt_id, chosen in fates.items():
            self.flow[chosen] += group.tokens(attempt_id)

    def _grant(self, now: float) -> None:
        """Let members begin that may, those of the oldest group first."""
        fresh, self._fresh = self._fresh, {}
        looked_at = fresh if self.rule.holds(now) else self._asking
        for group_id in sorted(looked_at, key=lambda group_id: self.groups[group_id].number):
            if group_id not in self._asking or not self.rule.may_begin(group_id, now):
                continue
            for ask in self._asking.pop(group_id).values():
                version = self.rule.begin(group_id, ask.attempt_id)
                self._granted[ask.rollout_id] = ask.attempt_id
                self._next.granted.append(Grant(group_id=group_id, attempt_id=ask.attempt_id, version=version))

    def _forget_attempt(self, group_id: str, rollout_id: str) -> None:
        """What this rollout had asked or been granted is over."""
        asking = self._asking.get(group_id, {})
        if asking.pop(rollout_id, None) is not None and not asking:
            del self._asking[group_id]
        attempt_id = self._granted.pop(rollout_id, None)
        if attempt_id is not None:
            self.rule.failed(group_id, attempt_id)

"""The staleness rule: which groups to open, when a trajectory may begin, when a batch may be delivered.

A pure object: no clock, no I/O. The same events give the same answers. Words:

- *version*: the trainer's policy version, counted from 0; batch v is delivered at version v.
- *staleness* of a trajectory: the version at its delivery less the version of its own first turn. K bounds it.
- *clock* of a group: the least version at which one of its attempts was allowed its first turn. A first turn is never
  older than that, whatever is late or lost on the way.
- *live*: begun, and neither delivered nor dropped. G is the number of groups in a batch.

The rule:

1. *Open.* Groups open and undelivered are at most (1 + ahead) G, with ahead ≤ K.
2. *Begin.* An environment is reset at once, but its first turn asks; one on a machine asks before it takes that. A
   group whose clock runs may go on. Another one is held while the trainer trains if more than K G live groups would
   then have a clock up to this version, or if the next version is near: a trajectory begun just before it would lose a
   whole version. How near is learnt: as long as batches lately waited for the bound alone, so nothing is held where the
   bound costs nothing. Members wait a moment for the resets of their siblings, so that a group's clock starts when all
   of it can run.
3. *Deliver* the G oldest complete groups as soon as, for every u, those taken with a clock up to u are at least
   live(u) - G (u + K - version): what is at the bound goes now, and no more is left than the batches still to come
   before u expires can carry.
4. *Expire.* A trainer that publishes without having taken a batch, or takes smaller ones, leaves more behind than
   can be carried. What is past the bound then is dropped; nothing else ever is.

Invariants (`check`), as long as each version is published after one batch of G groups: for every u, live(u) ≤ G times
the batches that can still carry u; open groups ≤ (1 + ahead) G.

Why the bound is hard: the first invariant for u = version - K - 1 says that no live group is older than the bound. A
begin while the trainer waits keeps it by rule 1, one while it trains by rule 2; a delivery keeps it by rule 3; a
publish moves both sides by G; a drop, a failure or a clock that rises only lowers the left side. Whoever publishes out
of turn meets rule 4.

Why it cannot deadlock: while the trainer waits, no first turn is held but for siblings, and that for seconds. Begun
groups come first, and each of them ends, by deadlines, refills or a drop. When all live groups are complete, rule 3
holds, since oldest first takes min(G, live(u)) of each prefix; and G groups may always be open.
"""

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from outrider.core.errors import InvalidInput

SIBLING_SECONDS = 5.0
SMOOTHING = 0.3
"""How much the latest wait and the latest training time count in their moving averages."""


@dataclass(slots=True, eq=False)
class _Group:
    order: int
    size: int
    versions: dict[Hashable, int] = field(default_factory=dict)
    ready: set[Hashable] = field(default_factory=set)
    ready_since: float = math.inf
    clock: int | None = None
    is_complete: bool = False


class StalenessRule:
    """Tell it what happens, in order, and ask it what may happen. Times are seconds of any one clock.

    `max_staleness` None: no bound. `ahead` is how many batches may be under way beside the one that is asked for; 0
    with a bound of 0 is synchronous training.
    """

    def __init__(self, batch_groups: int, *, max_staleness: int | None = None, ahead: float | None = None) -> None:
        if batch_groups < 1:
            raise InvalidInput(f"a batch of {batch_groups} groups is none; give 1 or more")
        if ahead is None:
            ahead = 2.0 if max_staleness is None else min(max_staleness, (max_staleness + 1) / 2)
        if ahead < 0 or (max_staleness is not None and ahead > max_staleness):
            raise InvalidInput(f"{ahead:g} batches ahead cannot keep a staleness of at most {max_staleness}; give less")
        self.version = 0
        self.is_training = False
        self._ahead = ahead
        self._batch_groups = batch_groups
        self._bound = max_staleness
        self._groups: dict[Hashable, _Group] = {}
        self._live: Counter[int] = Counter()
        self._complete: Counter[int] = Counter()
        self._n_opened = 0
        self._asked_at = 0.0
        self._full_since = math.inf
        self._delivered_at = 0.0
        self._training_seconds: float | None = None
        self._bound_seconds = 0.0
        self._n_delivered = 0

    @property
    def batch_groups(self) -> int:
        return self._batch_groups

    @property
    def max_open(self) -> int:
        return math.floor((1 + self._ahead) * self._batch_groups + 1e-9)

    @property
    def n_room(self) -> int:
        """How many groups may be opened now."""
        return max(self.max_open - len(self._groups), 0)

    @property
    def n_complete(self) -> int:
        return self._complete.total()

    def resize(self, batch_groups: int) -> None:
        """Batches have so many groups from now on."""
        self._batch_groups = batch_groups

    def restore(self, version: int) -> None:
        """Go on at this version; then tell what was opened, begun and completed before."""
        assert not self._groups
        self.version = version

    def opened(self, group: Hashable, size: int) -> None:
        self._groups[group] = _Group(order=self._n_opened, size=size)
        self._n_opened += 1

    def ready(self, group: Hashable, member: Hashable, now: float) -> None:
        """The environment of a member is reset, and it asks for its first turn."""
        found = self._groups[group]
        found.ready.add(member)
        found.ready_since = min(found.ready_since, now)

    def has_begun(self, group: Hashable) -> bool:
        return self._groups[group].clock is not None

    def holds(self, now: float) -> bool:
        """Whether no other group may begin now. Ask again after each event."""
        return self.is_training and (self._is_full() or self._publish_is_near(now))

    def may_begin(self, group: Hashable, now: float) -> bool:
        """Whether a ready member may start its first turn. Ask again after each event, and at `wake_at`."""
        found = self._groups[group]
        if found.clock is not None:
            return True
        return not self.holds(now) and (len(found.ready) >= found.size or now >= self.wake_at(group))

    def wake_at(self, group: Hashable) -> float:
        """When a group no longer waits for the resets of its other members."""
        return self._groups[group].ready_since + min(SIBLING_SECONDS, self._bound_seconds)

    def begin(self, group: Hashable, attempt: Hashable, version: int | None = None) -> int:
        """Allow an attempt its first turn: the version that it begins with at least.

        Another than the present `version` is for what began before a restart.
        """
        found = self._groups[group]
        found.versions[attempt] = self.version if version is None else version
        self._raise_clock(found)
        return found.versions[attempt]

    def failed(self, group: Hashable, attempt: Hashable) -> None:
        """An attempt is over without a result."""
        found = self._groups.get(group)
        if found is not None and found.versions.pop(attempt, None) is not None and found.versions:
            self._raise_clock(found)  # with none left the clock stays as it is: low, hence safe

    def completed(self, group: Hashable, now: float, first_version: int | None = None) -> bool:
        """All of it is there. `first_version` is that of its oldest first turn, where it is known.

        Whether it may still be delivered: not if its members began earlier than they were allowed to.
        """
        found = self._groups[group]
        if first_version is not None or found.clock is None:
            self._set_clock(found, self.version if first_version is None else first_version)
        assert found.clock is not None
        if self._bound is not None and found.clock < self.version - self._bound:
            return False
        found.is_complete = True
        self._complete[found.clock] += 1
        self._note_full(now)
        return True

    def dropped(self, group: Hashable) -> None:
        """It will not be delivered; a replacement may be opened at once."""
        found = self._groups.pop(group)
        if found.clock is not None:
            self._live[found.clock] -= 1
            self._complete[found.clock] -= found.is_complete

    def asked(self, now: float) -> None:
        """The trainer asks for a batch, with or without having published: what was held is let go either way."""
        self._asked_at, self.is_training = now, False
        self._full_since = math.inf
        self._note_full(now)

    def may_deliver(self) -> bool:
        return not self.is_training and self._complete.total() >= self._batch_groups and self._first_short() is None

    def deliver(self, now: float) -> list[Hashable]:
        """The batch, oldest first. Only when `may_deliver`."""
        assert self.may_deliver()
        complete = [name for name, group in self._groups.items() if group.is_complete]
        batch = sorted(complete, key=self._age)[: self._batch_groups]
        for name in batch:
            self.dropped(name)
        self._live, self._complete = +self._live, +self._complete
        waited = now - max(self._full_since, self._asked_at)
        self._bound_seconds = _averaged(self._bound_seconds if self._n_delivered else None, waited)
        self._n_delivered += 1
        self._full_since = math.inf
        self._note_full(now)
        self.handed_over(now)
        return batch

    def handed_over(self, now: float) -> None:
        """The trainer trains on a batch that was delivered before."""
        self.is_training, self._delivered_at = True, now

    def published(self, now: float) -> list[Hashable]:
        """The trainer has a new version; the groups that are past the bound now, which the caller must drop."""
        if self.is_training:
            self._training_seconds = _averaged(self._training_seconds, now - self._delivered_at)
        self.version += 1
        self.is_training = False
        if self._bound is None:
            return []
        least = self.version - self._bound
        return [name for name, group in self._groups.items() if group.clock is not None and group.clock < least]

    def waits_for(self) -> list[Hashable]:
        """The groups without which no batch may be delivered, oldest first: what a watchdog names."""
        short = None if self.is_training else self._first_short()
        if short is None:
            return []
        late = [
            name
            for name, group in self._groups.items()
            if not group.is_complete and group.clock is not None and group.clock <= short
        ]
        return sorted(late, key=self._age)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._groups) <= self.max_open
        if self._bound is None:
            return
        for clock in range(self.version - self._bound - 1, self.version + 2):
            n_batches = clock + self._bound - self.version + (not self.is_training)
            assert self._n_live(clock) <= self._batch_groups * max(n_batches, 0)

    def _first_short(self) -> int | None:
        """The oldest clock of which a batch taken now would leave more behind than later ones can carry."""
        if self._bound is None:
            return None
        n_live = n_complete = 0
        for clock in sorted(self._live):
            n_live += self._live[clock]
            n_complete += self._complete[clock]
            n_carried_later = self._batch_groups * max(clock + self._bound - self.version, 0)
            if n_complete < min(self._batch_groups, n_live - n_carried_later):
                return clock
        return None

    def _is_full(self) -> bool:
        """Whether one more group of this version would have no batch left to go into."""
        return self._bound is not None and self._n_live(self.version) + 1 > self._bound * self._batch_groups

    def _publish_is_near(self, now: float) -> bool:
        if self._training_seconds is None:
            return self._bound is not None
        return self._delivered_at + self._training_seconds - now <= self._bound_seconds

    def _n_live(self, clock: int) -> int:
        """Live groups with a clock up to this one."""
        return sum(n for begun_at, n in self._live.items() if begun_at <= clock)

    def _note_full(self, now: float) -> None:
        if self._complete.total() >= self._batch_groups:
            self._full_since = min(self._full_since, now)

    def _age(self, name: Hashable) -> tuple[float, int]:
        group = self._groups[name]
        return math.inf if group.clock is None else group.clock, group.order

    def _raise_clock(self, group: _Group) -> None:
        clock = min(group.versions.values())
        self._set_clock(group, clock if group.clock is None else max(clock, group.clock))

    def _set_clock(self, group: _Group, clock: int) -> None:
        if group.clock is not None:
            self._live[group.clock] -= 1
            self._complete[group.clock] -= group.is_complete
        group.clock = clock
        self._live[clock] += 1
        self._complete[clock] += group.is_complete


def _averaged(average: float | None, latest: float) -> float:
    return latest if average is None else (1 - SMOOTHING) * average + SMOOTHING * latest

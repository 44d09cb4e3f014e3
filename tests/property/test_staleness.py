"""The staleness rule under random events: late first turns, failures, drops, batches asked for twice."""

import random

import pytest

from outrider.core.errors import InvalidInput
from outrider.train.staleness import StalenessRule
from soaking import seeds


class System:
    """Random groups and a random trainer around the rule; what really happened is known here."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size = self.rng.randint(1, 4)
        self.bound = self.rng.choice([0, 1, 2, 3, 5])
        ahead = self.rng.choice([None, self.rng.uniform(0, self.bound)])
        self.rule = StalenessRule(self.rng.randint(1, 5), max_staleness=self.bound, ahead=ahead)
        self.now = 0.0
        self.n_groups = self.n_batches = 0
        self.members: dict[int, dict[int, str]] = {}
        self.first: dict[tuple[int, int], int] = {}
        self.complete: set[int] = set()
        self.rule.asked(self.now)

    def step(self) -> None:
        self.now += self.rng.random()
        while self.rule.n_room and self.rng.random() < 0.9:
            self.rule.opened(self.n_groups, self.size)
            self.members[self.n_groups] = {}
            self.n_groups += 1
        for group in list(self.members):
            if group not in self.complete:
                self.move_group(group)
        self.rule.check()
        self.move_trainer()
        self.rule.check()

    def move_group(self, group: int) -> None:
        for member in range(self.size):
            self.move_member(group, member)
        states = self.members[group]
        if len(states) == self.size and set(states.values()) == {"done"}:
            if self.rng.random() < 0.2:
                self.rule.dropped(group)
                del self.members[group]
            else:
                self.rule.completed(group, self.now)
                self.complete.add(group)

    def move_member(self, group: int, member: int) -> None:
        chance, state = self.rng.random(), self.members[group].get(member)
        if state is None and chance < 0.5:
            self.rule.ready(group, member, self.now)
            if self.rule.may_begin(group, self.now):
                self.rule.begin(group, member)
                self.members[group][member] = "allowed"
        elif state == "allowed" and chance < 0.7:
            self.members[group][member] = "acting"
            self.first[group, member] = self.rule.version
        elif state in {"allowed", "acting"} and chance > 0.97:
            self.rule.failed(group, member)
            del self.members[group][member]
        elif state == "acting" and chance > 0.8:
            self.members[group][member] = "done"

    def move_trainer(self) -> None:
        if self.rule.is_training:
            chance = self.rng.random()
            if chance < 0.3:
                self.rule.published(self.now)
            if chance < 0.35:  # sometimes it asks again without having published
                self.rule.asked(self.now)
        elif self.rule.may_deliver():
            for group in self.rule.deliver(self.now):
                for member in range(self.size):
                    assert 0 <= self.rule.version - self.first[group, member] <= self.bound
                self.complete.discard(group)
                del self.members[group]
            self.n_batches += 1


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_no_delivered_trajectory_is_staler_than_the_bound_and_batches_keep_coming(seed: int):
    system = System(seed)
    for _ in range(1000):
        system.step()
    assert system.n_batches > 5


def test_synchronous_training_opens_one_batch_at_a_time():
    rule = StalenessRule(2, max_staleness=0)
    assert rule.max_open == 2


def test_the_groups_that_a_batch_waits_for_are_named_oldest_first():
    rule = StalenessRule(1, max_staleness=1, ahead=1)
    rule.asked(0.0)
    for group in ("slow", "quick"):
        rule.opened(group, 1)
        rule.ready(group, 0, 0.0)
        assert rule.may_begin(group, 0.0)
        rule.begin(group, 0)
    rule.completed("quick", 1.0)
    assert rule.deliver(1.0) == ["quick"]
    rule.published(2.0)
    rule.asked(2.0)
    rule.opened("next", 1)
    rule.ready("next", 0, 2.0)
    rule.begin("next", 0)
    rule.completed("next", 3.0)
    assert not rule.may_deliver(), "the slow one is at the bound: it goes first"
    assert rule.waits_for() == ["slow"]
    rule.completed("slow", 4.0)
    assert rule.deliver(4.0) == ["slow"]


def test_a_first_turn_is_held_when_it_would_lose_a_version():
    rule = StalenessRule(1, max_staleness=2, ahead=2)
    rule.asked(0.0)
    for group in ("a", "b"):
        rule.opened(group, 1)
        rule.ready(group, 0, 0.0)
        rule.begin(group, 0)
    rule.completed("a", 1.0)
    rule.deliver(1.0)
    rule.opened("c", 1)
    rule.ready("c", 0, 1.5)
    assert not rule.may_begin("c", 1.5), "nothing is known yet of how long the trainer takes"
    rule.published(11.0)
    assert rule.may_begin("c", 11.0)


@pytest.mark.parametrize(("groups", "bound", "ahead"), [(0, None, None), (1, 1, 2.0), (1, 1, -1.0)])
def test_what_cannot_be_kept_is_refused(groups: int, bound: int | None, ahead: float | None):
    with pytest.raises(InvalidInput):
        StalenessRule(groups, max_staleness=bound, ahead=ahead)

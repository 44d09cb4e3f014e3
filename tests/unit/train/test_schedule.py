"""The schedule: what it decides from what it is told."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from outrider.core.account import Account, AttemptAccount, Fate
from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.ledger import Ask, GroupEntry, GroupState, NewGroup
from outrider.core.rollout import Rollout, RolloutRequest
from outrider.core.status import RolloutStatus
from outrider.core.task import Task
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.filters import GroupResult
from outrider.train.schedule import Decision, Schedule
from outrider.train.seeding import seat_of

NOW = datetime(2025, 6, 15, tzinfo=UTC)
FAILURE = Failure(boundary=Boundary.ENV, kind="OSError", message="no display", stage="env.reset")


def config(**changes: object) -> SchedulerConfig:
    manager = {
        name: changes.pop(name)
        for name in list(changes)
        if name in EnvManagerConfig.__struct_fields__
    }  # fmt: skip
    chosen = EnvManagerConfig(**{"num_env_groups": 4, "group_size": 2, **manager})  # type: ignore[arg-type]
    return SchedulerConfig(train_env_manager=chosen, **changes)  # type: ignore[arg-type]


class World:
    """A schedule and the store around it: which rollouts there are, and what is told of them."""

    def __init__(self, chosen: SchedulerConfig, *, tasks: Sequence[Task] = ()) -> None:
        self.config = chosen
        n_groups = chosen.n_groups_of(chosen.batch_size)
        self.schedule = Schedule(chosen, "run", batch_groups=n_groups, tasks={"FrozenLake": tasks})
        self.requests: dict[str, RolloutRequest] = {}
        self.groups: dict[str, NewGroup] = {}
        self.ended: dict[str, Rollout] = {}
        self.accounts: list[AttemptAccount] = []
        self.decisions: list[Decision] = []
        self.now = 0.0
        self.schedule.rule.asked(self.now)

    def decide(self) -> Decision:
        decision = self.schedule.decide(self.now)
        for group in decision.opened:
            self.groups[group.group_id] = group
            self.requests |= {member.rollout_id or "": member for member in group.members}
        self.requests |= {member.rollout_id or "": member for member in decision.members}
        self.decisions.append(decision)
        return decision

    def rollout(self, rollout_id: str, status: RolloutStatus = RolloutStatus.RUNNING, **changes: object) -> Rollout:
        request = self.requests[rollout_id]
        given = {name: getattr(request, name) for name in RolloutRequest.__struct_fields__}
        rollout = Rollout(status=status, enqueued_at=NOW, attempt_id=f"at-{rollout_id}", **given)
        return replace(rollout, **changes)

    def ask(self, rollout_id: str, attempt: int = 1) -> None:
        group_id = self.requests[rollout_id].group_id or ""
        name = f"at-{rollout_id}-{attempt}"
        self.schedule.asked(Ask(group_id=group_id, rollout_id=rollout_id, attempt_id=name, asked_at=NOW), self.now)

    def end(self, rollout_id: str, reward: float | None = 1.0, *, tokens: int = 10, version: int | None = None) -> None:
        rollout = self.rollout(rollout_id, RolloutStatus.SUCCEEDED, reward=reward)
        first = self.schedule.rule.version if version is None else version
        account = Account(n_turns=1, completion_tokens=tokens, first_version=first, n_bytes=100)
        self._tell(rollout, account)

    def fail(self, rollout_id: str) -> None:
        rollout = self.rollout(rollout_id, RolloutStatus.FAILED, failure=FAILURE, n_failures=9)
        self._tell(rollout, Account(completion_tokens=3, failed=True))

    def _tell(self, rollout: Rollout, account: Account) -> None:
        told = AttemptAccount(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt_id or "",
            group_id=rollout.group_id or "",
            account=account,
        )
        self.accounts.append(told)
        self.ended[rollout.rollout_id] = rollout
        self.schedule.accounted(told)
        self.schedule.ended(rollout)

    def finish(self, group_id: str, rewards: Sequence[float] = (0.0, 1.0)) -> None:
        for member, reward in zip(self.groups[group_id].members, rewards, strict=False):
            self.end(member.rollout_id or "", reward)


def granted(decision: Decision) -> list[str]:
    return [grant.attempt_id.rpartition("-")[0].removeprefix("at-") for grant in decision.granted]


def test_as_many_groups_are_opened_as_batches_ahead_allow_oldest_first():
    world = World(config(async_generation_ratio=0.5, max_staleness=1))
    opened = world.decide().opened
    assert [group.number for group in opened] == list(range(6))
    assert all(len(group.members) == 2 for group in opened)
    assert len({member.seed for member in opened[0].members}) == 1
    assert not world.decide().opened


@pytest.mark.parametrize("filters", [(), ("zero_variance",)])
def test_an_attempt_that_another_one_followed_is_aborted_whatever_becomes_of_the_group(filters: tuple[str, ...]):
    world = World(config(filters=filters))
    (group, *_) = world.decide().opened
    rollout_id = group.members[0].rollout_id or ""
    lost = AttemptAccount(
        rollout_id=rollout_id, attempt_id="at-lost", group_id=group.group_id, account=Account(completion_tokens=7)
    )
    world.schedule.accounted(lost)
    for one in world.groups:
        world.finish(one, (1.0, 1.0))
    decision = world.decide()
    if not filters:
        _, decision = world.schedule.deliver(world.now, 0)
    assert decision.fates["at-lost"] is Fate.ABORTED
    assert decision.fates[f"at-{rollout_id}"] is (Fate.FILTERED if filters else Fate.TRAINED)
    assert world.schedule.flow[Fate.ABORTED] == 7


def test_the_kth_group_of_a_tag_has_the_same_seed_whatever_happens_to_the_others():
    tags = ("a", "b")
    calm = World(config(tags=tags, async_generation_ratio=3))
    rough = World(config(tags=tags, filters=("zero_variance",), async_generation_ratio=1))
    calm.decide()
    rough.decide()
    for group_id in ("run-1", "run-3", "run-0"):
        rough.finish(group_id, (1.0, 1.0))
        rough.decide()

    def seeds(world: World, tag: str) -> list[int]:
        return [group.seed for group in world.groups.values() if group.tag == tag]

    for tag in tags:
        n = min(len(seeds(calm, tag)), len(seeds(rough, tag)))
        assert n > 4
        assert seeds(calm, tag)[:n] == seeds(rough, tag)[:n]


def test_tags_keep_to_their_partition_in_every_stretch_of_groups():
    world = World(config(num_env_groups=4, tags=("a", "b"), num_groups_partition=(3, 1), async_generation_ratio=4))
    tags = [group.tag for group in world.decide().opened]
    for start in range(0, len(tags), 4):
        assert sorted(tags[start : start + 4]) == ["a", "a", "a", "b"]


def test_each_task_comes_up_once_before_any_comes_again():
    tasks = [Task(task_id=f"t{number}") for number in range(6)]
    world = World(config(async_generation_ratio=2, max_staleness=2), tasks=tasks)
    names = [group.members[0].input["task_id"] for group in world.decide().opened]
    assert sorted(names[:6]) == sorted(names[6:]) == [task.task_id for task in tasks]
    assert names[:6] != names[6:]


def test_a_first_turn_is_granted_once_all_members_are_ready_oldest_group_first():
    world = World(config())
    world.decide()
    for rollout_id in ("run-1.0", "run-1.1", "run-0.1", "run-0.0"):
        world.ask(rollout_id)
    assert granted(world.decide()) == ["run-0.1", "run-0.0", "run-1.0", "run-1.1"]


def test_a_member_that_is_tried_again_asks_again_and_is_granted_at_once():
    world = World(config())
    world.decide()
    world.ask("run-0.0")
    world.ask("run-0.1")
    world.decide()
    world.ask("run-0.0", attempt=2)
    (grant,) = world.decide().granted
    assert grant.attempt_id == "at-run-0.0-2"


def test_a_group_is_complete_with_the_first_members_and_the_others_are_cancelled():
    world = World(config(group_size_redundancy=1))
    world.decide()
    world.end("run-0.2")
    world.end("run-0.0")
    decision = world.decide()
    (move,) = decision.moved
    assert (move.state, move.members) == (GroupState.COMPLETE, ("run-0.2", "run-0.0"))
    assert decision.cancelled == ["run-0.1"]


def test_a_filter_drops_a_group_with_its_reason_and_another_of_its_tag_opens_at_once():
    world = World(config(tags=("a", "b"), filters=("zero_variance",)))
    world.decide()
    tag = world.groups["run-1"].tag
    world.finish("run-1", (1.0, 1.0))
    decision = world.decide()
    (move,) = decision.moved
    assert (move.state, move.reason) == (GroupState.DROPPED, "filtered: zero_variance")
    assert set(decision.fates.values()) == {Fate.FILTERED}
    assert [group.tag for group in decision.opened] == [tag]


def too_easy(group: GroupResult) -> str:
    return "too easy" if min(group.rewards) > 0.5 else ""


def broken(group: GroupResult) -> bool:
    raise ZeroDivisionError(group.group_id)


def test_a_filter_of_the_users_own_says_why():
    world = World(config(filters=(f"{__name__}:too_easy",)))
    world.decide()
    world.finish("run-0", (0.6, 0.7))
    world.finish("run-1", (0.1, 0.7))
    kept, dropped = world.decide().moved[::-1]
    assert dropped.reason == f"filtered: {__name__}:too_easy: too easy"
    assert kept.state is GroupState.COMPLETE


def test_a_filter_that_fails_is_named():
    world = World(config(filters=(f"{__name__}:broken",)))
    world.decide()
    world.finish("run-0")
    with pytest.raises(InvalidInput, match="broken failed on group run-0"):
        world.decide()


@pytest.mark.parametrize(
    ("name", "says"),
    [("zero_varience", "there are zero_variance"), ("no_such_module:x", "no module"), ("math:pi", "is not a function")],
)
def test_a_filter_that_is_not_there_is_refused(name: str, says: str):
    with pytest.raises(InvalidInput, match=says):
        World(config(filters=(name,)))


def test_a_group_that_cannot_be_filled_is_dropped_with_the_failure_and_replaced():
    world = World(config())
    world.decide()
    world.end("run-0.0")
    world.fail("run-0.1")
    decision = world.decide()
    (move,) = decision.moved
    assert move.reason == "failed: run-0.1 failed 9 times, last in env.reset: no display"
    assert decision.fates == {"at-run-0.0": Fate.FAILED, "at-run-0.1": Fate.FAILED}
    assert len(decision.opened) == 1


def test_a_redundant_member_makes_up_for_a_failed_one():
    world = World(config(group_size_redundancy=1))
    world.decide()
    world.fail("run-0.1")
    assert not world.decide().moved
    world.end("run-0.0")
    world.end("run-0.2")
    assert world.decide().moved[0].members == ("run-0.0", "run-0.2")


def test_a_member_without_a_reward_cannot_be_trained_on():
    world = World(config())
    world.decide()
    world.end("run-0.0", None)
    assert world.decide().moved[0].reason == "failed: run-0.0 ended without a reward"


def test_of_a_member_and_its_hedge_the_first_to_end_counts_and_the_other_is_cancelled():
    world = World(config())
    world.decide()
    assert world.schedule.may_hedge("run-0", "run-0.1")
    world.schedule.hedge(world.rollout("run-0.1"))
    (hedge,) = world.decide().members
    original = world.requests["run-0.1"]
    assert replace(hedge, rollout_id="run-0.1", priority=0) == original
    assert seat_of(hedge.rollout_id or "") == 1
    assert not world.schedule.may_hedge("run-0", "run-0.1"), "there are two of it already"
    world.end(hedge.rollout_id or "")
    assert world.decide().cancelled == ["run-0.1"]
    world.end("run-0.0")
    assert world.decide().moved[0].members == ("run-0.1+1", "run-0.0")


def test_a_member_is_not_hedged_without_end():
    world = World(config(max_refills=2))
    world.decide()
    for number, rollout_id in enumerate(["run-0.1", "run-0.1+1"]):
        world.schedule.hedge(world.rollout(rollout_id))
        world.decide()
        world.fail(rollout_id)
        assert world.schedule.may_hedge("run-0", f"run-0.1+{number + 1}") == (number == 0)


def test_groups_past_the_bound_are_dropped_when_the_trainer_publishes_without_training():
    world = World(config(async_generation_ratio=1, max_staleness=1))
    world.decide()
    world.ask("run-0.0")
    world.ask("run-0.1")
    world.decide()
    world.finish("run-0")
    world.decide()
    world.schedule.published(1.0)
    assert not world.decide().moved
    world.schedule.published(2.0)
    (move,) = world.decide().moved
    assert move.reason == "stale: older than 1 versions"
    assert world.schedule.flow == {Fate.STALE: 20}


def test_a_group_begun_earlier_than_allowed_is_never_delivered():
    world = World(config())
    world.schedule.published(0.0)
    world.decide()
    for rollout_id in ("run-0.0", "run-0.1"):
        world.end(rollout_id, version=0)
    (move,) = world.decide().moved
    assert move.reason == "stale: begun at version 0, earlier than it was allowed to"


def test_no_more_than_a_batch_is_opened_while_finished_trajectories_fill_the_buffer():
    world = World(config(async_generation_ratio=2, max_staleness=2, max_buffer_bytes=200))
    assert len(world.decide().opened) == 12
    for number in range(12):
        world.finish(f"run-{number}")
    world.decide()
    world.schedule.deliver(1.0, 0)
    world.schedule.published(2.0)
    assert not world.decide().opened, "eight complete groups wait, with 200 bytes each"
    world.schedule.rule.asked(3.0)
    world.schedule.deliver(3.0, 1)
    world.schedule.published(4.0)
    world.schedule.rule.asked(5.0)
    world.schedule.deliver(5.0, 2)
    assert world.schedule.n_bytes == 0
    assert len(world.decide().opened) == 12


def test_tokens_are_counted_by_what_became_of_them():
    world = World(config(group_size_redundancy=1, rollout_batch_size=2))
    world.decide()
    world.fail("run-0.0")
    world.end("run-0.1", tokens=20)
    world.end("run-0.2", tokens=30)
    world.decide()
    _, decision = world.schedule.deliver(1.0, 0)
    assert decision.fates == {"at-run-0.0": Fate.FAILED, "at-run-0.1": Fate.TRAINED, "at-run-0.2": Fate.TRAINED}
    assert world.schedule.flow == {Fate.FAILED: 3, Fate.TRAINED: 50}


def test_all_open_groups_are_dropped_when_it_is_aborted():
    world = World(config())
    world.decide()
    world.end("run-0.0")
    world.schedule.abort()
    decision = world.schedule.decide(0.0, may_open=False)
    assert {move.reason for move in decision.moved} == {"aborted: the scheduler was stopped"}
    assert len(decision.cancelled) == 7
    assert decision.fates == {"at-run-0.0": Fate.ABORTED}


def entry_of(world: World, group: NewGroup, state: GroupState, clock: int | None) -> GroupEntry:
    return GroupEntry(
        group_id=group.group_id,
        ledger="run",
        number=group.number,
        state=state,
        tag=group.tag,
        seed=group.seed,
        size=group.size,
        clock=clock,
        opened_at=NOW,
        moved_at=NOW,
    )


def test_a_schedule_that_is_restored_goes_on_where_the_other_was():
    first = World(config(group_size_redundancy=1, async_generation_ratio=1, max_staleness=2))
    first.decide()
    for rollout_id in ("run-0.0", "run-0.1", "run-0.2", "run-1.0", "run-1.1", "run-1.2"):
        first.ask(rollout_id)
    first.decide()
    first.end("run-0.2")
    first.end("run-0.0")
    first.end("run-1.1")
    first.decide()
    second = World(first.config)
    second.requests, second.groups = first.requests, first.groups
    states = {"run-0": GroupState.COMPLETE}
    second.schedule.source.n_opened = len(first.groups)
    second.schedule.restore(
        0,
        [
            entry_of(first, group, states.get(name, GroupState.OPENED), 0 if name in ("run-0", "run-1") else None)
            for name, group in first.groups.items()
        ],
        counts={("FrozenLake", GroupState.OPENED): len(first.groups) - 1, ("FrozenLake", GroupState.COMPLETE): 1},
        member_ids=list(first.requests),
        ended=list(first.ended.values()),
        accounts=first.accounts,
    )
    decision = second.decide()
    assert [move.members for move in decision.moved] == [("run-0.2", "run-0.0")], "complete again, by the same members"
    assert not decision.opened
    for world in (first, second):
        world.end("run-1.0")
    assert [move.members for move in first.decide().moved] == [("run-1.1", "run-1.0")]
    assert [move.members for move in second.decide().moved] == [("run-1.1", "run-1.0")]
    assert first.schedule.source.next_group() == second.schedule.source.next_group()

"""The ledger of groups: one owner, whole writes, moves along the table, members that are enqueued with their group."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from ledger_moves import (
    all_of_ledgers,
    ask,
    claim_all,
    entry,
    fates,
    full_write,
    grant,
    group,
    move,
    moves_to,
    opened,
    seat,
    took,
)
from outrider.core.account import Fate
from outrider.core.clock import utc
from outrider.core.errors import InvalidInput, LedgerLost
from outrider.core.ledger import BEFORE, GroupEntry, GroupMove, GroupState, Ledger, LedgerWrite
from outrider.core.rollout import RolloutRequest
from outrider.store import Store, open_store
from outrider.testing import FakeClock
from store_moves import claim, finish

STATES = tuple(GroupState)


async def test_a_new_ledger_stands_at_its_beginning_and_keeps_its_settings(store: Store, clock: FakeClock):
    ledger = await store.open_ledger("train", {"batch": 256, "tags": ["a"]})
    assert ledger == Ledger(
        name="train",
        epoch=1,
        version=0,
        n_opened=0,
        n_batches=0,
        settings={"batch": 256, "tags": ["a"]},
        opened_at=utc(clock.time()),
    )
    assert await store.query_ledgers() == (ledger,)


async def test_who_opens_a_ledger_again_takes_it_over_as_it_stands(store: Store, clock: FakeClock):
    first = await store.open_ledger("train", {"batch": 256})
    await store.write_ledger(first, LedgerWrite(opened=(group(0), group(1)), version=4))
    await store.write_ledger(first, LedgerWrite(moved=moves_to("g0", GroupState.DELIVERED)))
    await clock.advance(5)
    second = await store.open_ledger("train", {"batch": 1})
    assert second == replace(
        first, epoch=2, version=4, n_opened=2, n_batches=1, opened_at=utc(clock.time()), settings={"batch": 256}
    )
    assert await store.query_ledgers() == (second,)


async def test_ledgers_are_listed_by_name_and_none_is_taken_over(store: Store):
    ledgers = [await store.open_ledger(name) for name in ("b", "a", "c")]
    assert [ledger.name for ledger in await store.query_ledgers()] == ["a", "b", "c"]
    for ledger in ledgers:
        await store.write_ledger(ledger, LedgerWrite(version=1))
    assert [ledger.epoch for ledger in await store.query_ledgers()] == [1, 1, 1]


async def test_a_write_of_whoever_had_the_ledger_before_is_refused_and_changes_nothing(store: Store):
    old = await opened(store, group(0))
    waiting, ended = await claim_all(store)
    await ask(store, waiting)
    await finish(store, ended, account=took(3))
    new = await store.open_ledger("train")
    before = await all_of_ledgers(store)
    for write in (
        LedgerWrite(opened=(group(1),)),
        LedgerWrite(members=(seat("g0", 9),)),
        LedgerWrite(granted=(grant(waiting),)),
        LedgerWrite(moved=(move("g0", GroupState.DROPPED),)),
        LedgerWrite(fates=fates([ended], Fate.STALE)),
        LedgerWrite(version=9),
        LedgerWrite(),
    ):
        with pytest.raises(LedgerLost, match="taken over") as caught:
            await store.write_ledger(old, write)
        assert (caught.value.name, caught.value.epoch, caught.value.current) == ("train", 1, 2)
        assert await all_of_ledgers(store) == before
    await store.write_ledger(new, LedgerWrite(opened=(group(1),)))


async def test_ledgers_do_not_see_each_other(store: Store):
    one, two = await opened(store, group(0)), await opened(store, group(0, ledger="other"), name="other")
    await store.write_ledger(two, LedgerWrite(version=3))
    assert [found.group_id for found in await store.query_groups("train")] == ["g0"]
    assert await store.count_groups("other") == {("t", GroupState.OPENED): 1}
    assert (await store.query_groups("nobody")).items == ()
    assert await store.count_groups("nobody") == {}
    before = await all_of_ledgers(store)
    for write in (
        LedgerWrite(moved=(move("other-g0", GroupState.DROPPED),)),
        LedgerWrite(members=(seat("other-g0", 5),)),
        LedgerWrite(opened=(replace(group(0, ledger="other"), number=1),)),
    ):
        with pytest.raises(InvalidInput, match="other"):
            await store.write_ledger(one, write)
    assert await all_of_ledgers(store) == before


async def test_a_group_is_opened_with_its_members_in_the_queue(store: Store, clock: FakeClock):
    await opened(store, group(0))
    now = utc(clock.time())
    assert (await store.query_groups("train")).items == (
        GroupEntry(
            group_id="g0",
            ledger="train",
            number=0,
            state=GroupState.OPENED,
            tag="t",
            seed=7,
            size=2,
            opened_at=now,
            moved_at=now,
        ),
    )
    members = (await store.query_rollouts(group_id="g0")).items
    assert [(one.rollout_id, one.tag, one.seed, one.status) for one in members] == [
        ("g0/0", "t", 7, "queuing"),
        ("g0/1", "t", 7, "queuing"),
    ]
    assert members[0].metadata == {"ledger": "train"}


async def test_members_are_claimed_in_the_order_of_their_groups(store: Store):
    ledger = await opened(store, group(0), group(1))
    await store.write_ledger(ledger, LedgerWrite(opened=(group(2),), members=(seat("g0", 2),)))
    assert [one.rollout_id for one in await claim_all(store)] == [
        *("g0/0", "g0/1", "g1/0", "g1/1"),
        *("g2/0", "g2/1", "g0/2"),
    ]


async def test_a_worker_that_waits_for_work_wakes_when_a_group_is_opened(store: Store, parked):
    ledger = await store.open_ledger("train")
    task = await parked(store.dequeue_rollout(worker_id="w", wait=60))
    await store.write_ledger(ledger, LedgerWrite(opened=(group(0),)))
    assert (await task).rollout_id == "g0/0"


async def test_a_write_with_everything_in_it_is_carried_out_in_the_order_of_its_fields(store: Store, clock: FakeClock):
    ledger = await opened(store, group(0))
    claimed = await claim_all(store)
    await ask(store, *claimed)
    await finish(store, claimed[0], account=took(5))
    await clock.advance(1)
    await store.write_ledger(
        ledger,
        LedgerWrite(
            opened=(group(1),),
            members=(seat("g1", 2),),
            granted=(grant(claimed[1], 3),),
            moved=(*moves_to("g0", GroupState.DELIVERED), move("g1", GroupState.DROPPED)),
            fates={claimed[0].attempt.attempt_id: Fate.TRAINED},
            version=3,
        ),
    )
    now = utc(clock.time())
    first, second = (await store.query_groups("train")).items
    assert (first.state, first.clock, first.batch, first.members) == ("delivered", 3, 0, ("g0/0", "g0/1"))
    assert (first.opened_at < now, first.moved_at) == (True, now)
    assert (second.state, second.reason, second.batch) == ("dropped", "stale: 3 versions old", None)
    assert len(await store.query_rollouts(group_id="g1")) == 3
    assert await store.grants([claimed[1].attempt.attempt_id]) == {}, "forgotten when its group was closed"
    assert [one.fate for one in await store.query_accounts(["g0/0"])] == [Fate.TRAINED]
    (standing,) = await store.query_ledgers()
    assert (standing.version, standing.n_opened, standing.n_batches) == (3, 2, 1)


@pytest.mark.parametrize(("start", "to"), list(itertools.product(STATES, STATES)))
async def test_a_group_moves_along_the_table_only(store: Store, start: GroupState, to: GroupState):
    ledger = await opened(store, group(0))
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", start)))
    before = await all_of_ledgers(store)
    write = LedgerWrite(moved=(move("g0", to),))
    if start in BEFORE.get(to, ()):
        await store.write_ledger(ledger, write)
        assert (await entry(store, "g0")).state is to
    elif start is to:
        await store.write_ledger(ledger, write)
        assert await all_of_ledgers(store) == before
    else:
        with pytest.raises(InvalidInput, match=f"'g0' is {start} and cannot become {to}"):
            await store.write_ledger(ledger, write)
        assert await all_of_ledgers(store) == before


async def test_what_a_state_has_beside_it_stays_with_the_group(store: Store):
    ledger = await opened(store, group(0), group(1))
    for state in (GroupState.COMPLETE, GroupState.DELIVERED, GroupState.ACKNOWLEDGED):
        await store.write_ledger(ledger, LedgerWrite(moved=(move("g0", state),)))
        kept = await entry(store, "g0")
        assert kept.members == ("g0/0", "g0/1")
        assert kept.batch == (None if state is GroupState.COMPLETE else 0)
    await store.write_ledger(ledger, LedgerWrite(moved=(move("g1", GroupState.DROPPED),)))
    assert (await entry(store, "g1")).reason == "stale: 3 versions old"


async def test_a_group_is_not_delivered_in_another_batch(store: Store):
    ledger = await opened(store, group(0))
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", GroupState.DELIVERED)))
    before = await all_of_ledgers(store)
    again = GroupMove(group_id="g0", state=GroupState.DELIVERED, batch=1)
    with pytest.raises(InvalidInput, match="in batch 0, so it cannot be in 1"):
        await store.write_ledger(ledger, LedgerWrite(moved=(again,)))
    assert await all_of_ledgers(store) == before


async def test_several_moves_of_a_group_in_one_write_follow_the_table_too(store: Store):
    ledger = await opened(store, group(0))
    before = await all_of_ledgers(store)
    for detour in ((GroupState.COMPLETE, GroupState.OPENED), (GroupState.DROPPED, GroupState.COMPLETE)):
        with pytest.raises(InvalidInput, match="cannot become"):
            await store.write_ledger(ledger, LedgerWrite(moved=tuple(move("g0", state) for state in detour)))
    assert await all_of_ledgers(store) == before


LATER: dict[str, LedgerWrite] = {
    "nothing": LedgerWrite(),
    "another group": LedgerWrite(opened=(group(3),), version=2),
    "more members": LedgerWrite(members=(seat("g2", 5),)),
    "moves": LedgerWrite(moved=(*moves_to("g1", GroupState.ACKNOWLEDGED), *moves_to("g2", GroupState.DELIVERED))),
}


@pytest.mark.parametrize("later", list(LATER))
async def test_a_write_that_is_repeated_changes_nothing_also_after_others(store: Store, later: str, clock: FakeClock):
    ledger, write = await full_write(store)
    await store.write_ledger(ledger, write)
    await clock.advance(1)
    await store.write_ledger(ledger, LATER[later])
    before = await all_of_ledgers(store)
    await clock.advance(1)
    await store.write_ledger(ledger, write)
    await store.write_ledger(ledger, LATER[later])
    assert await all_of_ledgers(store) == before


async def test_a_closed_group_gets_no_more_members(store: Store):
    ledger = await opened(store, group(0), group(1))
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", GroupState.COMPLETE)))
    await store.write_ledger(ledger, LedgerWrite(members=(seat("g0", 2),)))
    await store.write_ledger(ledger, LedgerWrite(moved=(move("g0", GroupState.DROPPED),)))
    before = await all_of_ledgers(store)
    with pytest.raises(InvalidInput, match="cannot become a member of group 'g0', which is dropped"):
        await store.write_ledger(ledger, LedgerWrite(members=(seat("g0", 3),)))
    assert await all_of_ledgers(store) == before


async def test_groups_are_listed_in_the_order_they_were_opened_by_state_and_batch(store: Store):
    ledger = await opened(store, *(group(n, tag="ab"[n % 2]) for n in range(8)))
    await store.write_ledger(
        ledger,
        LedgerWrite(
            moved=(
                *(move(f"g{n}", GroupState.COMPLETE) for n in (5, 3, 1, 6)),
                GroupMove(group_id="g6", state=GroupState.DELIVERED, batch=0),
                GroupMove(group_id="g5", state=GroupState.DELIVERED, batch=1),
                GroupMove(group_id="g1", state=GroupState.DELIVERED, batch=1),
                move("g6", GroupState.ACKNOWLEDGED),
                move("g7", GroupState.DROPPED),
            )
        ),
    )

    async def numbers(**chosen: Any) -> tuple[list[int], int]:
        page = await store.query_groups("train", **chosen)
        return [one.number for one in page], page.total

    assert await numbers() == (list(range(8)), 8)
    assert await numbers(states=["opened"]) == ([0, 2, 4], 3)
    assert await numbers(states=["delivered", GroupState.COMPLETE]) == ([1, 3, 5], 3)
    assert await numbers(states=[]) == ([], 0)
    assert await numbers(batch=1) == ([1, 5], 2)
    assert await numbers(batch=0, states=["delivered"]) == ([], 0)
    assert await numbers(batch=7) == ([], 0)
    assert await numbers(group_ids=["g5", "g0", "nobody"]) == ([0, 5], 2)
    assert await numbers(group_ids=["g5", "g0"], states=["opened"], limit=1) == ([0], 1)
    assert await numbers(group_ids=[]) == ([], 0)
    assert await numbers(limit=2, offset=3) == ([3, 4], 8)
    assert await numbers(states=["opened"], limit=0) == ([], 3)
    assert await store.count_groups("train") == {
        ("a", GroupState.OPENED): 3,
        ("a", GroupState.ACKNOWLEDGED): 1,
        ("b", GroupState.COMPLETE): 1,
        ("b", GroupState.DELIVERED): 2,
        ("b", GroupState.DROPPED): 1,
    }
    (standing,) = await store.query_ledgers()
    assert (standing.n_opened, standing.n_batches) == (8, 2)


async def test_the_version_of_a_ledger_never_falls(store: Store):
    ledger = await opened(store)
    for version, stands in ((1, 1), (5, 5), (2, 5), (None, 5)):
        await store.write_ledger(ledger, LedgerWrite(version=version))
        assert [one.version for one in await store.query_ledgers()] == [stands]


async def test_ids_of_any_text_are_kept_as_they_are(store: Store):
    odd = 'a\'b"; DROP TABLE groups; -- %s $1 ?1 日本語 🚀 [0] {"x"}'
    ledger = await store.open_ledger(odd, {odd: odd})
    member = RolloutRequest(input=odd, rollout_id=odd, group_id=odd)
    await store.write_ledger(ledger, LedgerWrite(opened=(replace(group(0), group_id=odd, tag=odd, members=(member,)),)))
    claimed = await claim(store)
    await ask(store, claimed)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(claimed, 2),)))
    assert await store.grants([claimed.attempt.attempt_id]) == {claimed.attempt.attempt_id: 2}
    await finish(store, claimed, account=took(1, metrics={odd: 1.0}))
    assert [one.account.metrics for one in await store.query_accounts([odd])] == [{odd: 1.0}]
    dropped = GroupMove(group_id=odd, state=GroupState.DROPPED, reason=odd)
    await store.write_ledger(ledger, LedgerWrite(moved=(dropped,)))
    assert (await entry(store, odd, odd)).reason == odd
    assert [one.group_id for one in await store.late_accounts(odd)] == [odd]


async def test_a_ledger_is_as_it_was_after_opening_the_store_again(durable_url: str, clock: FakeClock):
    async with open_store(durable_url, clock=clock) as store:
        ledger, write = await full_write(store)
        await store.write_ledger(ledger, write)
        before = await all_of_ledgers(store)
    async with open_store(durable_url, clock=clock) as store:
        assert await all_of_ledgers(store) == before
        await store.write_ledger(ledger, LedgerWrite(opened=(group(3),)))
        await store.open_ledger("train")
        with pytest.raises(LedgerLost):
            await store.write_ledger(ledger, LedgerWrite(opened=(group(4),)))

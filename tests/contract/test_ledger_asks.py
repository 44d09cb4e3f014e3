"""Leave to begin: attempts ask, the owner of the ledger grants, and what is granted stays."""

import asyncio
import json
from pathlib import Path

import pytest

from ledger_moves import all_of_ledgers, ask, claim_all, close_group, entry, grant, group, moves_to, opened
from outrider.core.clock import utc
from outrider.core.errors import InvalidInput, StoreError
from outrider.core.ledger import Ask, Grant, GroupState, LedgerWrite
from outrider.core.rollout import AttemptedRollout, RolloutConfig
from outrider.store import Store, open_store
from outrider.store.bell import Bell
from outrider.testing import FakeClock, eventually
from processes import line, program
from store_moves import claim, enqueue_and_claim, finish

CLOSED = [state for state in GroupState if state.is_closed]


async def soon(waiting):
    """The result of something that must not take long in real time: the clock stands still, so only a ring wakes."""
    return await asyncio.wait_for(waiting, 10)


async def asked(store: Store, cursor: int = 0) -> list[str]:
    return [one.rollout_id for one in (await store.asks_after("train", cursor)).items]


def id_of(claimed: AttemptedRollout) -> str:
    return claimed.attempt.attempt_id


async def test_asks_are_read_in_the_order_they_came(store: Store, clock: FakeClock):
    await opened(store, group(0), group(1))
    claimed = await claim_all(store)
    await ask(store, claimed[2])
    await clock.advance(1)
    await ask(store, claimed[1], claimed[0])
    found = await store.asks_after("train")
    assert [(one.rollout_id, one.attempt_id, one.group_id) for one in found.items] == [
        (one.rollout_id, id_of(one), one.group_id) for one in (claimed[2], claimed[1], claimed[0])
    ]
    assert found.items[2] == Ask(
        group_id="g0", rollout_id="g0/0", attempt_id=id_of(claimed[0]), asked_at=utc(clock.time())
    )
    assert (await store.asks_after("train", found.cursor)).items == ()
    assert (await store.asks_after("train", found.cursor)).cursor == found.cursor
    assert (await store.asks_after("other")).items == ()


async def test_an_ask_that_is_repeated_keeps_its_place_and_its_time(store: Store, clock: FakeClock):
    await opened(store, group(0))
    claimed = await claim_all(store)
    await ask(store, *claimed)
    before = await store.asks_after("train")
    await clock.advance(1)
    await ask(store, *reversed(claimed))
    await store.ask_to_begin([])
    assert await store.asks_after("train") == before


async def test_an_ask_that_cannot_be_is_passed_over_and_the_others_stand(store: Store):
    await opened(store, group(0))
    first, second = await claim_all(store)
    outside = await enqueue_and_claim(store, group_id="of no ledger")
    alone = await enqueue_and_claim(store)
    await finish(store, first, "failed")
    await store.ask_to_begin(
        [
            ("nobody", id_of(second)),
            (second.rollout_id, "at-1-1-00"),
            (second.rollout_id, id_of(first)),
            (first.rollout_id, id_of(first)),
            (outside.rollout_id, id_of(outside)),
            (alone.rollout_id, id_of(alone)),
            (second.rollout_id, id_of(second)),
        ]
    )
    assert await asked(store) == [second.rollout_id]


@pytest.mark.parametrize("end", ["failed", "succeeded", "cancelled", "cancel", "revoke", "expire"])
async def test_asks_of_attempts_that_have_ended_are_left_out(store: Store, clock: FakeClock, end: str):
    await opened(store, group(0))
    first, second = await claim(store, "w"), await claim(store, "v")
    await ask(store, first, second)
    match end:
        case "cancel":
            await store.cancel_rollouts([first.rollout_id])
        case "revoke":
            await store.revoke_leases("w", reason="it died")
        case "expire":
            await clock.advance(20)
            await store.heartbeat("v", [id_of(second)])
            await clock.advance(20)
        case _:
            await finish(store, first, end)

    async def is_left_out() -> bool:
        return await asked(store) == [second.rollout_id]

    await eventually(is_left_out)


async def test_the_next_attempt_asks_for_itself(store: Store):
    ledger = await opened(store, group(0, n_members=1))
    first = await claim(store)
    await ask(store, first)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(first, 1),)))
    await finish(store, first, "failed")
    second = await claim(store)
    assert second.rollout_id == first.rollout_id
    assert await store.grants([id_of(second)]) == {}
    await ask(store, second)
    assert [one.attempt_id for one in (await store.asks_after("train")).items] == [id_of(second)]
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(second, 4),)))
    assert await store.grants([id_of(first), id_of(second)]) == {id_of(first): 1, id_of(second): 4}


async def test_a_cursor_reads_on_without_skipping_or_showing_an_ask_twice(store: Store):
    n_groups, seen, cursor = 30, [], 0
    await opened(store, *(group(n) for n in range(n_groups)))
    claimed = await claim_all(store)

    async def worker(own: tuple[AttemptedRollout, ...]) -> None:
        for one in own:
            await ask(store, one)

    async def reader() -> None:
        nonlocal cursor
        while len(seen) < len(claimed):
            found = await store.asks_after("train", cursor, limit=7, wait=60)
            assert 1 <= len(found.items) <= 7
            assert found.cursor > cursor
            cursor = found.cursor
            seen.extend(one.rollout_id for one in found.items)

    await soon(asyncio.gather(reader(), *(worker(claimed[n::6]) for n in range(6))))
    assert sorted(seen) == sorted(one.rollout_id for one in claimed)


async def test_asks_that_come_after_the_newest_were_forgotten_stand_behind_the_cursor(store: Store):
    ledger = await opened(store, group(0), group(1))
    claimed = await claim_all(store)
    await ask(store, *claimed[:2])
    cursor = (await store.asks_after("train")).cursor
    await close_group(store, ledger, "g0")
    await ask(store, *claimed[2:])
    assert await asked(store, cursor) == ["g1/0", "g1/1"]


async def test_what_is_granted_is_asked_no_more_and_the_worker_learns_its_version(store: Store):
    ledger = await opened(store, group(0), group(1))
    claimed = await claim_all(store)
    await ask(store, *claimed)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(claimed[0], 3), grant(claimed[3], 5))))
    assert await asked(store) == ["g0/1", "g1/0"]
    everybody = [id_of(one) for one in claimed]
    assert await store.grants([*everybody, "nobody"]) == {everybody[0]: 3, everybody[3]: 5}
    assert await store.grants(everybody[1:3]) == {}
    assert await store.grants([]) == {}


async def test_a_first_turn_that_was_granted_keeps_its_version_and_its_group_the_clock(store: Store):
    ledger = await opened(store, group(0))
    first, second = await claim_all(store)
    await ask(store, first)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(first, 3),)))
    await ask(store, first)
    before = await all_of_ledgers(store)
    for version in (2, 3, 4):
        await store.write_ledger(ledger, LedgerWrite(granted=(grant(first, version),)))
    assert await all_of_ledgers(store) == before
    taken_over = await store.open_ledger("train")
    await store.write_ledger(taken_over, LedgerWrite(granted=(grant(first, 9), grant(second, 9))))
    assert await store.grants([id_of(first), id_of(second)]) == {id_of(first): 3}, "the second had not asked"
    assert (await entry(store, "g0")).clock == 3


async def test_of_two_grants_to_one_attempt_in_a_write_the_first_counts(store: Store):
    ledger = await opened(store, group(0))
    first, _ = await claim_all(store)
    await ask(store, first)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(first, 5), grant(first, 2))))
    assert await store.grants([id_of(first)]) == {id_of(first): 5}
    assert (await entry(store, "g0")).clock == 5


async def test_the_clock_of_a_group_is_the_least_version_granted_to_its_members(store: Store):
    ledger = await opened(store, group(0, n_members=4), group(1))
    claimed = await claim_all(store)
    assert (await entry(store, "g0")).clock is None
    await ask(store, *claimed)
    for granted, clock in (((1, 7),), 7), (((0, 9),), 7), (((2, 4), (3, 5)), 4):
        grants = tuple(grant(claimed[n], version) for n, version in granted)
        await store.write_ledger(ledger, LedgerWrite(granted=grants))
        assert (await entry(store, "g0")).clock == clock
    assert (await entry(store, "g1")).clock is None
    await close_group(store, ledger, "g0", GroupState.ACKNOWLEDGED)
    assert (await entry(store, "g0")).clock == 4


async def test_a_grant_that_fits_no_ask_is_passed_over(store: Store):
    ledger = await opened(store, group(0), group(1))
    other = await opened(store, group(0, ledger="other"), name="other")
    claimed = await claim_all(store)
    await ask(store, claimed[0], claimed[4])
    before = await all_of_ledgers(store)
    misfits = (
        grant(claimed[1]),
        Grant(group_id="g1", attempt_id=id_of(claimed[0]), version=0),
        Grant(group_id="g0", attempt_id="nobody", version=0),
        grant(claimed[4]),
    )
    await store.write_ledger(ledger, LedgerWrite(granted=misfits))
    assert await all_of_ledgers(store) == before
    await store.write_ledger(other, LedgerWrite(granted=(grant(claimed[4], 1),)))
    assert await store.grants([id_of(claimed[4])]) == {id_of(claimed[4]): 1}


@pytest.mark.parametrize("state", CLOSED)
async def test_a_group_that_is_closed_forgets_what_its_members_asked(store: Store, state: GroupState):
    ledger = await opened(store, group(0), group(1))
    claimed = await claim_all(store)
    await ask(store, *claimed)
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(claimed[0], 2), grant(claimed[2], 2))))
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", GroupState.COMPLETE)))
    if state is not GroupState.DROPPED:
        assert await store.grants([id_of(claimed[0])]) == {id_of(claimed[0]): 2}, "it is not closed yet"
        await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", state)[1:]))
    else:
        await close_group(store, ledger, "g0", state)
    assert await store.grants([id_of(one) for one in claimed]) == {id_of(claimed[2]): 2}
    assert await asked(store) == ["g1/1"]
    await ask(store, *claimed[:2])
    assert await asked(store) == ["g1/1"], "nothing more is run for it"
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(claimed[1], 1),)))
    assert await store.grants([id_of(claimed[1])]) == {}
    assert (await entry(store, "g0")).clock == 2


async def test_a_worker_that_waits_for_leave_wakes_when_it_is_granted(store: Store, parked):
    ledger = await opened(store, group(0))
    first, second = await claim_all(store)
    await ask(store, first, second)
    task = await parked(store.grants([id_of(first), id_of(second)], wait=60))
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(second, 6),)))
    assert await soon(task) == {id_of(second): 6}


async def test_who_waits_for_leave_is_told_of_attempts_that_join_meanwhile(store: Store, parked):
    ledger = await opened(store, group(0))
    first, second = await claim_all(store)
    await ask(store, first, second)
    held = {id_of(first): "slot 0"}
    task = await parked(store.grants(held.keys(), wait=60))
    held[id_of(second)] = "slot 1"
    await store.write_ledger(ledger, LedgerWrite(granted=(grant(second, 6),)))
    assert await soon(task) == {id_of(second): 6}


async def test_waiting_for_leave_or_for_asks_ends_at_the_deadline(store: Store, parked, clock: FakeClock):
    await opened(store, group(0, config=RolloutConfig(unresponsive_seconds=1e6)))
    first, _ = await claim_all(store)
    tasks = [await parked(store.grants([id_of(first)], wait=60)), await parked(store.asks_after("train", 3, wait=60))]
    await clock.advance(59)
    assert not any(task.done() for task in tasks)
    await clock.advance(1.5)
    assert await soon(tasks[0]) == {}
    assert await soon(tasks[1]) == await store.asks_after("train", 3)


async def test_the_owner_that_waits_for_asks_wakes_when_one_comes(store: Store, parked):
    await opened(store, group(0))
    first, second = await claim_all(store)
    await ask(store, first)
    cursor = (await store.asks_after("train")).cursor
    task = await parked(store.asks_after("train", cursor, wait=60))
    await ask(store, second)
    assert [one.rollout_id for one in (await soon(task)).items] == [second.rollout_id]


async def test_who_waits_for_resources_wakes_when_newer_ones_are_published(store: Store, parked, clock: FakeClock):
    assert await store.get_latest_resources() is None
    assert await store.get_latest_resources(wait=0.0, after=7) is None
    first = await parked(store.get_latest_resources(wait=60))
    published = await store.put_resources({"policy": {"version": 0}})
    assert await soon(first) == published
    assert await store.get_latest_resources(after=0) == published
    assert await store.get_latest_resources(after=published.version) is None
    second = await parked(store.get_latest_resources(after=published.version, wait=60))
    newer = await store.put_resources({"policy": {"version": 1}})
    assert await soon(second) == newer
    third = await parked(store.get_latest_resources(after=newer.version, wait=60))
    await clock.advance(60.5)
    assert await soon(third) is None


async def test_closing_the_store_ends_those_who_wait_for_leave_with_an_error(store: Store, parked):
    tasks = [
        await parked(store.grants(["a"], wait=600)),
        await parked(store.asks_after("train", wait=600)),
        await parked(store.get_latest_resources(wait=600)),
    ]
    await store.close()
    for task in tasks:
        with pytest.raises(StoreError, match="closed"):
            await soon(task)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda store: store.ask_to_begin(["at"]), "give a pair of rollout_id and attempt_id"),
        (lambda store: store.ask_to_begin([("a", "b", "c")]), "give a pair of rollout_id and attempt_id"),
        (lambda store: store.ask_to_begin([("a", 1)]), "attempt_id must be text"),
        (lambda store: store.asks_after("train", -1), "cursor -1 is too small"),
        (lambda store: store.asks_after("train", limit=0), "limit 0 is too small"),
        (lambda store: store.asks_after(""), "ledger must have 1 to 512 bytes"),
        (lambda store: store.grants("at"), "give a list of ids"),
        (lambda store: store.grants([1]), "attempt_ids must be text"),
        (lambda store: store.query_progress(None), "ledger must be text"),
        (lambda store: store.get_latest_resources(after=-1), "after -1 is too small"),
    ],
)
async def test_bad_input_is_refused(store: Store, call, match: str):
    with pytest.raises(InvalidInput, match=match):
        await call(store)


WORKER = """
import asyncio, json, sys
from outrider.store import open_store
from outrider.store.bell import Bell

async def main(url):
    async with open_store(url) as store:
        for bell in Bell.__subclasses__():
            bell.net_seconds = 3600.0
        print("ready", flush=True)
        published = await store.get_latest_resources(wait=30)
        claimed = await store.dequeue_rollout(worker_id="elsewhere", wait=30)
        attempt_id = claimed.attempt.attempt_id
        await store.ask_to_begin([(claimed.rollout_id, attempt_id)])
        granted = await store.grants([attempt_id], wait=30)
        print(json.dumps([published.version, granted[attempt_id]]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""Waits for what the test does, woken by rings alone."""


async def test_asks_grants_and_publications_wake_the_other_process(durable_url: str, tmp_path: Path, monkeypatch):
    async def listens_for(topic: str) -> None:
        async def is_heard() -> bool:
            return not durable_url.startswith("sqlite") or any((tmp_path / "runs.db-bells").glob(f"{topic}-*"))

        await eventually(is_heard)

    async with open_store(durable_url) as store:
        for bell in Bell.__subclasses__():
            monkeypatch.setattr(bell, "net_seconds", 3600.0)
        ledger = await store.open_ledger("train")
        with program(WORKER, durable_url) as other:
            assert await asyncio.to_thread(line, other) == "ready"
            await listens_for("published")
            await store.put_resources({"policy": {"version": 0}})
            await listens_for("queue")
            asks = asyncio.create_task(store.asks_after("train", wait=30))
            await store.write_ledger(ledger, LedgerWrite(opened=(group(0, n_members=1),)))
            (one,) = (await asks).items
            await listens_for("granted")
            await store.write_ledger(
                ledger, LedgerWrite(granted=(Grant(group_id="g0", attempt_id=one.attempt_id, version=8),))
            )
            assert json.loads(await asyncio.to_thread(line, other)) == [1, 8]

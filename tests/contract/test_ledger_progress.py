"""How far the live members of a ledger are."""

from ledger_moves import ask, claim_all, grant, group, moves_to, opened
from outrider.core.clock import utc
from outrider.core.event import EventKind
from outrider.core.ledger import GroupState, LedgerWrite
from outrider.store import Store
from outrider.testing import FakeClock
from store_moves import AT, claim, finish, log


async def test_progress_shows_the_live_members_of_opened_groups(store: Store, clock: FakeClock):
    ledger = await opened(store, group(0), group(1), group(2), group(3))
    other = await opened(store, group(0, ledger="other"), name="other")
    await store.enqueue_rollout("outside", group_id="of no ledger")
    claimed = await claim_all(store, worker_id="w")
    assert len(claimed) == 11
    await store.cancel_rollouts(["other-g0/1"])
    started_at = utc(clock.time())
    await ask(store, *claimed)
    asked_at = started_at
    await store.write_ledger(
        ledger,
        LedgerWrite(
            granted=(grant(claimed[0], 1),),
            moved=(*moves_to("g2", GroupState.COMPLETE), *moves_to("g3", GroupState.DROPPED)),
        ),
    )
    await store.append_events(claimed[0].rollout_id, claimed[0].attempt.attempt_id, [log("a"), log("b")])
    await finish(store, claimed[1])
    await finish(store, claimed[2], "failed")
    again = await claim(store, "v")
    assert again.rollout_id == "g1/0"
    first, retried, third = await store.query_progress("train")
    assert (first.group_id, first.rollout_id, first.attempt_id, first.worker_id, first.tag) == (
        *("g0", "g0/0"),
        *(claimed[0].attempt.attempt_id, "w", "t"),
    )
    assert (first.started_at, first.n_events, first.last_kind) == (started_at, 2, EventKind.LOG)
    assert (first.last_name, first.last_at) == ("b", AT)
    assert (first.asked_at, first.is_granted) == (None, True)
    assert (retried.rollout_id, retried.attempt_id, retried.worker_id) == ("g1/0", again.attempt.attempt_id, "v")
    assert (retried.n_events, retried.last_kind, retried.last_name, retried.last_at) == (0, None, "", None)
    assert (retried.asked_at, retried.is_granted) == (None, False)
    assert (third.rollout_id, third.asked_at, third.is_granted) == ("g1/1", asked_at, False)
    assert [one.rollout_id for one in await store.query_progress(other.name)] == ["other-g0/0"]
    assert await store.query_progress("nobody") == ()


async def test_progress_is_shown_from_the_oldest_group_on(store: Store):
    ledger = await opened(store, *(group(n, n_members=1) for n in range(12)))
    await store.write_ledger(ledger, LedgerWrite(members=(group(3).members[1],)))
    claimed = await claim_all(store)
    assert {one.rollout_id for one in claimed} >= {"g11/0", "g3/1"}
    shown = [one.rollout_id for one in await store.query_progress("train")]
    assert shown == [*(f"g{n}/0" for n in range(4)), "g3/1", *(f"g{n}/0" for n in range(4, 12))]

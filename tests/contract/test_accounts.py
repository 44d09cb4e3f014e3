"""Accounts: what each attempt of a ledger took is kept once, gets one fate, and adds up."""

import pytest

from ledger_moves import all_of_ledgers, claim_all, close_group, fates, group, move, moves_to, opened, took
from outrider.core.account import Account, AttemptAccount, Fate
from outrider.core.errors import InvalidInput, LeaseLost
from outrider.core.ledger import GroupState, LedgerWrite
from outrider.core.rollout import AttemptedRollout, RolloutConfig
from outrider.store import Store
from outrider.testing import FakeClock
from store_moves import claim, enqueue_and_claim, finish, log, until

FULL = Account(
    n_turns=3,
    n_steps=4,
    prompt_tokens=500,
    completion_tokens=60,
    n_bytes=7000,
    first_version=2,
    last_version=5,
    reset_seconds=0.25,
    held_seconds=1.5,
    model_seconds=2.5,
    env_seconds=0.125,
    metrics={"score": 0.5, "näme": -1.0},
)


def kept(claimed: AttemptedRollout, account: Account, fate: Fate | None = None) -> AttemptAccount:
    assert claimed.group_id is not None
    return AttemptAccount(
        rollout_id=claimed.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        group_id=claimed.group_id,
        account=account,
        fate=fate,
    )


async def leave(store: Store, claimed: AttemptedRollout, account: Account) -> None:
    await store.leave_account(claimed.rollout_id, claimed.attempt.attempt_id, account)


@pytest.mark.parametrize("status", ["succeeded", "failed", "timeout", "cancelled"])
async def test_an_account_is_kept_with_the_report_that_ends_the_attempt(store: Store, status: str):
    await opened(store, group(0))
    first, second = await claim_all(store)
    await finish(store, first, status, account=FULL, events=[log()])
    await finish(store, second)
    assert await store.query_accounts([first.rollout_id, second.rollout_id]) == (kept(first, FULL),)
    events = await store.query_events(first.rollout_id, attempt_id=first.attempt.attempt_id)
    assert len(events) == 1


async def test_a_report_that_is_repeated_leaves_one_account(store: Store):
    await opened(store, group(0))
    first, _ = await claim_all(store)
    await finish(store, first, reward=1.0, account=took(5))
    before = await all_of_ledgers(store)
    await finish(store, first, reward=1.0, account=took(6))
    await leave(store, first, took(7))
    assert await all_of_ledgers(store) == before


async def test_a_report_that_says_what_the_store_has_decided_already_leaves_its_account(store: Store, clock: FakeClock):
    await opened(store, group(0, n_members=1, config=RolloutConfig(timeout_seconds=5, max_attempts=1)))
    claimed = await claim(store)
    await clock.advance(6)
    await until(store, claimed.rollout_id, lambda rollout: rollout.status.is_final)
    await finish(store, claimed, "timeout", account=took(5))
    assert await store.query_accounts([claimed.rollout_id]) == (kept(claimed, took(5)),)


async def test_a_report_that_lost_its_lease_leaves_no_account(store: Store):
    await opened(store, group(0))
    first, _ = await claim_all(store)
    await store.cancel_rollouts([first.rollout_id])
    before = await all_of_ledgers(store)
    with pytest.raises(LeaseLost):
        await finish(store, first, account=took(5))
    assert await all_of_ledgers(store) == before


async def test_accounts_are_kept_for_members_of_a_ledger_alone(store: Store):
    await opened(store)
    plain, grouped = await enqueue_and_claim(store), await enqueue_and_claim(store, group_id="of no ledger")
    for claimed in (plain, grouped):
        await finish(store, claimed, account=took(5))
        await leave(store, claimed, took(5))
    assert await store.query_accounts([plain.rollout_id, grouped.rollout_id]) == ()
    assert (await store.tally("train")).generated == 0


async def test_an_attempt_that_was_ended_by_somebody_else_leaves_its_account_afterwards(store: Store):
    await opened(store, group(0))
    first, second = await claim(store, "w"), await claim(store, "v")
    for claimed in (first, second):
        await leave(store, claimed, took(1))
    assert await store.query_accounts(["g0/0", "g0/1"]) == (), "they were still at work"
    await store.cancel_rollouts([first.rollout_id])
    await store.revoke_leases("v", reason="it died")
    await leave(store, first, FULL)
    await leave(store, first, took(2))
    await leave(store, second, took(3))
    assert await store.query_accounts(["g0/0", "g0/1"]) == (kept(first, FULL), kept(second, took(3)))


async def test_an_account_of_an_attempt_that_is_not_one_of_the_rollout_changes_nothing(store: Store):
    await opened(store, group(0))
    first, second = await claim_all(store)
    await finish(store, first)
    await store.cancel_rollouts([second.rollout_id])
    before = await all_of_ledgers(store)
    for rollout_id, attempt_id in (
        (first.rollout_id, second.attempt.attempt_id),
        (first.rollout_id, "nobody"),
        ("nobody", first.attempt.attempt_id),
    ):
        await store.leave_account(rollout_id, attempt_id, took(5))
    assert await all_of_ledgers(store) == before


async def test_accounts_are_listed_rollout_by_rollout_as_asked_in_the_order_of_the_attempts(store: Store):
    await opened(store, group(0, n_members=3, config=RolloutConfig(max_attempts=20)))
    a, b, _ = await claim_all(store)
    await finish(store, b, account=took(100))
    attempts = [a]
    for n in range(1, 12):
        await finish(store, attempts[-1], "failed", account=took(n) if n != 4 else None)
        attempts.append(await claim(store))
    await leave(store, attempts[3], took(4))
    await leave(store, attempts[-1], took(12))
    found = await store.query_accounts(["g0/1", "nobody", "g0/2", "g0/0", "g0/1"])
    assert [one.account.completion_tokens for one in found] == [100, *range(1, 12)]
    assert [one.attempt_id for one in found[1:]] == [one.attempt.attempt_id for one in attempts[:11]]
    assert await store.query_accounts([]) == ()


async def test_what_a_reader_does_with_an_account_changes_nothing_in_the_store(store: Store):
    await opened(store, group(0))
    first, _ = await claim_all(store)
    metrics = {"score": 0.5}
    await finish(store, first, account=took(1, metrics=metrics))
    metrics["score"] = 9.0
    (found,) = await store.query_accounts([first.rollout_id])
    assert found.account.metrics == {"score": 0.5}
    found.account.metrics["score"] = 9.0  # type: ignore[index]
    (found,) = await store.query_accounts([first.rollout_id])
    assert found.account.metrics == {"score": 0.5}


async def test_a_fate_is_given_once_and_only_to_accounts_there_are(store: Store):
    ledger = await opened(store, group(0))
    first, second = await claim_all(store)
    await finish(store, first, account=took(5))
    given = fates((first, second), Fate.STALE) | {"nobody": Fate.STALE}
    await store.write_ledger(ledger, LedgerWrite(fates=given))
    assert [one.fate for one in await store.query_accounts(["g0/0"])] == [Fate.STALE]
    before = await all_of_ledgers(store)
    await store.write_ledger(ledger, LedgerWrite(fates=fates((first,), Fate.TRAINED)))
    assert await all_of_ledgers(store) == before
    await finish(store, second, account=took(6))
    assert [one.fate for one in await store.query_accounts(["g0/1"])] == [None], "it left its account afterwards"


async def test_a_ledger_gives_no_fate_to_the_attempts_of_another(store: Store):
    await opened(store, group(0))
    other = await opened(store, name="other")
    first, _ = await claim_all(store)
    await finish(store, first, account=took(5))
    await store.write_ledger(other, LedgerWrite(fates=fates((first,), Fate.TRAINED)))
    assert await store.query_accounts(["g0/0"]) == (kept(first, took(5)),)


async def test_the_tally_adds_up_to_what_was_generated(store: Store):
    ledger = await opened(store, *(group(n) for n in range(4)))
    await opened(store, group(0, ledger="other"), name="other")
    claimed = await claim_all(store)
    for n, one in enumerate(claimed):
        await finish(store, one, account=took(10**n))
    empty = await store.tally("nobody")
    assert (empty.generated, set(empty.tokens)) == (0, {None, *Fate})
    tally = await store.tally("train")
    assert {fate: n for fate, n in tally.tokens.items() if n} == {None: 11111111}
    given = fates(claimed[:2], Fate.TRAINED) | fates(claimed[2:3], Fate.SURPLUS) | fates(claimed[4:6], Fate.STALE)
    await store.write_ledger(
        ledger, LedgerWrite(moved=tuple(move(f"g{n}", GroupState.DROPPED) for n in range(3)), fates=given)
    )
    tally = await store.tally("train")
    assert dict(tally.tokens) == {
        **dict.fromkeys(Fate, 0),
        None: 11001000,
        Fate.TRAINED: 11,
        Fate.SURPLUS: 100,
        Fate.STALE: 110000,
    }
    assert dict(tally.n_attempts) == {
        **dict.fromkeys(Fate, 0),
        None: 3,
        Fate.TRAINED: 2,
        Fate.SURPLUS: 1,
        Fate.STALE: 2,
    }
    everything = await store.query_accounts([one.rollout_id for one in claimed[:8]])
    assert tally.generated == sum(one.account.completion_tokens for one in everything) == 11111111
    assert (await store.tally("other")).generated == 1100000000


async def test_tokens_beyond_the_reach_of_32_bits_are_counted(store: Store):
    await opened(store, group(0))
    for one in await claim_all(store):
        await finish(store, one, account=took(2**40))
    assert (await store.tally("train")).generated == 2**41


@pytest.mark.parametrize("state", list(GroupState))
async def test_accounts_without_a_fate_are_late_once_their_group_is_closed(store: Store, state: GroupState):
    ledger = await opened(store, group(0, n_members=3), group(1))
    first, second, third, other, _ = await claim_all(store)
    await finish(store, first, account=took(1))
    await finish(store, second, account=took(2))
    await finish(store, other, account=took(4))
    assert await store.late_accounts("train") == ()
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to("g0", state), fates=fates((first,), Fate.TRAINED)))
    await store.cancel_rollouts([third.rollout_id])
    await leave(store, third, took(3))
    late = {one.attempt_id: one for one in await store.late_accounts("train")}
    if not state.is_closed:
        assert late == {}
        return
    assert late == {one.attempt.attempt_id: kept(one, took(n)) for one, n in ((second, 2), (third, 3))}
    assert await store.late_accounts("other") == ()
    assert len(await store.late_accounts("train", limit=1)) == 1
    await store.write_ledger(ledger, LedgerWrite(fates=fates((second, third), Fate.SURPLUS)))
    assert await store.late_accounts("train") == ()
    assert (await store.tally("train")).tokens[None] == 4


async def test_a_retry_after_its_group_was_closed_leaves_a_late_account(store: Store):
    ledger = await opened(store, group(0, n_members=1))
    first = await claim(store)
    await close_group(store, ledger, "g0")
    await finish(store, first, "failed", account=took(1))
    second = await claim(store)
    await finish(store, second, account=took(2))
    assert {one.attempt_id for one in await store.late_accounts("train")} == {
        first.attempt.attempt_id,
        second.attempt.attempt_id,
    }


@pytest.mark.parametrize(
    ("account", "match"),
    [
        ({"completion_tokens": 5}, "must be a Account, not dict"),
        (Account(completion_tokens=-1), "completion_tokens of an account -1 is too small"),
        (Account(completion_tokens=2**63), "does not fit into 64 bits"),
        (Account(n_turns="three"), "an account cannot be stored"),  # type: ignore[arg-type]
        (Account(metrics={"a": "b"}), "an account cannot be stored"),  # type: ignore[dict-item]
        (Account(metrics={"a": object()}), "an account cannot be stored"),  # type: ignore[dict-item]
    ],
)
async def test_an_account_that_cannot_be_kept_is_refused_and_changes_nothing(store: Store, account, match: str):
    await opened(store, group(0))
    first, _ = await claim_all(store)
    before = await all_of_ledgers(store)
    with pytest.raises(InvalidInput, match=match):
        await finish(store, first, account=account)
    with pytest.raises(InvalidInput, match=match):
        await leave(store, first, account)
    assert await all_of_ledgers(store) == before


@pytest.mark.parametrize("status", [None, "running"])
async def test_an_account_with_a_report_that_does_not_end_the_attempt_is_refused(store: Store, status: str | None):
    await opened(store, group(0))
    first, _ = await claim_all(store)
    before = await all_of_ledgers(store)
    with pytest.raises(InvalidInput, match="give it with a final status"):
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=status, account=took(5))
    assert await all_of_ledgers(store) == before


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda store: store.query_accounts("g0/0"), "give a list of ids"),
        (lambda store: store.query_accounts([5]), "rollout_ids must be text"),
        (lambda store: store.late_accounts("train", limit=0), "limit 0 is too small"),
        (lambda store: store.late_accounts(""), "ledger must have 1 to 512 bytes"),
        (lambda store: store.tally(7), "ledger must be text"),
        (lambda store: store.leave_account("", "a", Account()), "rollout_id must have 1 to 512 bytes"),
    ],
)
async def test_bad_input_is_refused(store: Store, call, match: str):
    with pytest.raises(InvalidInput, match=match):
        await call(store)

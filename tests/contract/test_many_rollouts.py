"""Counts, lists and claims of a store in which much has ended and much waits: right, and by index alone."""

import random
from collections import Counter
from itertools import product

import pytest

from outrider.core.rollout import Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import Mode, RolloutStatus
from outrider.store import Revoked, Store
from store_moves import claim

TAGS = (None, "a", "b", "c")
N = 150


@pytest.fixture
async def worked(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with rollouts of every kind, in orders that differ; its tallies are of a moment half way."""
    monkeypatch.setattr("outrider.store.sqlite.reads.TALLIED_AT", 1)
    monkeypatch.setattr("outrider.store.postgres.steps.TALLIED_AT", 1)
    dice = random.Random(7)
    for half in range(2):
        await store.enqueue_many_rollouts(
            [
                RolloutRequest(
                    input=n,
                    rollout_id=f"{half}-{n}",
                    tag=TAGS[n % 4],
                    mode=Mode.VAL if n % 5 == 0 else Mode.TRAIN,
                    priority=dice.randrange(3),
                    config=RolloutConfig(max_attempts=2),
                )
                for n in range(N)
            ]
        )
        claimed = list(await store.dequeue_many_rollouts(N * 3 // 4, worker_id="w"))
        dice.shuffle(claimed)
        for place, one in enumerate(claimed[10:]):
            status = ("succeeded", "failed", "cancelled", "succeeded")[place % 4]
            await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status=status)
        for one in claimed[:4]:
            await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="running")
        if half == 0:
            await store.cancel_rollouts([f"0-{n}" for n in range(0, N, 7)])
            await store._add_up()  # type: ignore[attr-defined]
    return store


def _fits(rollout: Rollout, status: str | None, mode: str | None, tag: str | None) -> bool:
    return status in (None, rollout.status) and mode in (None, rollout.mode) and tag in (None, rollout.tag)


async def test_every_choice_of_status_mode_and_tag_is_counted_and_listed_exactly(worked: Store):
    everything = (await worked.query_rollouts()).items
    by_end = (await worked.query_rollouts(sort_by="ended_at")).items
    assert len(everything) == 2 * N
    assert {one.status for one in everything} == set(RolloutStatus)
    statistics = await worked.statistics()
    assert Counter({key: n for key, n in statistics.rollouts.items() if n}) == Counter(one.status for one in everything)
    for chosen in product((None, *RolloutStatus), (None, *Mode), (None, "a", "b", "nowhere")):
        given = {name: one for name, one in zip(("status", "mode", "tag"), chosen, strict=True) if one is not None}
        for sort_by, order in (("enqueued_at", everything), ("ended_at", by_end)):
            expected = [one for one in order if _fits(one, *chosen)]
            for descending in (False, True):
                wanted = expected[::-1] if descending else expected
                for limit, offset in ((-1, 0), (3, 0), (2, 2), (0, 0)):
                    page = await worked.query_rollouts(
                        **given, sort_by=sort_by, descending=descending, limit=limit, offset=offset
                    )
                    shown = wanted[offset : None if limit < 0 else offset + limit]
                    assert page.total == len(wanted), (given, sort_by)
                    assert [one.rollout_id for one in page] == [one.rollout_id for one in shown], (given, sort_by)


async def test_counts_stay_exact_while_tallies_are_kept_again_and_again(worked: Store):
    for _ in range(5):
        for one in await worked.dequeue_many_rollouts(7, worker_id="w2", tags=["a", "b"]):
            await worked.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded")
        await worked._add_up()  # type: ignore[attr-defined]
        everything = (await worked.query_rollouts()).items
        for tag in ("a", "b", "c"):
            for status in RolloutStatus:
                found = await worked.query_rollouts(tag=tag, status=status, limit=0)
                assert found.total == sum(_fits(one, status, None, tag) for one in everything)


async def test_a_claim_that_names_hundreds_of_tags_takes_what_is_first_among_them(store: Store):
    names = [f"t{n}" for n in range(500)]
    await store.enqueue_many_rollouts(
        [RolloutRequest(input=n, rollout_id=f"other-{n}", tag="other", priority=1) for n in range(300)]
        + [RolloutRequest(input=n, rollout_id=f"mine-{n}", tag=names[-n - 1], priority=n % 2) for n in range(20)]
    )
    order = [f"mine-{n}" for n in (*range(1, 20, 2), *range(0, 20, 2))]
    assert (await claim(store, tags=names)).rollout_id == order[0]
    assert [one.rollout_id for one in await store.dequeue_many_rollouts(300, worker_id="w")] == [
        f"other-{n}" for n in range(300)
    ], "they come first, so that the next claim finds its own among the first"
    assert [one.rollout_id for one in await store.dequeue_many_rollouts(5, worker_id="w", tags=names)] == order[1:6]
    assert await store.dequeue_rollout(worker_id="w", tags=names, mode="val") is None
    rest = await store.dequeue_many_rollouts(50, worker_id="w", tags=names, mode="train")
    assert [one.rollout_id for one in rest] == order[6:]
    assert await store.dequeue_rollout(worker_id="w", tags=names) is None


async def test_what_was_set_aside_is_left_to_claims_for_it_whatever_they_name(store: Store):
    for n in range(40):
        await store.enqueue_rollout(n, rollout_id=f"r{n:02}", tag=None if n % 4 == 0 else f"t{n % 4}", priority=n % 3)
    await store.dequeue_many_rollouts(20, worker_id="dies")
    await store.revoke_leases("dies", reason="died", how=Revoked.ISOLATED)
    waiting = [one for one in (await store.query_rollouts()).items if one.status == "requeuing"]
    aside = [one.rollout_id for one in sorted(waiting, key=lambda one: (-one.priority, one.rollout_id))]
    assert len(aside) == 20
    many = [f"t{n}" for n in range(1, 300)]
    for filters in ({}, {"mode": "train"}, {"tags": ["t1"]}, {"tags": many}, {"tags": many, "mode": "train"}):
        claimed = await store.dequeue_many_rollouts(1, worker_id="w", **filters)
        assert not {one.rollout_id for one in claimed} & set(aside)
        [one] = await store.dequeue_many_rollouts(1, worker_id="w", isolated=True, **filters)
        tagged = [id for id in aside if int(id[1:]) % 4 != 0]
        expected = aside if "tags" not in filters else [id for id in tagged if int(id[1:]) % 4 == 1]
        if filters.get("tags") == many:
            expected = tagged
        assert one.rollout_id == expected[0]
        aside.remove(one.rollout_id)


async def test_a_claim_by_mode_passes_over_what_is_of_another(store: Store):
    await store.enqueue_many_rollouts([RolloutRequest(input=n, tag=f"t{n % 50}", priority=1) for n in range(600)])
    await store.enqueue_rollout("mine", rollout_id="mine", mode="val", tag="t1")
    assert (await claim(store, mode="val")).rollout_id == "mine"
    assert await store.dequeue_rollout(worker_id="w", mode="val") is None

"""Engines with one fault each: the checker finds it in what they were asked and answered."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from outrider.core.errors import LeaseLost, LedgerLost, PoolLost
from outrider.core.ids import new_id
from outrider.core.ledger import LedgerWrite
from outrider.core.rollout import Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import RolloutStatus
from outrider.store import Store, open_store, rows
from outrider.store.memory import ledger as memory_ledger
from outrider.store.memory import machines as memory_machines
from outrider.store.memory.steps import MemorySteps
from outrider.store.rows import Current
from outrider.store.steps import Change, Report, Revocation
from outrider.testing import FakeClock, history
from outrider.testing.history import MemoryRecorder, calls_of, observe, violations_of
from store_moves import log


async def use(store: Store, clock: FakeClock) -> None:
    """Some of everything that a rule is about; what should be refused is tried."""
    config = RolloutConfig(unresponsive_seconds=5)
    for number in range(4):
        await store.enqueue_rollout({"n": number}, rollout_id=f"r{number}", priority=number % 2, config=config)
    await store.update_rollout("r0", input={"n": "another"})
    silent = await store.dequeue_rollout(worker_id="silent")
    assert silent is not None
    ids = silent.rollout_id, silent.attempt.attempt_id
    await store.append_events(*ids, [log(), log()])
    for _ in range(2):
        await store.append_events(*ids, [log()], first_index=2)
    await clock.advance(6)
    for _ in range(4):
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        await store.heartbeat("silent", [silent.attempt.attempt_id])
        with suppress(LeaseLost):
            await store.append_events(*ids, [log()])
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=1.0)
        await store.get_rollout_by_id(claimed.rollout_id)
        await store.finished_after(0, limit=10)
    await use_claims(store, config)
    for _ in range(2):
        await store.put_resources({"model": "m"})
    await store.get_latest_resources()
    ledger = await store.open_ledger("train", {})
    await store.open_ledger("train", {})
    with suppress(LedgerLost):
        await store.write_ledger(ledger, LedgerWrite())
    epoch = await store.open_pool("pool")
    await store.open_pool("pool")
    with suppress(PoolLost):
        await store.write_machines("pool", epoch, 1, [], [])


async def use_claims(store: Store, config: RolloutConfig) -> None:
    """A claim that is sent twice, and one whose leases are revoked."""
    await store.enqueue_many_rollouts(
        [RolloutRequest(input=number, rollout_id=f"again{number}", config=config) for number in range(2)]
    )
    both = [await store.dequeue_many_rollouts(1, worker_id="w", request_id="q") for _ in range(2)]
    for one in {one.attempt.attempt_id: one for claimed in both for one in claimed}.values():
        await store.heartbeat("w", [one.attempt.attempt_id])
        await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded", reward=1.0)
    for dead in await store.dequeue_many_rollouts(1, worker_id="dead"):
        await store.revoke_leases("dead", reason="it died")
        await store.heartbeat("dead", [dead.attempt.attempt_id])
        with suppress(LeaseLost):
            await store.append_events(dead.rollout_id, dead.attempt.attempt_id, [log()])


Patch = Callable[[Any, str, Any], None]


def changed(method: str, change: Callable[[Any, Any, tuple[Any, ...]], Any]) -> Callable[[Patch], None]:
    """`change` gets the steps, what the method answered, and its arguments, and says what it answers instead."""
    original = getattr(MemorySteps, method)
    return lambda patch: patch(MemorySteps, method, lambda steps, *given: change(steps, original(steps, *given), given))


def without_fence(patch: Patch) -> None:
    patch(Current, "held_by", lambda current, _: current.is_live)


def without_ledger_epochs(patch: Patch) -> None:
    plan_of = memory_ledger.plan_of

    def plan(step: Any, standing: Any, *rest: Any) -> Any:
        return plan_of(msgspec.structs.replace(step, epoch=standing.epoch), standing, *rest)

    patch(memory_ledger, "plan_of", plan)


def without_pool_epochs(patch: Patch) -> None:
    patch(memory_machines, "is_repeated", lambda *_: False)


def enqueues_twice(patch: Patch) -> None:
    enqueue = MemorySteps.enqueue

    def doubled(steps: MemorySteps, new: Any) -> Any:
        enqueue(steps, [msgspec.structs.replace(one, rollout_id=new_id("ro")) for one in new])
        return enqueue(steps, new)

    patch(MemorySteps, "enqueue", doubled)


def appends_twice(patch: Patch) -> None:
    append = MemorySteps.append

    def doubled(steps: MemorySteps, report: Report) -> int:
        append(steps, report)
        return append(steps, report)

    patch(MemorySteps, "append", doubled)


def forgets_request_ids(patch: Patch) -> None:
    claim_once = MemorySteps.claim
    patch(
        MemorySteps,
        "claim",
        lambda steps, claim: claim_once(steps, msgspec.structs.replace(claim, request_id=None)),
    )


def revokes_nothing(patch: Patch) -> None:
    def revoke(steps: MemorySteps, revocation: Revocation) -> tuple[str, ...]:
        return tuple(row.current.attempt_id for row in steps._held(revocation.worker_id))

    patch(MemorySteps, "revoke", revoke)


def takes_the_worst(patch: Patch) -> None:
    def worst(steps: MemorySteps, name: str) -> tuple[int, int] | None:
        return max(((-row.new.request.priority, row.seq) for row in steps._rows if name in row.queues), default=None)

    patch(MemorySteps, "_head_of", worst)


def forgets_changes(patch: Patch) -> None:
    def change(steps: MemorySteps, change: Change) -> Rollout:
        return rows.changed_of(steps._row(change.rollout_id).columns, change)[1]

    patch(MemorySteps, "change", change)


def reads_as(**facts: Any) -> Callable[[Patch], None]:
    """A read of one rollout by its id shows something else than there is."""

    def change(_: Any, page: Any, given: tuple[Any, ...]) -> Any:
        if given[0].rollout_ids is None:
            return page
        return msgspec.structs.replace(page, items=tuple(msgspec.structs.replace(item, **facts) for item in page.items))

    return changed("rollouts", change)


MUTANTS: list[tuple[str, Callable[[Patch], None], str]] = [
    ("accepts writes of lost leases", without_fence, "fence"),
    ("accepts writes of lost ledgers", without_ledger_epochs, "ledger"),
    ("accepts writes of lost pools", without_pool_epochs, "pool"),
    ("gives each grant the number 1", changed("claim", lambda _, rollouts, __: _first(rollouts)), "attempts"),
    ("shows another reward", reads_as(reward=7.0), "result"),
    ("shows an ended rollout as running", reads_as(status=RolloutStatus.RUNNING), "final"),
    ("forgets an event", changed("events", lambda _, page, __: _fewer(page)), "lost"),
    ("forgets a rollout", changed("rollouts", lambda _, page, __: _shorter(page)), "lost"),
    ("enqueues twice", enqueues_twice, "invented"),
    ("appends events twice", appends_twice, "invented"),
    ("claims anew for the same request", forgets_request_ids, "claim"),
    ("says that leases are revoked", revokes_nothing, "revoked"),
    ("claims the worst first", takes_the_worst, "order"),
    ("forgets changes", forgets_changes, "changed"),
    ("turns pages of the feed round", changed("finished", lambda _, found, __: _turned(found)), "feed"),
    ("publishes nothing new", changed("put_resources", lambda _, put, __: _version_1(put)), "resources"),
]


def _first(rollouts: Any) -> Any:
    return tuple(
        msgspec.structs.replace(one, attempt=msgspec.structs.replace(one.attempt, sequence_id=1)) for one in rollouts
    )


def _fewer(page: Any) -> Any:
    return msgspec.structs.replace(page, total=max(page.total - 1, 0))


def _shorter(page: Any) -> Any:
    return msgspec.structs.replace(page, items=page.items[1:]) if len(page.items) > 1 else page


def _turned(found: Any) -> Any:
    return tuple((place, rollout) for (place, _), (_, rollout) in zip(found, found[::-1], strict=True))


def _version_1(put: Any) -> Any:
    return msgspec.structs.replace(put, version=1)


async def rules_broken(clock: FakeClock) -> set[str]:
    recorder = MemoryRecorder()
    async with open_store("memory://", clock=clock) as store:
        await use(recorder.record(store), clock)
        await observe(recorder.record(store))
    return {violation.rule for violation in violations_of(calls_of(recorder.lines))}


async def test_an_engine_without_a_fault_breaks_no_rule(clock: FakeClock):
    assert await rules_broken(clock) == set()


@pytest.mark.parametrize(("mutate", "rule"), [mutant[1:] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS])
async def test_a_faulty_engine_is_found_out(
    mutate: Callable[[Patch], None], rule: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    mutate(monkeypatch.setattr)
    assert rule in await rules_broken(clock)


def test_every_rule_has_a_mutant():
    documented = {line.split("`")[1::2][0] for line in (history.__doc__ or "").splitlines() if line.startswith("- `")}
    assert {rule for _, _, rule in MUTANTS} >= documented

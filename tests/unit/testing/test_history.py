"""The checker finds each kind of violation in a history, and finds nothing in one that has none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import LeaseLost, StoreUnavailable
from outrider.core.rollout import RolloutConfig
from outrider.store import Store, open_store
from outrider.store.history import FileRecorder, Outcome, recorded
from outrider.testing import FakeClock
from outrider.testing.history import (
    Call,
    HistoryViolated,
    MemoryRecorder,
    calls_of,
    check,
    check_store,
    main,
    observe,
    read_lines,
    violations_of,
)
from store_moves import claim, log


class History:
    """Calls one after the other, each a moment after the one before it was answered, unless `at` says otherwise."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.now = 0

    def call(self, method: str, answer: Any = None, *, at: tuple[int, int] | None = None, **arguments: Any) -> None:
        begun, ended = at or (self.now + 1, self.now + 2)
        self.now = max(self.now, ended)
        outcome = arguments.pop("outcome", Outcome.OK)
        call = Call(
            client="c",
            method=method,
            arguments=arguments,
            begun=begun,
            ended=ended,
            outcome=outcome,
            answer=answer if outcome is Outcome.OK else None,
        )
        self.calls.append(call)
        self.calls.sort(key=lambda call: call.begun)

    def enqueue(self, rollout_id: str, *, priority: int = 0, **more: Any) -> None:
        self.call("enqueue_rollout", seen(rollout_id), rollout_id=rollout_id, input="d", priority=priority, **more)

    def claim(
        self,
        rollout_id: str,
        number: int = 1,
        worker_id: str = "w",
        priority: int = 0,
        resources_version: int | None = None,
        **more: Any,
    ) -> None:
        attempt = attempt_of(rollout_id, number, worker_id) | {"resources_version": resources_version}
        granted = seen(rollout_id, "preparing", number, priority=priority) | {"attempt": attempt}
        self.call("dequeue_rollout", granted, worker_id=worker_id, **more)

    def report(self, rollout_id: str, number: int = 1, status: str = "succeeded", **more: Any) -> None:
        ids = {"rollout_id": rollout_id, "attempt_id": f"{rollout_id}-{number}"}
        self.call("update_attempt", attempt_of(rollout_id, number), status=status, **ids, **more)

    def read(self, *items: dict[str, Any], **more: Any) -> None:
        self.call("query_rollouts", {"items": list(items), "total": len(items)}, **more)

    def rules(self, **settings: Any) -> set[str]:
        return {violation.rule for violation in violations_of(self.calls, **settings)}


def seen(rollout_id: str, status: str = "queuing", number: int = 0, **more: Any) -> dict[str, Any]:
    facts = {"rollout_id": rollout_id, "status": status, "mode": "train", "tag": None, "priority": 0, "group_id": None}
    last = f"{rollout_id}-{number}" if number else None
    return facts | {"reward": None, "n_attempts": number, "attempt_id": last, "digest": "d"} | more


def attempt_of(rollout_id: str, number: int, worker_id: str = "w") -> dict[str, Any]:
    return {"rollout_id": rollout_id, "attempt_id": f"{rollout_id}-{number}", "sequence_id": number} | {
        "worker_id": worker_id,
        "status": "preparing",
        "reward": None,
    }


def resources(version: int, resources_id: str = "default") -> dict[str, Any]:
    return {"version": version, "id": resources_id, "digest": f"digest of {version}"}


def feed(*ids: str, cursor: int) -> dict[str, Any]:
    return {"items": [seen(rollout_id, "succeeded", 1) for rollout_id in ids], "cursor": cursor}


def ledger(epoch: int) -> dict[str, Any]:
    return {"name": "train", "epoch": epoch}


def written(**parts: Any) -> dict[str, Any]:
    return {"opened": [], "members": [], "granted": [], "moved": [], "version": None} | parts


def whole(history: History) -> None:
    """A rollout that is retried once, with a late write of its first attempt that is refused."""
    history.enqueue("r")
    history.claim("r", 1)
    history.claim("r", 2, "other")
    history.report("r", 1, outcome=Outcome.REFUSED)
    history.report("r", 2, reward=None)
    history.call("finished_after", feed("r", cursor=1) | {"items": [seen("r", "succeeded", 2)]}, cursor=0)
    history.read(seen("r", "succeeded", 2))


def late_write(history: History) -> None:
    history.claim("r", 1)
    history.claim("r", 2)
    history.report("r", 1, status="running")


def late_heartbeat(history: History) -> None:
    history.claim("r", 1)
    history.claim("r", 2)
    history.call("heartbeat", {"lost": [], "held": ["r-1"]}, worker_id="w", attempt_ids=["r-1"])


def two_attempts_of_one_number(history: History) -> None:
    history.claim("r", 1)
    again = seen("r", "preparing", 1) | {"attempt": attempt_of("r", 1) | {"attempt_id": "else"}}
    history.call("dequeue_rollout", again, worker_id="w")


def granted_to_two(history: History) -> None:
    history.claim("r", 1, "w")
    history.claim("r", 1, "v")


def two_results(history: History) -> None:
    history.claim("r", 1)
    history.report("r", 1)
    history.claim("r", 2)
    history.report("r", 2)


def another_result_read(history: History) -> None:
    history.enqueue("r")
    history.claim("r", 1)
    history.report("r", 1, reward=1.0)
    history.read(seen("r", "succeeded", 1, reward=0.0))


def open_again(history: History) -> None:
    history.enqueue("r")
    history.read(seen("r", "succeeded", 1))
    history.read(seen("r", "running", 1))


def lost(history: History) -> None:
    history.enqueue("r")
    history.read()


def events_lost(history: History) -> None:
    history.enqueue("r")
    history.claim("r", 1)
    history.call("append_events", 3, rollout_id="r", attempt_id="r-1", events=[None] * 3)
    history.call("query_events", {"items": [], "total": 2}, rollout_id="r", attempt_id="r-1")
    history.read(seen("r", "preparing", 1))


def more_events_than_were_appended(history: History) -> None:
    history.enqueue("r")
    history.claim("r", 1)
    ids = {"rollout_id": "r", "attempt_id": "r-1"}
    history.call("append_events", 2, events=[None] * 2, first_index=0, **ids)
    history.call("append_events", events=[None] * 2, first_index=1, outcome=Outcome.UNKNOWN, **ids)
    history.call("append_events", 3, events=[None] * 2, first_index=1, **ids)
    history.call("append_events", events=[None], outcome=Outcome.UNKNOWN, **ids)
    history.report("r", 1, events=[None], first_index=3)
    history.call("query_events", {"items": [], "total": 6}, **ids)
    history.read(seen("r", "succeeded", 1))


def all_events_that_were_appended(history: History) -> None:
    more_events_than_were_appended(history)
    history.call("query_events", {"items": [], "total": 5}, rollout_id="r", attempt_id="r-1")


def two_grants_of_one_request(history: History) -> None:
    history.claim("a", request_id="q")
    history.claim("b", request_id="q")
    history.report("a")


def two_grants_of_one_request_at_once(history: History) -> None:
    history.claim("a", request_id="q", at=(1, 9))
    history.claim("b", request_id="q", at=(2, 8))
    history.report("a")
    history.report("b")


def a_request_anew_after_its_end(history: History) -> None:
    history.claim("a", request_id="q")
    history.report("a")
    history.claim("b", request_id="q")
    history.report("b")


def write_after_a_revocation(history: History) -> None:
    history.claim("r", 1)
    history.call("revoke_leases", ["r-1"], worker_id="w", reason="it died")
    history.report("r", 1, status="running")


def heartbeat_after_a_revocation(history: History) -> None:
    history.claim("r", 1)
    history.call("revoke_leases", ["r-1"], worker_id="w", reason="it died")
    history.call("heartbeat", {"lost": [], "held": ["r-1"]}, worker_id="w", attempt_ids=["r-1"])


def writes_beside_a_revocation(history: History) -> None:
    history.claim("r", 1)
    history.call("revoke_leases", ["r-1"], worker_id="w", reason="it died", at=(10, 19))
    history.report("r", 1, status="running", at=(12, 13))
    history.report("r", 1, status="running", at=(20, 21))
    history.report("r", 1, status="cancelled", at=(22, 23))
    history.report("r", 1, status="failed", at=(24, 25), outcome=Outcome.REFUSED)


def invented(history: History) -> None:
    history.read(seen("r"))


def out_of_order(history: History) -> None:
    history.enqueue("better", priority=1)
    history.enqueue("worse")
    history.claim("worse")
    history.claim("better", priority=1)


def younger_first(history: History) -> None:
    history.enqueue("older")
    history.enqueue("younger")
    history.claim("younger")


def younger_while_a_claim_is_sent_twice(history: History) -> None:
    history.enqueue("older")
    history.enqueue("younger")
    history.claim("younger", request_id="q", at=(11, 19))
    history.claim("younger", request_id="q", at=(12, 18))


def younger_where_a_claim_is_sent_again(history: History) -> None:
    history.enqueue("older")
    history.enqueue("younger")
    history.claim("younger", request_id="q", at=(11, 12))
    history.claim("younger", request_id="q", at=(18, 19))


def feed_skips(history: History) -> None:
    history.call("finished_after", feed("a", "b", cursor=2), cursor=0)
    history.call("finished_after", feed("a", cursor=1), cursor=0)
    history.call("finished_after", feed("c", cursor=2), cursor=1)


def resources_go_back(history: History) -> None:
    history.call("put_resources", resources(2))
    history.call("get_latest_resources", resources(1))


def resources_of_another_id_go_back(history: History) -> None:
    history.call("put_resources", resources(1))
    history.call("put_resources", resources(2, "judge"))
    history.call("get_latest_resources", resources(1))
    history.call("get_latest_resources", resources(2, "judge"))


def resources_change(history: History) -> None:
    history.call("put_resources", resources(1))
    history.call("get_resources", resources(1) | {"digest": "another"})


def claimed_with_what_nobody_published(history: History) -> None:
    history.call("put_resources", resources(1))
    history.claim("r", resources_version=2)


def claimed_with_two_versions(history: History) -> None:
    history.call("put_resources", resources(1))
    history.call("put_resources", resources(2))
    history.claim("r", resources_version=1)
    attempts = {"items": [attempt_of("r", 1) | {"resources_version": 2}], "total": 1}
    history.call("query_attempts", attempts, rollout_id="r")


def changed(history: History) -> None:
    history.enqueue("r", at=(0, 1))
    history.call("update_rollout", seen("r", digest="e"), at=(2, 3), rollout_id="r", input="e")
    history.call("update_rollout", seen("r", digest="f"), at=(4, 9), rollout_id="r", input="f")
    history.call("update_rollout", seen("r", digest="g"), at=(5, 8), rollout_id="r", input="g")
    history.call("update_rollout", outcome=Outcome.UNKNOWN, at=(10, 11), rollout_id="r", input="h")
    history.read(seen("r", digest="f"), at=(12, 13))
    history.read(seen("r", digest="h"), at=(14, 15))


def change_is_lost(history: History) -> None:
    history.enqueue("r")
    history.call("update_rollout", seen("r", digest="e"), rollout_id="r", input="e")
    history.claim("r")


def changed_after_its_end(history: History) -> None:
    history.enqueue("r")
    history.claim("r")
    history.read(seen("r", "failed", 1))
    history.call("update_rollout", seen("r", "failed", 1), rollout_id="r", priority=1)


def two_of_one_version(history: History) -> None:
    history.call("put_resources", resources(2), at=(1, 9))
    history.call("put_resources", resources(2), at=(2, 8))


def late_ledger(history: History) -> None:
    history.call("open_ledger", ledger(1), name="train")
    history.call("open_ledger", ledger(2), name="train")
    history.call("write_ledger", ledger=ledger(1), write=written())


def late_pool(history: History) -> None:
    history.call("open_pool", 1, name="p")
    history.call("open_pool", 2, name="p")
    history.call("write_machines", pool="p", epoch=1)


def delivered_twice(history: History) -> None:
    for batch in (0, 1):
        history.call("write_ledger", ledger=ledger(1), write=written(moved=[["g", "delivered", batch, []]]))


def stale(history: History) -> None:
    history.enqueue("r")
    history.claim("r")
    history.call("write_ledger", ledger=ledger(1), write=written(granted=[["g", "r-1", 0]], version=3))
    history.read(seen("r", "succeeded", 1))
    history.call("write_ledger", ledger=ledger(1), write=written(moved=[["g", "delivered", 0, ["r"]]]))


def stale_in_vain(history: History) -> None:
    """An attempt that was granted long ago failed; the one that was trained on is fresh."""
    history.enqueue("r")
    history.claim("r", 1)
    history.call("write_ledger", ledger=ledger(1), write=written(granted=[["g", "r-1", 0]], version=3))
    history.claim("r", 2)
    history.call("write_ledger", ledger=ledger(1), write=written(granted=[["g", "r-2", 3]]))
    history.read(seen("r", "succeeded", 2))
    history.call("write_ledger", ledger=ledger(1), write=written(moved=[["g", "delivered", 0, ["r"]]]))


def lost_input(history: History) -> None:
    history.enqueue("r")
    history.read(seen("r", digest="another"))


def open_after_its_end(history: History) -> None:
    history.enqueue("r")
    history.claim("r", 1)
    history.report("r", 1)
    history.read(seen("r", "running", 1))


def attempts_gone(history: History) -> None:
    history.enqueue("r")
    history.read(seen("r", "requeuing", 2))
    history.read(seen("r", "requeuing", 1))


def read_with_two_results(history: History) -> None:
    history.enqueue("r")
    history.read(seen("r", "failed", 1))
    history.read(seen("r", "cancelled", 1))


def feed_repeats(history: History) -> None:
    history.call("finished_after", feed("a", cursor=1), cursor=0)
    history.call("finished_after", feed("a", cursor=2), cursor=1)


def feed_in_two_orders(history: History) -> None:
    history.call("finished_after", feed("a", "b", cursor=2), cursor=0)
    history.call("finished_after", feed("b", "a", cursor=2), cursor=0)


def cursor_goes_back(history: History) -> None:
    history.call("finished_after", feed("a", "b", cursor=5), cursor=0)
    history.call("finished_after", feed("c", cursor=3), cursor=5)


def version_put_back(history: History) -> None:
    history.call("put_resources", resources(2))
    history.call("put_resources", resources(1))


def two_ledgers_of_one_epoch(history: History) -> None:
    history.call("open_ledger", ledger(1), name="train", at=(1, 9))
    history.call("open_ledger", ledger(1), name="train", at=(2, 8))


def two_pools_of_one_epoch(history: History) -> None:
    history.call("open_pool", 1, name="p", at=(1, 9))
    history.call("open_pool", 1, name="p", at=(2, 8))


@pytest.mark.parametrize(
    ("made", "rules"),
    [
        (whole, set()),
        (late_write, {"fence"}),
        (late_heartbeat, {"fence"}),
        (two_attempts_of_one_number, {"attempts"}),
        (granted_to_two, {"attempts"}),
        (two_results, {"result"}),
        (another_result_read, {"result"}),
        (open_again, {"final"}),
        (lost, {"lost"}),
        (events_lost, {"lost"}),
        (more_events_than_were_appended, {"invented"}),
        (all_events_that_were_appended, set()),
        (two_grants_of_one_request, {"claim"}),
        (two_grants_of_one_request_at_once, {"claim"}),
        (a_request_anew_after_its_end, set()),
        (write_after_a_revocation, {"revoked"}),
        (heartbeat_after_a_revocation, {"revoked"}),
        (writes_beside_a_revocation, set()),
        (invented, {"invented"}),
        (out_of_order, {"order"}),
        (younger_first, {"order"}),
        (younger_while_a_claim_is_sent_twice, set()),
        (younger_where_a_claim_is_sent_again, {"order"}),
        (feed_skips, {"feed"}),
        (resources_go_back, {"resources"}),
        (resources_of_another_id_go_back, set()),
        (resources_change, {"resources"}),
        (claimed_with_what_nobody_published, {"invented"}),
        (claimed_with_two_versions, {"resources"}),
        (changed, set()),
        (change_is_lost, {"changed"}),
        (changed_after_its_end, {"changed"}),
        (two_of_one_version, {"resources"}),
        (late_ledger, {"ledger"}),
        (late_pool, {"pool"}),
        (delivered_twice, {"ledger"}),
        (stale, {"ledger"}),
        (stale_in_vain, set()),
        (lost_input, {"lost"}),
        (open_after_its_end, {"final"}),
        (attempts_gone, {"final"}),
        (read_with_two_results, {"result"}),
        (feed_repeats, {"feed"}),
        (feed_in_two_orders, {"feed"}),
        (cursor_goes_back, {"feed"}),
        (version_put_back, {"resources"}),
        (two_ledgers_of_one_epoch, {"ledger"}),
        (two_pools_of_one_epoch, {"pool"}),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_each_rule_is_broken_by_what_breaks_it_and_by_nothing_else(made: Callable[[History], None], rules: set[str]):
    history = History()
    made(history)
    assert history.rules(max_staleness=2) == rules


def test_calls_that_overlap_may_have_happened_in_either_order():
    history = History()
    history.enqueue("r", at=(0, 1))
    history.claim("r", 1, at=(2, 3))
    history.claim("r", 2, at=(4, 9))
    history.report("r", 1, status="running", at=(5, 10))
    history.enqueue("better", priority=1, at=(1, 11))
    history.read(seen("r", "preparing", 2), seen("better"), at=(12, 13))
    assert history.rules() == set()


def test_a_call_of_unknown_outcome_may_have_been_carried_out_or_not():
    history = History()
    for rollout_id in ("there", "not there"):
        history.enqueue(rollout_id, outcome=Outcome.UNKNOWN)
    history.call("enqueue_rollout", outcome=Outcome.UNKNOWN, input="nameless")
    history.claim("there", 1)
    history.report("there", 1, "failed", outcome=Outcome.UNKNOWN)
    history.claim("there", 2)
    history.report("there", 1, "failed")
    history.read(seen("there", "running", 2), seen("named by the store", digest="nameless"))
    assert history.rules() == set()
    history.read(seen("there", "running", 2), seen("one", digest="nameless"), seen("two", digest="nameless"))
    assert history.rules() == {"invented"}, "at most once"


async def live(store: Store, clock: FakeClock) -> None:
    """Some of everything, with a lease that is lost."""
    rollouts = [
        await store.enqueue_rollout({"n": i}, priority=i % 2, config=RolloutConfig(unresponsive_seconds=5))
        for i in range(4)
    ]
    silent = await claim(store, "silent")
    await store.append_events(silent.rollout_id, silent.attempt.attempt_id, [log(), log()])
    await clock.advance(6)
    await store.put_resources({"model": "m"})
    for rollout in (await store.query_rollouts(status_in=["queuing", "requeuing"])).items[:2]:
        await store.update_rollout(rollout.rollout_id, input={"changed": rollout.input}, tag="changed")
    while (claimed := await store.dequeue_rollout(worker_id="w")) is not None:
        await store.heartbeat("w", [claimed.attempt.attempt_id])
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        await store.update_attempt(*ids, status="succeeded", reward=1.0, events=[log()])
    with pytest.raises(LeaseLost):
        await store.append_events(silent.rollout_id, silent.attempt.attempt_id, [log()])
    assert len(await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts], timeout=0)) == 4


async def test_the_history_of_a_store_holds_what_was_called_and_breaks_no_rule(clock: FakeClock):
    recorder = MemoryRecorder()
    async with open_store("memory://", clock=clock) as store:
        await live(recorder.record(store), clock)
        await observe(recorder.record(store))
    calls = calls_of(recorder.lines)
    check(calls)
    assert [call.outcome for call in calls if call.method == "append_events"] == [Outcome.OK, Outcome.REFUSED]
    assert {call.answer["total"] for call in calls if call.method == "query_events"} == {1, 2}


async def test_a_history_in_files_outlives_those_who_wrote_it(tmp_path: Path, clock: FakeClock, capsys, monkeypatch):
    monkeypatch.setenv("OUTRIDER_HISTORY", str(tmp_path / "history"))
    async with open_store("memory://", clock=clock) as store:
        await live(store, clock)
        monkeypatch.delenv("OUTRIDER_HISTORY")
        assert await check_store(store, tmp_path / "history") > 20
        with (tmp_path / "history" / "cut.jsonl").open("wb") as file:
            file.write(b'{"type":"beg')
        assert main([str(tmp_path / "history")]) == 0
    said = capsys.readouterr().out
    assert said.endswith("0 of unknown outcome, 0 violations\n")


async def test_what_a_store_lost_is_found_by_reading_it_to_its_end(tmp_path: Path):
    async with open_store("memory://") as store, open_store("memory://") as other:
        await recorded(store, FileRecorder(tmp_path)).enqueue_rollout("task", rollout_id="r")
        with pytest.raises(HistoryViolated, match="lost: r: was enqueued, and is not in the store"):
            await check_store(other, tmp_path)
    assert len(list(read_lines(tmp_path))) == 2


async def test_a_call_that_is_not_answered_is_recorded_as_unknown():
    class Away:
        async def enqueue_rollout(self, input: Any) -> None:
            raise StoreUnavailable("no route")

    recorder = MemoryRecorder()
    away: Any = Away()
    with pytest.raises(StoreUnavailable):
        await recorder.record(away).enqueue_rollout("task")
    (call,) = calls_of(recorder.lines)
    assert (call.outcome, call.method) == (Outcome.UNKNOWN, "enqueue_rollout")

"""A worker on a real store, on real time."""

import asyncio
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider import Context, Result, RolloutConfig, Runner, Store
from outrider.core.errors import Boundary, InvalidInput, PolicyUnusable
from outrider.core.event import EventKind
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.runner import StageLimits
from outrider.store import Revoked
from outrider.testing import eventually


async def run_all(store: Store, *runners: Runner, rollout_ids: list[str]) -> None:
    """Run the workers until these rollouts have ended."""

    async def end() -> None:
        await store.wait_for_rollouts(rollout_ids, timeout=30)
        for runner in runners:
            runner.stop()

    async with asyncio.TaskGroup() as group:
        for runner in runners:
            group.create_task(runner.iter())
        group.create_task(end())


async def enqueue(store: Store, n: int, **fields: Any) -> list[str]:
    return [(await store.enqueue_rollout({"task_id": i}, **fields)).rollout_id for i in range(n)]


async def nap(task: Any, ctx: Context) -> float:
    await asyncio.sleep(0.01)
    return 1.0


async def test_an_agent_gets_the_resources_that_its_attempt_was_claimed_with(store: Store):
    first = await store.put_resources({"bonus": 1.0})
    pinned = RolloutConfig(resources_version=first.version)
    await store.put_resources({"bonus": 2.0})

    async def agent(task: Any, ctx: Context) -> float:
        await store.put_resources({"bonus": 3.0})  # what comes later is not for this attempt
        return float((await ctx.resources())["bonus"])

    def plain(task: Any, ctx: Context) -> float:
        return float(asyncio.run(ctx.resources())["bonus"])

    for one, config in ((agent, None), (agent, pinned), (plain, pinned)):
        rollout = await Runner(store, one).step("task", config=config)
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert rollout.reward == (2.0 if config is None else 1.0)
        assert rollout.resources_version == attempt.resources_version == (2 if config is None else 1)


async def test_four_workers_share_twenty_rollouts_about_five_each(store: Store):
    ids = await enqueue(store, 20)
    runs: Counter[str] = Counter()
    claims: Counter[int] = Counter()

    def watch(index: int) -> Callable[[outrider.AttemptedRollout], None]:
        def on_claim(claimed: outrider.AttemptedRollout) -> None:
            runs[claimed.rollout_id] += 1
            claims[index] += 1

        return on_claim

    await run_all(store, *(Runner(store, nap, worker_id=i, on_claim=watch(i)) for i in range(4)), rollout_ids=ids)

    assert runs == Counter(dict.fromkeys(ids, 1))
    assert sorted(claims) == [0, 1, 2, 3]
    assert all(3 <= n <= 7 for n in claims.values())
    assert (await store.query_rollouts(status="succeeded")).total == 20


async def test_one_worker_runs_many_rollouts_at_once(store: Store):
    ids = await enqueue(store, 50)
    together = asyncio.Barrier(50)

    async def meet(task: Any, ctx: Context) -> float:
        async with asyncio.timeout(30):
            await together.wait()
        return 1.0

    runner = Runner(store, meet, max_env_num_per_worker=50)
    await run_all(store, runner, rollout_ids=ids)

    assert (await store.query_rollouts(status="succeeded")).total == 50


async def test_events_belong_to_the_rollout_in_whose_context_they_happen(store: Store):
    ids = await enqueue(store, 8)

    async def deep(number: int) -> None:
        await asyncio.sleep(0.01)
        outrider.current().log(f"task {number}")
        await asyncio.to_thread(lambda: outrider.current().log(f"thread {number}"))

    async def agent(task: Any, ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(deep(task["task_id"]))

    def plain(task: Any, ctx: Context) -> None:
        time.sleep(0.01)
        outrider.current().log(f"task {task['task_id']}")
        ctx.log(f"thread {task['task_id']}")

    half = ids[:4]
    await run_all(store, Runner(store, agent, max_env_num_per_worker=4, max_rollouts=4), rollout_ids=half)
    await run_all(store, Runner(store, plain, max_env_num_per_worker=4), rollout_ids=ids)

    for number, rollout_id in enumerate(ids):
        events = await store.query_events(rollout_id, kind=EventKind.LOG)
        assert [event.name for event in events] == [f"task {number}", f"thread {number}"]
    with pytest.raises(outrider.OutriderError, match="outside of an attempt"):
        outrider.current()


async def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_the_others(store: Store):
    ids = await enqueue(store, 4)
    barrier = threading.Barrier(4)

    def meet(task: Any, ctx: Context) -> float:
        barrier.wait(timeout=10)
        return 0.5

    await run_all(store, Runner(store, meet, max_env_num_per_worker=4), rollout_ids=ids)

    assert [rollout.reward for rollout in await store.query_rollouts()] == [0.5] * 4


async def failing(task: Any, ctx: Context) -> float:
    raise ZeroDivisionError(f"no {task}")


async def not_a_number(task: Any, ctx: Context) -> float:
    return math.nan


async def a_string(task: Any, ctx: Context) -> Any:
    return "done"


def leaving(task: Any, ctx: Context) -> float:
    raise SystemExit(3)


class Unspeakable(BaseException):
    """Has no words for what happened."""

    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


def raising(error: BaseException) -> Callable[[Any, Context], Any]:
    async def agent(task: Any, ctx: Context) -> float:
        await asyncio.sleep(0)
        raise error

    return agent


async def cancels_itself(task: Any, ctx: Context) -> float:
    me = asyncio.current_task()
    assert me is not None
    me.cancel()
    await asyncio.sleep(1)
    return 1.0


async def awaits_a_cancelled_future(task: Any, ctx: Context) -> float:
    async with asyncio.timeout(10):
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never
    return 1.0


async def cancelled_in_a_group(task: Any, ctx: Context) -> float:
    async with asyncio.TaskGroup() as group:
        child = group.create_task(asyncio.sleep(10))
        child.cancel()
        await child
    return 1.0


async def quits_in_a_group(task: Any, ctx: Context) -> float:
    async def fail(error: BaseException) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail(Unspeakable()))
        group.create_task(fail(ValueError("the other one")))
    return 1.0


def cancelled_in_a_thread(task: Any, ctx: Context) -> float:
    raise asyncio.CancelledError


def endless_cause() -> Exception:
    error, other = ValueError("egg"), ValueError("hen")
    error.__cause__, other.__cause__ = other, error
    return error


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (raising(SystemExit(0)), "SystemExit: 0"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(Unspeakable()), "__str__ raised SystemExit"),
        (raising(ValueError("x" * 100_000_000)), "99,996,000 more characters"),
        (raising(endless_cause()), "egg"),
        (raising(asyncio.CancelledError()), "nobody had cancelled"),
        (cancels_itself, "cancelled its own task"),
        (awaits_a_cancelled_future, "nobody had cancelled"),
        (cancelled_in_a_group, "nobody had cancelled"),
        (quits_in_a_group, "the other one"),
        (cancelled_in_a_thread, "CancelledError"),
    ],
)
async def test_whatever_an_agent_raises_is_one_failed_attempt(store: Store, agent: Any, says: str):
    async with asyncio.timeout(20):
        rollout = await Runner(store, agent).step("task")

    assert rollout.status is RolloutStatus.FAILED
    assert (rollout.n_attempts, rollout.n_failures) == (1, 1)
    assert rollout.failure is not None
    assert rollout.failure.boundary is Boundary.AGENT
    assert says in rollout.failure.message
    assert len(rollout.failure.message) < 10_000


async def unstorable(task: Any, ctx: Context) -> Result:
    return Result(reward=1.0, output=object())


@pytest.mark.parametrize(
    ("agent", "side", "kind"),
    [
        (failing, Boundary.AGENT, "ZeroDivisionError"),
        (not_a_number, Boundary.SCORE, "ScoreError"),
        (a_string, Boundary.AGENT, "AgentError"),
        (leaving, Boundary.AGENT, "SystemExit"),
    ],
)
async def test_a_failure_is_data_and_belongs_to_one_side(store: Store, agent: Any, side: Boundary, kind: str):
    rollout = await Runner(store, agent).step("task")

    assert rollout.status is RolloutStatus.FAILED
    assert rollout.reward is None
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == (side, kind)


async def test_an_output_that_cannot_be_stored_is_a_failure_not_a_crash(store: Store):
    rollout = await Runner(store, unstorable).step("task")
    assert rollout.status is RolloutStatus.FAILED
    assert rollout.failure is not None
    assert "cannot be stored" in rollout.failure.message


async def test_a_failure_keeps_the_traceback_of_the_agent(store: Store):
    rollout = await Runner(store, failing).step("task")
    assert rollout.failure is not None
    assert "in failing" in (rollout.failure.traceback or "")


async def test_a_result_is_kept_with_its_output_and_metrics(store: Store):
    async def agent(task: Any, ctx: Context) -> Result:
        return Result(reward=0.25, output={"answer": task}, metrics={"length": 3})

    rollout = await Runner(store, agent).step("task", tag="math", seed=7)

    assert (rollout.reward, rollout.tag, rollout.seed) == (0.25, "math", 7)
    (event,) = await store.query_events(rollout.rollout_id, kind="reward")
    kept = {"reward": 0.25, "output": {"answer": "task"}, "metrics": {"length": 3}}
    assert event.data == {**kept, "stop_reason": "", "explanation": ""}


async def test_whatever_an_agent_logs_is_kept_or_refused_to_the_agent_alone(store: Store):
    async def agent(task: Any, ctx: Context) -> float:
        ctx.log("half \ud800 and nul \0", note="ταξί 🚕")
        with pytest.raises(InvalidInput):
            ctx.log("unstorable", thing=object())
        return 1.0

    rollout = await Runner(store, agent).step("task")

    assert rollout.status is RolloutStatus.SUCCEEDED
    (event,) = await store.query_events(rollout.rollout_id)
    assert (event.name, event.data) == ("half ? and nul \ufffd", {"note": "ταξί 🚕"})


async def test_a_failed_attempt_is_retried_as_the_configuration_says(store: Store):
    ids = await enqueue(store, 1, config=RolloutConfig(max_attempts=3))
    numbers = []

    async def third_time_lucky(task: Any, ctx: Context) -> float:
        numbers.append(ctx.rollout.attempt.sequence_id)
        if len(numbers) < 3:
            raise RuntimeError("not yet")
        return 1.0

    await run_all(store, Runner(store, third_time_lucky), rollout_ids=ids)

    assert numbers == [1, 2, 3]
    attempts = await store.query_attempts(ids[0])
    assert [attempt.status for attempt in attempts] == ["failed", "failed", "succeeded"]


class Sleeper:
    """An agent that sleeps until it is cancelled, and tells."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, task: Any, ctx: Context) -> float:
        self.began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return 1.0


async def test_a_cancel_reaches_the_running_attempt_at_once(store: Store):
    (rollout_id,) = await enqueue(store, 1)
    sleeper = Sleeper()
    runner = Runner(store, sleeper.__call__)

    async def cancel() -> None:
        await sleeper.began.wait()
        await store.cancel_rollouts([rollout_id])
        async with asyncio.timeout(10):
            await sleeper.cancelled.wait()
        runner.stop()

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.iter())
        group.create_task(cancel())

    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert rollout.status is RolloutStatus.CANCELLED


async def test_a_timeout_stops_the_running_attempt(store: Store):
    ids = await enqueue(store, 1, config=RolloutConfig(timeout_seconds=0.2, max_attempts=1))
    sleeper = Sleeper()

    await run_all(store, Runner(store, sleeper.__call__), rollout_ids=ids)

    assert sleeper.cancelled.is_set()
    (attempt,) = await store.query_attempts(ids[0])
    assert attempt.status is AttemptStatus.TIMEOUT
    assert attempt.failure is not None
    assert attempt.failure.boundary is Boundary.LIMIT


async def test_a_plain_agent_can_see_that_it_was_stopped(store: Store):
    ids = await enqueue(store, 1, config=RolloutConfig(timeout_seconds=0.2, max_attempts=1))
    seen = threading.Event()

    def watch(task: Any, ctx: Context) -> None:
        while not ctx.stopped:
            time.sleep(0.01)
        seen.set()

    await run_all(store, Runner(store, watch), rollout_ids=ids)

    assert await asyncio.to_thread(seen.wait, 5)


async def test_an_agent_that_blocks_the_event_loop_is_named_loudly(store: Store, caplog: pytest.LogCaptureFixture):
    async def block(task: Any, ctx: Context) -> float:
        time.sleep(1.0)
        return 1.0

    rollout = await Runner(store, block, max_block_seconds=0.4).step("task")

    assert rollout.status is RolloutStatus.SUCCEEDED
    (record,) = [record for record in caplog.records if "blocks its worker" in record.message]
    assert rollout.rollout_id in record.message
    assert f"{__file__}:" in record.message
    assert "in block" in record.message
    assert "time.sleep(1.0)" in record.message


async def test_a_rollout_that_was_set_aside_runs_alone_and_first(store: Store):
    together = [await enqueue(store, 3), await enqueue(store, 3)]
    suspects = [claimed.rollout_id for claimed in await store.dequeue_many_rollouts(3, worker_id="dead")]
    assert suspects == together[0]
    await store.revoke_leases("dead", reason="it died", how=Revoked.ISOLATED)
    ran: list[tuple[str, int]] = []
    running: set[str] = set()

    async def agent(task: Any, ctx: Context) -> float:
        running.add(ctx.rollout_id)
        ran.append((ctx.rollout_id, len(running)))
        await asyncio.sleep(0.1)
        running.remove(ctx.rollout_id)
        return 1.0

    runner = Runner(store, agent, max_env_num_per_worker=4, owns_process=True)
    await run_all(store, runner, rollout_ids=[*together[0], *together[1]])

    assert ran[:3] == [(rollout_id, 1) for rollout_id in suspects]
    assert sorted(n for _, n in ran[3:]) == [1, 2, 3]
    assert all(rollout.n_failures == 0 for rollout in await store.query_rollouts(status="succeeded"))


async def test_an_agent_that_does_not_stop_holds_up_no_other(store: Store):
    stubborn_id, other_id = await enqueue(store, 2, config=RolloutConfig(timeout_seconds=0.2, max_attempts=1))
    release = asyncio.Event()

    async def stubborn(task: Any, ctx: Context) -> None:
        while task["task_id"] == 0 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    runner = Runner(store, stubborn, limits=StageLimits(close_seconds=0.1, cancel_seconds=0.1))
    try:
        await run_all(store, runner, rollout_ids=[stubborn_id, other_id])
    finally:
        release.set()

    ended = await store.query_rollouts()
    assert [rollout.status for rollout in ended] == [RolloutStatus.FAILED, RolloutStatus.SUCCEEDED]


async def test_stop_lets_running_attempts_finish(store: Store):
    (rollout_id,) = await enqueue(store, 1)
    runner = Runner(store, nap, on_claim=lambda _: runner.stop())

    await runner.iter()

    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert rollout.status is RolloutStatus.SUCCEEDED


async def test_after_the_grace_a_running_attempt_is_handed_back_and_counts_as_no_failure(store: Store):
    (rollout_id,) = await enqueue(store, 1, config=RolloutConfig(max_attempts=1))
    sleeper = Sleeper()
    runner = Runner(store, sleeper.__call__, grace_seconds=0.05, on_claim=lambda _: runner.stop())

    await runner.iter()

    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert (rollout.status, rollout.n_failures) == (RolloutStatus.REQUEUING, 0)
    again = await store.dequeue_rollout(worker_id="other")
    assert again is not None
    assert again.rollout_id == rollout_id


async def test_the_grace_does_not_end_the_last_attempts_of_a_worker_that_was_not_stopped(store: Store):
    (rollout_id,) = await enqueue(store, 1)

    async def slow(task: Any, ctx: Context) -> float:
        await asyncio.sleep(0.3)
        return 1.0

    await Runner(store, slow, grace_seconds=0.05).iter(max_rollouts=1)

    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert rollout.status is RolloutStatus.SUCCEEDED


async def test_heartbeats_keep_a_short_lease_through_a_long_attempt(store: Store):
    ids = await enqueue(store, 1, config=RolloutConfig(unresponsive_seconds=0.3, max_attempts=2))

    async def long(task: Any, ctx: Context) -> float:
        await asyncio.sleep(1.2)
        return 1.0

    await run_all(store, Runner(store, long), rollout_ids=ids)

    assert [attempt.status for attempt in await store.query_attempts(ids[0])] == ["succeeded"]


async def test_a_lease_that_was_taken_away_stops_the_attempt_which_writes_nothing_more(store: Store):
    (rollout_id,) = await enqueue(store, 1, config=RolloutConfig(max_attempts=1))
    sleeper = Sleeper()
    runner = Runner(store, sleeper.__call__, worker_id="presumed dead")

    async def revoke() -> None:
        await sleeper.began.wait()
        assert len(await store.revoke_leases("presumed dead", reason="a test says so")) == 1
        await sleeper.cancelled.wait()
        runner.stop()

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.iter())
        group.create_task(revoke())

    (attempt,) = await store.query_attempts(rollout_id)
    assert attempt.status is AttemptStatus.UNRESPONSIVE
    assert attempt.failure is not None
    assert attempt.failure.message == "a test says so"


async def test_an_attempt_stops_when_its_lease_must_have_ended_while_the_store_is_out_of_reach(
    store: Store, tmp_path: Path
):
    (rollout_id,) = await enqueue(store, 1, config=RolloutConfig(unresponsive_seconds=0.9, max_attempts=1))
    sleeper = Sleeper()
    runner = Runner(store, sleeper.__call__)

    async def lock() -> None:
        await sleeper.began.wait()
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other_process:
            other_process.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(30):
                await sleeper.cancelled.wait()
            other_process.execute("ROLLBACK")
        runner.stop()

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.iter())
        group.create_task(lock())

    (ended,) = await store.wait_for_rollouts([rollout_id], timeout=5)
    assert ended.failure is not None
    assert ended.failure.boundary is Boundary.WORKER


async def test_events_reach_the_store_while_the_attempt_still_runs(store: Store):
    (rollout_id,) = await enqueue(store, 1)
    done = asyncio.Event()

    async def chatty(task: Any, ctx: Context) -> None:
        ctx.log("first")
        await done.wait()
        ctx.log("second")

    runner = Runner(store, chatty)

    async def look() -> None:
        async def one_event() -> bool:
            return (await store.query_events(rollout_id)).total == 1

        await eventually(one_event)
        done.set()
        await store.wait_for_rollouts([rollout_id], timeout=5)
        runner.stop()

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.iter())
        group.create_task(look())

    assert [event.name for event in await store.query_events(rollout_id)] == ["first", "second"]


async def test_a_worker_ends_after_max_rollouts(store: Store):
    await enqueue(store, 5)
    assert await Runner(store, nap, max_env_num_per_worker=4).iter(max_rollouts=3) == 3
    assert (await store.query_rollouts(status="queuing")).total == 2


async def test_a_worker_takes_only_its_tags(store: Store):
    await store.enqueue_rollout("a", tag="easy")
    wanted = await store.enqueue_rollout("b", tag="hard")
    await Runner(store, nap, tags=("hard",)).iter(max_rollouts=1)
    assert [rollout.rollout_id for rollout in await store.query_rollouts(status="succeeded")] == [wanted.rollout_id]


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval": 30},
        {"heartbeat_interval": 0},
        {"poll_interval": -1},
        {"max_rollouts": 0},
        {"max_env_num_per_worker": 0},
        {"grace_seconds": -1},
        {"pol_interval": 1},
    ],
)
async def test_settings_that_cannot_work_are_refused(store: Store, wrong: dict[str, Any]):
    with pytest.raises(InvalidInput):
        Runner(store, nap, **wrong)


@pytest.mark.parametrize("agent", ["nowhere:agent", "json:nothing", "json", "json:dumps.x", lambda task: 1.0, 7])
async def test_an_agent_that_cannot_be_called_is_refused(store: Store, agent: Any):
    with pytest.raises(InvalidInput, match="agent"):
        Runner(store, agent)


def test_a_plain_agent_that_hangs_does_not_keep_the_process_alive(store_url: str):
    program = f"""
import asyncio, time, outrider
from outrider import RolloutConfig, Runner, open_store
def hang(task, ctx):
    time.sleep(600)
async def main():
    async with open_store({store_url!r}) as store:
        config = RolloutConfig(timeout_seconds=0.2, max_attempts=1)
        rollout = await Runner(store, hang).step("task", config=config)
        print(rollout.status, rollout.failure.kind)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == ["failed", "AttemptTimeout"]


async def test_what_every_rollout_would_meet_stops_the_worker_and_is_nobodys_failure(store: Store):
    ids = await enqueue(store, 4)
    begun: list[int] = []

    async def agent(task: Any, ctx: Context) -> float:
        begun.append(task["task_id"])
        if task["task_id"] == 1:
            raise PolicyUnusable("the key is wrong")
        await asyncio.sleep(0.05)
        return 1.0

    runner = Runner(store, agent, max_env_num_per_worker=2)
    with pytest.raises(PolicyUnusable, match="the key is wrong"):
        await asyncio.wait_for(runner.iter(), 10)

    rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    assert rollouts[ids[0]].status is RolloutStatus.SUCCEEDED, "what ran beside it could finish"
    assert rollouts[ids[1]].status in {RolloutStatus.QUEUING, RolloutStatus.REQUEUING}
    assert rollouts[ids[1]].n_failures == 0
    assert sorted(begun)[:2] == [0, 1]
    assert 3 not in begun

"""The scheduler among broken environments, failing models, hung members, dead and frozen workers."""

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from fault_environments import silent
from outrider import local_workers, open_store
from outrider.agent.function import episodes_of
from outrider.core.account import Fate
from outrider.core.chat import assistant
from outrider.core.errors import BatchLate, PolicyError
from outrider.core.ledger import GroupState, LedgerWrite
from outrider.core.status import LIVE, QUEUED, AttemptStatus, RolloutStatus
from outrider.env.registry import environments_of
from outrider.policy import Completion, Usage
from outrider.policy.spec import PolicySpec
from outrider.runner import RunnerConfig, StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.supervisor import Scale, Supervisor, process_launcher
from outrider.runner.worker import ProcessWorker, WorkerSpec
from outrider.store import Store
from outrider.testing import LoopClock, ModelServer, eventually
from outrider.testing.model_server_wire import ModelRequest
from outrider.train.config import SchedulerConfig
from outrider.train.delivery import RolloutBatch
from outrider.train.scheduler import RolloutScheduler
from outrider.train.seeding import GroupSource
from processes import stop_between_writes
from stored_tokens import pid_of, stored_tokens
from training import Lab, config_of, play, take_all

HERE = Path(__file__).parent.parent
WALK = "fault_environments:Walk"
LAST_SECONDS = 2.0
"""Turns are reported once a second; on a busy machine a little later."""

AHEAD: dict[str, Any] = {"async_generation_ratio": 1.0, "max_staleness": 2}


@pytest.fixture
def tickets(tmp_path: Path) -> str:
    folder = tmp_path / "tickets"
    folder.mkdir()
    return str(folder)


def walking(lab: Lab, tag: str = "walk", **trouble: Any) -> None:
    lab.games[tag] = environments_of(WALK, trouble)


def config_walking(**settings: Any) -> SchedulerConfig:
    return config_of(**{"tags": ("walk",), "max_refills": 2, **AHEAD, **settings})


async def train(scheduler: RolloutScheduler, n_batches: int, *, timeout: float = 200.0) -> list[RolloutBatch]:
    batches = []
    for number in range(n_batches):
        batches.append(await scheduler.get_batch(timeout=timeout))
        assert batches[-1].number == number
        await scheduler.publish()
    return batches


@pytest.mark.parametrize(
    ("trouble", "stage", "says"),
    [
        ("broken_reset", "env.reset", "the level of seed .* cannot be built"),
        ("broken_step", "env.step", "there is no ground"),
        ("nonsense_reset", "env.reset", "returned an observation of type int; return a str"),
        ("nonsense_step", "env.step", r"returned 42; return \(obs, reward"),
        ("unscored", "env.step", "the reward nan"),
    ],
)
def test_an_environment_that_always_fails_is_named_at_the_deadline_and_is_not_tried_without_end(
    trouble: str, stage: str, says: str
):
    async def main(lab: Lab) -> None:
        walking(lab, trouble=trouble)
        async with lab.training(config_walking()) as scheduler:
            with pytest.raises(BatchLate, match=rf"train-\d+\.\d failed 3 times, last in {stage}: .*{says}"):
                await scheduler.get_batch(timeout=300)
            dropped = (await lab.store.query_groups("train", states=[GroupState.DROPPED])).items
            assert 8 < len(dropped) < 80, "new groups are opened more and more slowly"
            assert all((entry.reason or "").startswith(f"failed: {entry.group_id}.") for entry in dropped)
            assert scheduler.status().dropped == {Fate.FAILED: len(dropped)}

    play("memory://", main)


@pytest.mark.parametrize("trouble", ["broken_reset", "broken_step", "nonsense_step"])
def test_members_that_fail_now_and_then_are_run_again_with_their_seed(tickets: str, trouble: str):
    async def main(lab: Lab) -> None:
        walking(lab, trouble=trouble, n_times=8, tickets=tickets)
        async with lab.training(config_walking(max_refills=8)) as scheduler:
            batches = await train(scheduler, 5)
            assert not scheduler.status().dropped
        retried = {one.rollout_id for one in await lab.store.query_rollouts() if one.n_attempts > 1}
        assert retried & {one.rollout_id for batch in batches for one in batch.batch.trajectories}

    play("memory://", main)


def test_a_group_whose_refills_are_used_up_is_dropped_and_another_one_of_its_tag_takes_its_place(tickets: str):
    async def main(lab: Lab) -> None:
        walking(lab, "sound")
        walking(lab, "shaky", trouble="broken_reset", n_times=6, tickets=tickets)
        config = config_walking(tags=("shaky", "sound"), max_refills=1)
        async with lab.training(config) as scheduler:
            batches = await train(scheduler, 6)
            dropped = (await lab.store.query_groups("train", states=[GroupState.DROPPED])).items
            assert dropped
            assert {entry.tag for entry in dropped} == {"shaky"}
            assert all("failed 2 times, last in env.reset" in (entry.reason or "") for entry in dropped)
        assert {tag for batch in batches for tag in batch.batch.tags} == {"shaky", "sound"}
        counts = await lab.store.count_groups("train")
        kept = {
            tag: sum(n for (of, state), n in counts.items() if of == tag and state is not GroupState.DROPPED)
            for tag in ("shaky", "sound")
        }
        assert abs(kept["shaky"] - kept["sound"]) <= 1

    play("memory://", main)


def test_rollouts_that_end_well_without_a_reward_do_not_make_a_group():
    async def main(lab: Lab) -> None:
        workers = local_workers(lab.store, episodes_of(silent), max_env_num_per_worker=8, clock=lab.clock)
        async with lab.scheduler(config_walking()) as scheduler, workers:
            with pytest.raises(BatchLate, match=r"train-\d+\.\d ended without a reward"):
                await scheduler.get_batch(timeout=60)

    play("memory://", main)


HANGS: list[tuple[str, str]] = [
    ("hung_reset", "resetting its environment"),
    ("hung_step", "in a step of its environment"),
    ("hung_model", "waiting for the model"),
]


@pytest.mark.parametrize(("trouble", "phase"), HANGS)
def test_what_hangs_is_named_at_the_deadline_with_its_environment_its_phase_and_since_when(trouble: str, phase: str):
    async def main(lab: Lab) -> None:
        walking(lab, trouble=trouble)
        if trouble == "hung_model":
            lab.model.is_open.clear()
        async with lab.training(config_walking()) as scheduler:
            began = lab.clock.time()
            with pytest.raises(BatchLate, match=rf"train-0\.\d \(walk, worker \S+\): {phase} for (49|50) s"):
                await scheduler.get_batch(timeout=50)
            assert lab.clock.time() - began < 52
            blocking = scheduler.status().blocking
            assert {(one.group_id, one.tag) for one in blocking} >= {("train-0", "walk")}

    play("memory://", main)


@pytest.mark.parametrize("jump", [0.0, 3600.0, -3600.0], ids=["", "forward", "back"])
@pytest.mark.parametrize("trouble", ["hung_reset", "hung_step"])
def test_a_hung_member_is_replaced_by_a_hedge_and_its_slot_is_freed(tickets: str, trouble: str, jump: float):
    """In time too where the wall clock jumps while the member hangs."""

    async def main(lab: Lab) -> None:
        walking(lab, trouble=trouble, n_times=3, tickets=tickets)
        began = lab.clock.monotonic()
        assert isinstance(lab.clock, LoopClock)
        asyncio.get_running_loop().call_later(30.0, lab.clock.jump, jump)
        async with lab.training(config_walking(hedge_seconds=60.0), n_workers=1, slots=8) as scheduler:
            await train(scheduler, 4)
            assert 60 < lab.clock.monotonic() - began < 160
            hedges = [one for one in await lab.store.query_rollouts() if "+" in one.rollout_id]
            assert len(hedges) >= 3
            assert all(one.seed is not None for one in hedges)
            hung = [one.rollout_id.partition("+")[0] for one in hedges if one.status is RolloutStatus.SUCCEEDED]
            rollouts = await lab.store.query_rollouts(rollout_ids=hung)
            assert {rollout.status for rollout in rollouts} == {RolloutStatus.CANCELLED}
            await lab.sleep(1.0)
            live = {one.rollout_id for one in await lab.store.query_progress("train")}
            assert live.isdisjoint(hung)
            await scheduler.stop(abort=True)
            assert (await scheduler.tally()).generated == lab.model.n_tokens

    play("memory://", main)


def test_a_member_that_is_only_slow_counts_if_it_ends_before_its_hedge(tickets: str):
    async def main(lab: Lab) -> None:
        walking(lab, step_seconds=30.0)
        async with lab.training(config_walking(hedge_seconds=20.0)) as scheduler:
            batches = await train(scheduler, 2, timeout=1000)
        members = [one.rollout_id for batch in batches for one in batch.batch.trajectories]
        assert len(set(members)) == len(members)
        hedged = [one for one in await lab.store.query_rollouts() if "+" in one.rollout_id]
        assert hedged, "so slow that they were run a second time"
        ended_well = {one.rollout_id for one in hedged if one.status is RolloutStatus.SUCCEEDED}
        assert not ended_well.intersection(members)

    play("memory://", main)


def test_deadlines_of_turns_end_what_hangs_and_the_member_is_run_again(tickets: str):
    async def main(lab: Lab) -> None:
        walking(lab, trouble="hung_step", n_times=4, tickets=tickets)
        limits = StageLimits(turn_seconds=15.0, setup_seconds=15.0)
        async with lab.training(config_walking(), limits=limits) as scheduler:
            await train(scheduler, 4)
            assert not scheduler.status().dropped
        failures = [
            attempt.failure
            for rollout in await lab.store.query_rollouts()
            for attempt in await lab.store.query_attempts(rollout.rollout_id)
            if attempt.status is AttemptStatus.FAILED
        ]
        assert len(failures) == 4
        assert all(failure is not None and "turn_seconds of 15 s" in failure.message for failure in failures)

    play("memory://", main)


def test_a_model_that_fails_one_call_in_twenty_costs_attempts_and_no_batch():
    async def main(lab: Lab) -> None:
        rng = random.Random(5)

        async def fail(session: str) -> None:
            if rng.random() < 0.05:
                raise PolicyError("503 from the server", stage="policy.complete")

        lab.model.before = fail
        async with lab.training(config_of(n_groups=8, group_size=4, max_refills=8, **AHEAD)) as scheduler:
            batches = await train(scheduler, 10)
            await scheduler.stop(abort=True)
            tally = await scheduler.tally()
        assert sum(len(batch) for batch in batches) == 80
        assert tally.n_attempts[Fate.FAILED] > 5
        assert tally.tokens[Fate.FAILED] > 0
        assert tally.generated == lab.model.n_tokens

    play("memory://", main)


def test_a_wait_ends_by_its_deadline_even_if_the_store_cannot_be_reached(tmp_path: Path):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(**AHEAD)) as scheduler:
            await scheduler.get_batch()
            await scheduler.publish()
            with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other_process:
                other_process.execute("BEGIN IMMEDIATE")
                async with asyncio.timeout(20):
                    with pytest.raises(BatchLate):
                        await take_all(scheduler, 0.5)
                other_process.execute("ROLLBACK")
            assert (await scheduler.get_batch(timeout=60)).number >= 1

    play(f"sqlite:///{tmp_path / 'runs.db'}", main)


@asynccontextmanager
async def worker_processes(
    store: Store, n_workers: int, *, policy: PolicySpec | None = None, **walk: Any
) -> AsyncIterator[Supervisor]:
    spec = WorkerSpec(
        store_url=store.url,
        episodes=EpisodeSpec(
            policy=policy or PolicySpec(model="builtin:random"),
            environments={"walk": EnvironmentSpec(name=WALK, config=walk)},
        ),
        config=RunnerConfig(max_env_num_per_worker=8, grace_seconds=0.1),
        tells_claims=False,
    )
    supervisor = Supervisor(
        store, spec, scale=Scale(minimum=n_workers, maximum=n_workers), launcher=process_launcher(lambda _: None)
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            supervisor.kill()
            await asyncio.wait([running])


async def busy_worker(store: Store, supervisor: Supervisor) -> ProcessWorker:
    """One that has members under way; its environments are being reset."""
    found: list[ProcessWorker] = []

    async def is_busy() -> bool:
        at_work = {one.worker_id for one in await store.query_progress("train") if one.n_events == 0}
        found[:] = [
            worker for worker in supervisor.workers if isinstance(worker, ProcessWorker) and worker.worker_id in at_work
        ]
        return bool(found)

    await eventually(is_busy, within_seconds=30)
    return found[0]


async def test_batches_keep_coming_when_a_worker_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(HERE)
    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        config = config_walking(n_groups=6, max_refills=8)
        async with RolloutScheduler(store, config) as scheduler, worker_processes(store, 2, reset_seconds=0.2) as crew:
            for number in range(3):
                os.kill((await busy_worker(store, crew)).pid, signal.SIGKILL)
                assert (await scheduler.get_batch(timeout=25)).number == number  # less than a lease
                await scheduler.publish()
            assert crew.n_deaths >= 2
        assert await lost_attempts(store)


async def test_what_killed_workers_have_generated_is_in_the_tally_as_aborted(
    tmp_path: Path, tickets: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(HERE)
    n_hung = 2

    async def hang() -> bool:
        """Their first turns are stored; they have no next one."""
        at_work = [one for one in await store.query_progress("train") if one.n_events == 2]
        return len(list(Path(tickets).iterdir())) == n_hung and len(at_work) >= n_hung

    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        config = config_walking(n_groups=2, max_refills=8, async_generation_ratio=0.0, max_staleness=0)
        hung = {"trouble": "hung_step", "n_times": n_hung, "tickets": tickets}
        async with RolloutScheduler(store, config) as scheduler, worker_processes(store, 1, **hung) as crew:
            await eventually(hang, within_seconds=60)
            (worker,) = crew.workers
            assert isinstance(worker, ProcessWorker)
            os.kill(worker.pid, signal.SIGKILL)
            await scheduler.get_batch(timeout=60)
        stored, killed = await stored_tokens(store), await lost_attempts(store)
        accounts = await store.query_accounts([one.rollout_id for one in await store.query_rollouts()])
        tally = await store.tally("train")
    assert {one.attempt_id: one.account.completion_tokens for one in accounts} == stored
    assert tally.generated == sum(stored.values())
    assert {one.fate for one in accounts if one.attempt_id in killed} <= {Fate.ABORTED, None}
    assert tally.tokens[Fate.ABORTED] > 0
    assert tally.tokens[Fate.SURPLUS] == 0


async def test_the_tally_lacks_no_more_than_the_last_turns_of_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the count of the server that handed the tokens out, not by that of the worker which was killed."""
    monkeypatch.chdir(HERE)
    loop, rng = asyncio.get_running_loop(), random.Random(1)
    handed_out: list[tuple[float, int]] = []

    def answer(_: ModelRequest) -> Completion:
        n_tokens = rng.randrange(1, 50)
        handed_out.append((loop.time(), n_tokens))
        return Completion(message=assistant("left"), usage=Usage(prompt_tokens=5, completion_tokens=n_tokens))

    async def has_worked() -> bool:
        return bool(handed_out) and loop.time() - handed_out[0][0] > 5 * LAST_SECONDS

    async def has_died() -> bool:
        return crew.n_deaths > 0

    async def train_on(scheduler: RolloutScheduler) -> None:
        while True:
            await scheduler.get_batch(timeout=60)
            await scheduler.publish()

    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store, ModelServer(answer) as server:
        policy = PolicySpec(model="test-model", base_urls=(server.base_url,), api_key_env=("none",))
        async with (
            RolloutScheduler(store, config_walking(n_groups=6, max_refills=8)) as scheduler,
            worker_processes(store, 1, policy=policy, step_seconds=0.4) as crew,
        ):
            training = asyncio.create_task(train_on(scheduler))
            await eventually(has_worked, within_seconds=60)
            (worker,) = crew.workers
            assert isinstance(worker, ProcessWorker)
            os.kill(worker.pid, signal.SIGKILL)
            killed_at, n_before = loop.time(), len(handed_out)
            await eventually(has_died)
            training.cancel()
            await asyncio.wait([training])
        rollouts = (await store.query_rollouts()).items
        attempts = [attempt for one in rollouts for attempt in await store.query_attempts(one.rollout_id)]
        its_own = {one.attempt_id for one in attempts if pid_of(one.worker_id) == worker.pid}
        accounts = await store.query_accounts([one.rollout_id for one in rollouts])
        tally = await store.tally("train")
    handed = sum(n_tokens for _, n_tokens in handed_out[:n_before])
    late = sum(n_tokens for at, n_tokens in handed_out[:n_before] if at > killed_at - LAST_SECONDS)
    counted = sum(one.account.completion_tokens for one in accounts if one.attempt_id in its_own)
    assert handed - late <= counted <= handed
    assert 0 < late < handed / 2, "else it would say little"
    assert tally.generated == sum(one.account.completion_tokens for one in accounts)


async def lost_attempts(store: Store) -> list[str]:
    return [
        attempt.attempt_id
        for rollout in await store.query_rollouts()
        for attempt in await store.query_attempts(rollout.rollout_id)
        if attempt.status is AttemptStatus.UNRESPONSIVE
    ]


async def test_members_of_a_frozen_worker_process_are_hedged_and_what_it_writes_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(HERE)
    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        config = config_walking(n_groups=6, hedge_seconds=2.5, max_refills=8)
        async with RolloutScheduler(store, config) as scheduler, worker_processes(store, 2, reset_seconds=1.0) as crew:
            frozen = await busy_worker(store, crew)
            stop_between_writes(frozen.pid, tmp_path / "runs.db")
            try:
                batches = []
                for _ in range(2):
                    batches.append(await scheduler.get_batch(timeout=60))
                    await scheduler.publish()
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            batches.append(await scheduler.get_batch(timeout=60))
            await scheduler.publish()
        members = [one.rollout_id for batch in batches for one in batch.batch.trajectories]
        assert len(set(members)) == len(members) == 12
        assert any("+" in rollout_id for rollout_id in members), "hedges have taken the place of frozen members"


def test_a_worker_that_is_told_to_stop_ends_whatever_it_has_just_claimed():
    """What it claims in the last moment would otherwise wait without end for leave that nobody gives."""

    async def main(lab: Lab) -> None:
        walking(lab)
        for n_turns in range(60):
            ledger = await lab.store.open_ledger(f"train{n_turns}")
            source = GroupSource(config_walking(), ledger.name, {})
            async with asyncio.timeout(60):
                async with lab.workers(n_workers=1, slots=4, grace_seconds=0.0):
                    await lab.sleep(1.0)
                    await lab.store.write_ledger(ledger, LedgerWrite(opened=(source.next_group(),)))
                    for _ in range(n_turns):  # of the event loop
                        await asyncio.sleep(0)
            left = await lab.store.query_rollouts(status_in=QUEUED | LIVE)
            await lab.store.cancel_rollouts([rollout.rollout_id for rollout in left])

    play("memory://", main)

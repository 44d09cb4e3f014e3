"""What `outrider status` says of workers that do not answer."""

from datetime import UTC, datetime, timedelta

from outrider.cli.diagnosis import diagnose
from outrider.cli.leases import is_running_here
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.core.status import WorkerStatus
from outrider.core.worker import Worker
from outrider.runner.runner import worker_id_of
from outrider.store import open_store

NOW = datetime.now(UTC)


def worker(worker_id: str, *, seen_at: datetime = NOW) -> Worker:
    return Worker(
        worker_id=worker_id, status=WorkerStatus.UNKNOWN, first_seen_at=seen_at, last_seen_at=seen_at, attempt_ids=()
    )


async def troubles(*workers: Worker) -> str:
    async with open_store("memory://") as store:
        await store.enqueue_rollout({})
        return "\n".join(await diagnose(store, await store.statistics(), workers, NOW + timedelta(seconds=45)))


async def test_a_worker_whose_process_is_there_is_silent_not_gone():
    said = await troubles(worker(worker_id_of(3)), worker(worker_id_of(4, pid=2**22 + 1)))
    assert "no worker is there" not in said
    assert "do not answer" in said
    assert f"worker {worker_id_of(3)} has been silent for 45 s, though its process is there" in said
    assert worker_id_of(4, pid=2**22 + 1) not in said


async def test_workers_that_are_gone_or_elsewhere_are_not_there():
    said = await troubles(worker(worker_id_of(4, pid=2**22 + 1)), worker("0@elsewhere:1"), worker("by hand"))
    assert "no worker is there" in said


def test_a_process_that_began_after_the_worker_was_last_heard_of_is_another_one():
    assert is_running_here(worker(worker_id_of(0)))
    assert not is_running_here(worker(worker_id_of(0), seen_at=NOW - timedelta(days=999)))


async def test_of_very_many_that_failed_it_says_how_many_were_looked_at():
    async with open_store("memory://") as store:
        once = RolloutConfig(max_attempts=1)
        await store.enqueue_many_rollouts([RolloutRequest(input=n, config=once) for n in range(1001)])
        for claimed in await store.dequeue_many_rollouts(1001, worker_id="w"):
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
        (line,) = await diagnose(store, await store.statistics(), (), NOW)
    assert line.startswith("1000 of the last 1,000 failed with unknown; see ")

"""What `outrider status` says of workers that do not answer."""

from datetime import UTC, datetime, timedelta

from outrider.cli.diagnosis import diagnose
from outrider.cli.leases import is_running_here
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

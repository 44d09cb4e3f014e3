"""What is stuck in a store, and why, in sentences that say what to do."""

from collections import Counter, defaultdict
from datetime import datetime, timedelta

from outrider.core.attempt import Failure
from outrider.core.status import LIVE, QUEUED, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import Statistics, Store

SLOW_SECONDS = 600.0
SAMPLE = 1000
EXAMPLES = 5


async def diagnose(store: Store, statistics: Statistics, workers: tuple[Worker, ...], now: datetime) -> list[str]:
    """One sentence for each trouble; none when all goes well."""
    return [
        *_unattended(statistics, workers, now),
        *await _overdue(store, now),
        *await _retried(store),
        *await _failed(store),
    ]


def _unattended(statistics: Statistics, workers: tuple[Worker, ...], now: datetime) -> list[str]:
    n_queued = sum(statistics.rollouts[status] for status in QUEUED)
    if not n_queued or any(worker.status is not WorkerStatus.UNKNOWN for worker in workers):
        return []
    waited = (
        "" if statistics.oldest_queued_at is None else f", the oldest for {_span(now - statistics.oldest_queued_at)}"
    )
    return [f"{n_queued} rollouts wait{waited}, and no worker is there: start one with `outrider work`"]


async def _overdue(store: Store, now: datetime) -> list[str]:
    """Live attempts that are silent or slow."""
    lines = []
    for rollout in (await store.query_rollouts(status_in=LIVE, limit=SAMPLE)).items:
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        if attempt is None:
            continue
        silent = now - attempt.last_heartbeat_at
        if silent > timedelta(seconds=rollout.config.unresponsive_seconds / 2):
            lines.append(
                f"{rollout.rollout_id}: worker {attempt.worker_id} has been silent for {_span(silent)}; another one "
                f"gets it after {rollout.config.unresponsive_seconds:g} s"
            )
        elif now - attempt.started_at > timedelta(seconds=SLOW_SECONDS):
            lines.append(
                f"{rollout.rollout_id}: {attempt.status} for {_span(now - attempt.started_at)} on {attempt.worker_id}"
            )
    return lines[:EXAMPLES]


async def _retried(store: Store) -> list[str]:
    waiting = await store.query_rollouts(status=RolloutStatus.REQUEUING, limit=EXAMPLES)
    return [
        f"{rollout.rollout_id}: waits for attempt {rollout.n_attempts + 1} of {rollout.config.max_attempts}"
        + ("" if rollout.failure is None else f" after {rollout.failure.boundary}: {_first_line(rollout.failure)}")
        for rollout in waiting
    ]


async def _failed(store: Store) -> list[str]:
    failed = await store.query_rollouts(status=RolloutStatus.FAILED, sort_by="ended_at", descending=True, limit=SAMPLE)
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = defaultdict(list)
    for rollout in failed:
        kind = "unknown" if rollout.failure is None else f"{rollout.failure.boundary}: {rollout.failure.kind}"
        kinds[kind] += 1
        examples[kind].append(rollout.rollout_id)
    return [
        f"{number} failed with {kind}; see `outrider show {examples[kind][0]}`, then `outrider retry --failed`"
        for kind, number in kinds.most_common(EXAMPLES)
    ]


def _first_line(failure: Failure) -> str:
    """`outrider show` prints the rest."""
    first, *rest = failure.message.strip().splitlines() or [failure.kind]
    return f"{first} …" if rest else first


def _span(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

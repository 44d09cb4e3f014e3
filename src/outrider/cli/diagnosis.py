"""What is stuck in a store, and why, in sentences that say what to do."""

import asyncio
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from outrider.cli.leases import is_running_here
from outrider.core.attempt import Failure
from outrider.core.status import LIVE, QUEUED, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import Statistics, Store
from outrider.store.rows import WORKER_SILENT_SECONDS

if TYPE_CHECKING:
    from outrider.evaluate.results import FailureLine

SLOW_SECONDS = 600.0
SAMPLE = 1000
EXAMPLES = 5
MESSAGE_CHARACTERS = 300


async def diagnose(store: Store, statistics: Statistics, workers: tuple[Worker, ...], now: datetime) -> list[str]:
    """One sentence for each trouble; none when all goes well."""
    return [
        *_unattended(statistics, workers, now),
        *_silent(workers, now),
        *_set_aside(statistics),
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
    if any(map(is_running_here, workers)):
        return [f"{n_queued} rollouts wait{waited}, and the workers that are there do not answer; see below"]
    return [f"{n_queued} rollouts wait{waited}, and no worker is there: start one with `outrider work`"]


def _silent(workers: tuple[Worker, ...], now: datetime) -> list[str]:
    """Workers whose processes are there but were not heard of, and what they hold."""
    lines = []
    for worker in workers:
        silent = now - worker.last_seen_at
        if silent > timedelta(seconds=WORKER_SILENT_SECONDS) and is_running_here(worker):
            held = f" holds {len(worker.attempt_ids)} leases and" if worker.attempt_ids else ""
            lines.append(
                f"worker {worker.worker_id}{held} has been silent for {_span(silent)}, though its process is there: it "
                "works no more, or something blocks its event loop; its log says what"
            )
    return lines[:EXAMPLES]


def _set_aside(statistics: Statistics) -> list[str]:
    if not (n := statistics.n_set_aside):
        return []
    what = "1 rollout waits" if n == 1 else f"{n} rollouts wait"
    return [f"{what} set aside, each to run alone: it was in a worker that died, and may have killed it"]


async def _overdue(store: Store, now: datetime) -> list[str]:
    """Live attempts that are silent or slow."""
    lines = []
    live = (await store.query_rollouts(status_in=LIVE, limit=SAMPLE)).items
    attempts = await asyncio.gather(*[store.get_latest_attempt(rollout.rollout_id) for rollout in live])
    for rollout, attempt in zip(live, attempts, strict=True):
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
        + (
            ""
            if rollout.failure is None
            else f" after {failure_text(rollout.failure, f'outrider show {rollout.rollout_id}')}"
        )
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
    last = "" if failed.total <= SAMPLE else f" of the last {SAMPLE:,}"
    return [
        f"{number}{last} failed with {kind}; see `outrider show {examples[kind][0]}`, then `outrider retry --failed`"
        for kind, number in kinds.most_common(EXAMPLES)
    ]


def failure_text(failure: "Failure | FailureLine", command: str) -> str:
    """The failure in a line. Where that is not all of it, `command` shows the rest."""
    first, _, rest = failure.message.strip().partition("\n")
    if rest or len(first) > MESSAGE_CHARACTERS:
        first = f"{first[:MESSAGE_CHARACTERS]}… (whole: `{command}`)"
    return f"{failure.boundary}: {first}"


def _span(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

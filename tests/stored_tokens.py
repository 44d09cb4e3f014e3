"""What attempts have generated, as the store's events tell: what the tally of a training run must agree with."""

from outrider import Store
from outrider.core.status import AttemptStatus


async def stored_tokens(store: Store) -> dict[str, int]:
    """What each attempt that is over has generated, as its events tell."""
    tokens: dict[str, int] = {}
    for rollout in await store.query_rollouts():
        for attempt in await store.query_attempts(rollout.rollout_id):
            turns = await store.query_events(rollout.rollout_id, attempt_id=attempt.attempt_id, kind="turn")
            tokens[attempt.attempt_id] = sum(turn.data.get("completion_tokens", 0) for turn in turns)
    return tokens


async def unfinished_of(pids: set[int], store: Store) -> list[str]:
    """The attempts that these workers did not finish."""
    rollouts = await store.query_rollouts()
    attempts = [one for rollout in rollouts for one in await store.query_attempts(rollout.rollout_id)]
    return [
        one.attempt_id
        for one in attempts
        if pid_of(one.worker_id) in pids and one.status is not AttemptStatus.SUCCEEDED
    ]


def pid_of(worker_id: str) -> int:
    """The process of a worker that is a process of its own."""
    return int(worker_id.rpartition(":")[2])

"""What must hold of rollouts after workers were harmed: each ended once, by an attempt that ran to its end."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outrider import RolloutConfig, RolloutRequest, Store


async def enqueue_traced(store: Store, trace: Path, n_rollouts: int, lease_seconds: float) -> list[str]:
    """Rollouts for `chaos_agents:trace`, which may be tried again often."""
    config = RolloutConfig(unresponsive_seconds=lease_seconds, max_attempts=100)
    requests = [RolloutRequest(input={"trace": str(trace), "number": i}, config=config) for i in range(n_rollouts)]
    return [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]


async def check_ended_once(store: Store, ids: Sequence[str], trace: Path) -> None:
    """Nothing is lost, nothing doubled, nothing made up, no lease left behind."""
    ended = (await store.finished_after(0, limit=len(ids) * 2)).items
    assert Counter(rollout.rollout_id for rollout in ended) == Counter(dict.fromkeys(ids, 1)), "lost or doubled"
    assert {rollout.status for rollout in ended} == {"succeeded"}
    assert not (await store.statistics()).next_expiry_at, "a lease was left behind"
    ran = {tuple(line.split()) for line in trace.read_text().splitlines()}
    assert {(rollout.rollout_id, rollout.attempt_id) for rollout in ended} <= ran, "ended without having run"
    retried = [rollout for rollout in ended if rollout.n_attempts > 1]
    assert retried, "the harm was too little to show anything"
    for rollout in retried[:200]:
        statuses = [attempt.status for attempt in await store.query_attempts(rollout.rollout_id)]
        assert statuses.count("succeeded") == 1
        assert statuses[-1] == "succeeded"
        assert (await store.query_events(rollout.rollout_id)).total == 1

"""Teams whose models give token ids, played by real workers on virtual time, and read back as samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from outrider import local_workers, open_store
from outrider.agent import EpisodeKit
from outrider.agent.episode import FurtherPolicy
from outrider.core.chat import Message
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, RolloutRequest
from outrider.core.status import FINAL
from outrider.core.task import Task
from outrider.core.trajectory import Trajectory
from outrider.orchestra import BaseOrchestra
from outrider.orchestra.batch import Plain
from outrider.policy import ChatPolicy, Completion, Usage
from outrider.policy.scripted.tokens import n_tokens, tokens_of
from outrider.store import Store
from outrider.testing import LoopClock, run_virtual
from outrider.train import SampledTrajectory, sampled
from playing import Says, Speaker

LIMIT_SECONDS = 100_000.0


class TokenSpeaker(Speaker):
    """Answers by `says`, in token ids, as `version`; `n_tokens` counts those that it wrote."""

    def __init__(self, says: Says, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        super().__init__(says, seconds)
        self.version = 0
        self.n_tokens = 0

    async def complete(self, messages: Sequence[Message], **kwargs: Any) -> Completion:
        version = self.version
        completion = await super().complete(messages, **kwargs)
        tokens = tokens_of(messages, completion.message, logprob=-0.5)
        n_written = n_tokens(tokens.completion_ids)
        self.n_tokens += n_written
        usage = Usage(prompt_tokens=n_tokens(tokens.prompt_ids), completion_tokens=n_written)
        return replace(completion, tokens=tokens, usage=usage, policy_version=version)


def team_kit(
    team: BaseOrchestra, policies: Mapping[str, ChatPolicy], environments: Mapping[str, Any] | None = None
) -> EpisodeKit:
    """The team with its policies, of which the one without a name is the run's own."""
    return EpisodeKit(
        policy=policies[""],
        environments=environments or {"": Plain()},
        agent=team,
        further={name: FurtherPolicy(policy=policy) for name, policy in policies.items() if name},
    )


def play_team(kit: EpisodeKit, n_tasks: int, *, n_workers: int = 1, slots: int = 4) -> list[SampledTrajectory]:
    """So many questions, two samples of each, played to their end: what can be trained on, by rollout."""

    async def main() -> list[SampledTrajectory]:
        clock = LoopClock()
        async with (
            open_store("memory://", clock=clock) as store,
            local_workers(store, kit, n_workers=n_workers, max_env_num_per_worker=slots, clock=clock),
        ):
            requests = [_request(number, seat) for number in range(n_tasks) for seat in range(2)]
            await store.enqueue_many_rollouts(requests)
            return await _ended(store, len(requests))

    return run_virtual(main(), limit_seconds=LIMIT_SECONDS)


def _request(number: int, seat: int) -> RolloutRequest:
    task = Task(task_id=f"q{number}", question=f"question {number}")
    return RolloutRequest(
        input=task.as_input(),
        rollout_id=f"{task.task_id}.{seat}",
        group_id=task.task_id,
        seed=7,
        metadata={TASK_KEY: task.task_id, SAMPLE_KEY: seat},
    )


async def _ended(store: Store, n: int) -> list[SampledTrajectory]:
    cursor, n_ended = 0, 0
    while n_ended < n:
        feed = await store.finished_after(cursor, wait=100.0)
        cursor, n_ended = feed.cursor, n_ended + len(feed.items)
    found = []
    for rollout in sorted(await store.query_rollouts(status_in=FINAL), key=lambda one: one.rollout_id):
        assert rollout.failure is None, rollout.failure
        events = await store.query_events(rollout.rollout_id)
        found.append(sampled(Trajectory(rollout=rollout, attempt=None, events=events.items), reward=1.0))
    return found

"""A team as an agent, and as a program for whole batches.

```python
orchestra = Orchestra([search, critic], play)                # or a subclass of BaseOrchestra with its own `play`
await orchestra.run(tasks, policy=policy)                    # a batch: rows in the order of the tasks
EpisodeKit(policy=policy, environments=…, agent=orchestra)   # or like any other agent
```
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from outrider.agent.context import Context
from outrider.agent.episode import EpisodeKit, FurtherPolicy
from outrider.agent.protocol import Answer
from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env import Environments
from outrider.orchestra.agent import Agent, agents_of, check_order
from outrider.orchestra.batch import Limits, Plain, SampleOutcome, play_batch
from outrider.orchestra.caller import Caller, Count, Pacing, Planned, estimated
from outrider.orchestra.lockstep import Lockstep
from outrider.orchestra.performance import Performance
from outrider.orchestra.profile import Profile, TeamStatistics
from outrider.orchestra.rows import Row
from outrider.orchestra.team import Team
from outrider.policy import ChatPolicy, Sampling

Play = Callable[[Team], Awaitable[Answer]]
"""A team's program."""

WINDOW = 256


class BatchResult(Struct, frozen=True, kw_only=True):
    """Rows and outcomes in the order of the batch. A sample that failed has no rows."""

    rows: tuple[Row, ...]
    outcomes: tuple[SampleOutcome, ...]
    statistics: TeamStatistics

    def __repr__(self) -> str:
        """In few words: `asyncio.run` writes what it returns into a text that nobody sees."""
        return f"<BatchResult: {len(self.rows)} rows of {len(self.outcomes)} samples>"


class BaseOrchestra(ABC):
    """A team: its agents, and `play`, its program over one sample, which a subclass gives.

    `needs` declares which agents need others to have spoken before: `team.gather` refuses to ask two at once of which
    one needs the other. `count` tells how many tokens a text has. Without it the policy is asked where an agent has a
    limit; else, or if it cannot say, four characters are taken for one. `print_every`: a line about the agents after so
    many samples.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent] | Iterable[Agent],
        *,
        performance: Performance | None = None,
        needs: Mapping[str, Sequence[str]] | None = None,
        count: Count | None = None,
        print_every: int = 0,
    ) -> None:
        self.agents = agents_of(agents)
        self.performance = performance or Performance()
        self.needs = {name: tuple(others) for name, others in (needs or {}).items()}
        check_order(self.agents, self.needs)
        self._count = count
        self._profile = Profile(self.agents, print_every=print_every)

    @abstractmethod
    async def play(self, team: Team) -> Answer:
        """The team's program."""

    async def __call__(self, task: Any, ctx: Context) -> Answer:  # noqa: ARG002 the context has it
        """As an agent: one episode."""
        return await self._played(ctx, Pacing(), self._count or estimated)

    def stats(self) -> TeamStatistics:
        """What the agents have done so far, in all samples that this process has played."""
        return self._profile.statistics()

    async def run(
        self,
        batch: Sequence[Any],
        *,
        policy: ChatPolicy,
        policies: Mapping[str, ChatPolicy] | None = None,
        environments: Environments | None = None,
        sampling: Sampling | None = None,
        seed: int = 0,
        window: int = WINDOW,
        timeout_seconds: float = math.inf,
        max_attempts: int = 1,
        clock: Clock | None = None,
    ) -> BatchResult:
        """Play all samples, at most `window` at once, and give their rows in the order of the batch.

        A sample is a `Task`, a mapping in its form, or a question. One that fails is told in its outcome and disturbs
        no other. The caller opens and closes policies and environments.
        """
        if window < 1 or max_attempts < 1:
            raise InvalidInput(f"window is {window} and max_attempts {max_attempts}; give 1 or more")
        tasks = [_task(sample, number) for number, sample in enumerate(batch)]
        if len({task.task_id for task in tasks}) < len(tasks):
            raise InvalidInput("two samples of the batch have the same task_id; give each its own")
        chosen = {name: self._prepared(each) for name, each in {"": policy, **(policies or {})}.items()}
        if lacking := sorted({agent.policy for agent in self.agents.values()} - chosen.keys()):
            raise InvalidInput(f"agents ask for the policy {lacking[0]!r}, which was not given")
        count = self._count or (getattr(policy, "count", None) if self._is_bounded else None) or estimated

        def kit(pacing: Pacing) -> EpisodeKit:
            async def agent(task: Any, ctx: Context) -> Answer:  # noqa: ARG001 the context has it
                return await self._played(ctx, pacing, count)

            return EpisodeKit(
                policy=chosen[""],
                environments={"": environments or Plain()},
                agent=agent,
                sampling=sampling or Sampling(),
                further={name: FurtherPolicy(policy=each) for name, each in chosen.items() if name},
            )

        limits = Limits(window=window, timeout_seconds=timeout_seconds, max_attempts=max_attempts)
        lockstep = self._lockstep(chosen, timeout_seconds) if self.performance.batch_synchronous else None
        done = await play_batch(kit, tasks, seed=seed, limits=limits, lockstep=lockstep, clock=clock or SystemClock())
        rows = tuple(row for _, rows in done for row in rows)
        return BatchResult(rows=rows, outcomes=tuple(outcome for outcome, _ in done), statistics=self.stats())

    async def _played(self, ctx: Context, pacing: Pacing, count: Count) -> Answer:
        caller = Caller(ctx, count=count, max_tokens=self.performance.max_context_length, pacing=pacing)
        team = Team(ctx, self.agents, self.performance, caller, needs=self.needs)
        try:
            answer = await self.play(team)
            await team.settle()
            return answer
        finally:
            self._profile.add(team.spans, sample=ctx.identity)

    @property
    def _is_bounded(self) -> bool:
        """Whether it matters how many tokens a text has: to count them is to tokenise once more."""
        limits = (self.performance.max_context_length, *(agent.max_context_tokens for agent in self.agents.values()))
        return any(limit is not None for limit in limits)

    def _prepared(self, policy: ChatPolicy) -> ChatPolicy:
        """The policy with its cache of tokens as the switch says, if it has one."""
        caching = getattr(policy, "caching", None)
        chosen: ChatPolicy = policy if caching is None else caching(self.performance.enable_preprocessing_cache)
        return chosen

    def _lockstep(self, policies: Mapping[str, ChatPolicy], seconds: float) -> Lockstep:
        async def spare(name: str, planned: Planned) -> None:
            agent = self.agents[name]
            await policies[agent.policy].complete(planned.messages, sampling=agent.sampling)

        chosen = None if self.performance.enable_agent_skip else spare
        return Lockstep(tuple(self.agents), spare=chosen, spare_seconds=seconds)


class Orchestra(BaseOrchestra):
    """A team whose program is a function."""

    def __init__(self, agents: Mapping[str, Agent] | Iterable[Agent], play: Play, **settings: Any) -> None:
        super().__init__(agents, **settings)
        self._program = play

    async def play(self, team: Team) -> Answer:
        return await self._program(team)


def _task(sample: Any, number: int) -> Task:
    return sample if isinstance(sample, Task) else Task.of(sample, task_id=str(number))

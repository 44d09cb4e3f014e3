"""An episode in an environment: reset it, let the agent act on it with a model, score it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from outrider.agent.context import Context
from outrider.agent.conversation import Conversation, RecordedEnvironment, RecordedPolicy
from outrider.agent.function import call_agent, check_signature
from outrider.agent.lending import Reopening
from outrider.agent.mcp import McpEnvironment, McpTools
from outrider.agent.protocol import AgentFunction, Episode, Result, StopReason
from outrider.core.chat import assistant
from outrider.core.errors import AgentError, AttemptError, ContextOverflow, EnvError, ScoreError, boundary
from outrider.core.ledger import PIN_KEY, SAMPLING_KEY
from outrider.env import Environment, Environments
from outrider.policy import ChatPolicy, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKit:
    """What the episodes of one worker are made of. The environment is the one of the rollout's tag.

    Without a `reopening`, the `policy` is the one for every version that a trainer publishes.
    """

    policy: ChatPolicy
    environments: Mapping[str, Environments]
    agent: AgentFunction
    sampling: Sampling = field(default_factory=Sampling)
    mcp: McpTools | None = None
    reopening: Reopening | None = None

    def __post_init__(self) -> None:
        check_signature(self.agent)

    def episodes(self, ctx: Context) -> Episode:
        """The episode of one attempt: an `EpisodeFactory`."""
        tag = ctx.rollout.tag
        found = self.environments.get(tag or "")
        if found is None and tag is None and len(self.environments) == 1:
            found = next(iter(self.environments.values()))
        if found is None:
            there = ", ".join(sorted(self.environments)) or "none"
            raise EnvError(f"there is no environment for the tag {tag!r}; there are {there}", stage="env.make")
        return EnvironmentEpisode(self, found)


class EnvironmentEpisode:
    """One attempt in one environment. It boots no machine."""

    def __init__(self, kit: EpisodeKit, environments: Environments) -> None:
        self._kit = kit
        self._environments = environments
        self._inner: Environment | None = None

    async def boot(self, ctx: Context) -> None: ...

    async def setup(self, ctx: Context) -> None:
        with boundary(EnvError, "env.make"):
            self._inner = self._environments.make(ctx.task)
        if self._kit.mcp is not None:
            self._inner = McpEnvironment(self._inner, self._kit.mcp)
        self._conversation = Conversation(ctx)
        self._env = RecordedEnvironment(self._inner, self._conversation, ctx.clock)
        policy = RecordedPolicy(
            partial(
                ctx.lender.lend,
                self._kit.policy,
                self._kit.reopening,
                pin=_pin_of(ctx.rollout.metadata),
                seconds=ctx.limits.turn_seconds,
            ),
            self._conversation,
            session=ctx.identity,
            sampling=_own_sampling(self._kit.sampling, ctx.rollout.metadata),
            seed=ctx.seed,
        )
        ctx.equip(policy, self._env, await self._env.open(ctx.seed))

    async def act(self, ctx: Context) -> Result:
        """Let the agent work. A conversation that became too long for the model is a result, not a failure."""
        try:
            answer = await self._answer(ctx)
        except ContextOverflow:
            return Result(stop_reason=StopReason.CONTEXT)
        if isinstance(answer, str) and not self._env.has_ended:
            await self._env.step(assistant(answer))
        result = _result_of(answer)
        return result if result.stop_reason else replace(result, stop_reason=self._stop_reason())

    async def score(self, ctx: Context, result: Result) -> Result:  # noqa: ARG002 the environment knows its task
        if result.reward is not None:
            return replace(result, metrics={**self._conversation.metrics, **result.metrics})
        assert self._inner is not None
        with boundary(ScoreError, "env.score"):
            score = await self._inner.score()
        if score is None:
            metrics = {**self._conversation.metrics, **result.metrics}
            return replace(result, reward=self._conversation.reward, metrics=metrics)
        return replace(
            result,
            reward=score.reward,
            output=score.output if result.output is None or score.output is not None else result.output,
            metrics={**self._conversation.metrics, **result.metrics, **score.metrics},
            explanation=score.explanation,
        )

    async def close(self, ctx: Context) -> None:  # noqa: ARG002 the environment is its own
        if self._inner is not None:
            await self._inner.close()

    async def _answer(self, ctx: Context) -> object:
        try:
            return await call_agent(self._kit.agent, ctx.rollout.input, ctx)
        except Exception as exc:
            origin = _origin(exc)
            if origin is None or origin is exc:
                raise
        raise origin

    def _stop_reason(self) -> StopReason:
        if self._env.terminated:
            return StopReason.TERMINATED
        return StopReason.TRUNCATED if self._env.truncated else StopReason.ANSWERED


def _pin_of(metadata: Mapping[str, Any]) -> int | None:
    """The only version of the policy that the rollout may be run with, if it names one."""
    pin = metadata.get(PIN_KEY)
    if pin is not None and (type(pin) is not int or pin < 0):
        raise AgentError(f"the rollout's {PIN_KEY} is {pin!r:.40}; give the number of a version", stage="setup")
    return pin


def _own_sampling(sampling: Sampling, metadata: Mapping[str, Any]) -> Sampling:
    """The sampling with what the rollout has of its own."""
    given = metadata.get(SAMPLING_KEY)
    if given is None:
        return sampling
    if not isinstance(given, Mapping):
        raise AgentError(f"the rollout's {SAMPLING_KEY} is {given!r:.40}; give names and values", stage="setup")
    known = Sampling.__struct_fields__
    if unknown := sorted(str(name) for name in given if name not in known):
        raise AgentError(
            f"the rollout's {SAMPLING_KEY} has no {', '.join(unknown)}; there are {', '.join(known)}", stage="setup"
        )
    try:
        return msgspec.convert({**msgspec.structs.asdict(sampling), **given}, Sampling)
    except msgspec.ValidationError as exc:
        raise AgentError(f"the rollout's {SAMPLING_KEY}: {exc}", stage="setup") from exc


def _result_of(answer: object) -> Result:
    if isinstance(answer, Result):
        return answer
    if isinstance(answer, str):
        return Result(output=answer)
    if answer is None or isinstance(answer, int | float):
        return Result(reward=None if answer is None else float(answer))
    kind = type(answer).__name__
    raise AgentError(f"the agent returned {kind}; return a text, a number, a Result or None", stage="agent")


def _origin(error: BaseException) -> AttemptError | None:
    """The failure that has been attributed already, inside of what agent code and task groups made of it."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        found = left.pop(0)
        if found is None or id(found) in seen:
            continue
        if isinstance(found, AttemptError):
            return found
        seen.add(id(found))
        if isinstance(found, BaseExceptionGroup):
            left.extend(found.exceptions)
        left.extend((found.__cause__, found.__context__))
    return None

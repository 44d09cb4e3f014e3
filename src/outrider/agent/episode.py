"""An episode in an environment: reset it, let the agent act on it with a model, score it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from outrider.agent.context import Context
from outrider.agent.conversation import Conversation, RecordedEnvironment, RecordedPolicy
from outrider.agent.function import caller_of, check_signature
from outrider.agent.lending import Reopening
from outrider.agent.mcp import McpEnvironment, McpTools
from outrider.agent.protocol import AgentFunction, Episode, Result, StopReason
from outrider.agent.supply import Supply, while_held
from outrider.core.artifact import to_data
from outrider.core.chat import assistant
from outrider.core.decoding import convert
from outrider.core.errors import AgentError, AttemptError, ContextOverflow, EnvError, PolicyError, ScoreError, boundary
from outrider.core.event import EventKind
from outrider.core.ledger import PIN_KEY, SAMPLING_KEY
from outrider.core.machine import AWAITED, BOARDED
from outrider.core.published import PublishedPolicy, published_in
from outrider.env import Environment, Environments, needs_of
from outrider.policy import ChatPolicy, Sampling
from outrider.pool.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherPolicy:
    """A policy beside the run's own. With a `reopening` it goes where a trainer publishes it.

    `sampling` is its own; None: that of the run.
    """

    policy: ChatPolicy
    reopening: Reopening | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKit:
    """What the episodes of one worker are made of. The environment is the one of the rollout's tag.

    Without a `reopening`, the `policy` is the one for every version that a trainer publishes. Episodes of environments
    that act on machines lease theirs from the `supply`, but for those of the tags that are `without_machines`.
    """

    policy: ChatPolicy
    environments: Mapping[str, Environments]
    agent: AgentFunction
    sampling: Sampling = field(default_factory=Sampling)
    mcp: McpTools | None = None
    reopening: Reopening | None = None
    supply: Supply | None = None
    without_machines: frozenset[str] = frozenset()
    further: Mapping[str, FurtherPolicy] = field(default_factory=dict)
    """Policies beside the run's own, by name, for agents that ask several."""

    def __post_init__(self) -> None:
        check_signature(self.agent)

    def episodes(self, ctx: Context) -> Episode:
        """The episode of one attempt: an `EpisodeFactory`."""
        tag = ctx.rollout.tag
        if tag is None and len(self.environments) == 1:
            (tag,) = self.environments
        found = self.environments.get(tag or "")
        if found is None:
            there = ", ".join(sorted(self.environments)) or "none"
            raise EnvError(f"there is no environment for the tag {tag!r}; there are {there}", stage="env.make")
        return EnvironmentEpisode(self, found, None if tag in self.without_machines else self.supply)


class EnvironmentEpisode:
    """One attempt in one environment, on a machine if that uses one and there is a supply."""

    def __init__(self, kit: EpisodeKit, environments: Environments, supply: Supply | None) -> None:
        self._kit = kit
        self._environments = environments
        self._supply = supply
        self._inner: Environment | None = None
        self._lease: Lease | None = None

    @property
    def takes_machine(self) -> bool:
        return self._supply is not None and needs_of(self._environments) is not None

    async def boot(self, ctx: Context) -> None:
        with boundary(EnvError, "env.make"):
            self._inner = self._environments.make(ctx.task)
        if self._supply is None or not self.takes_machine:
            return
        ctx.log(AWAITED)
        self._lease = lease = await self._supply.lease(ctx.rollout.rollout_id)
        ctx.log(BOARDED, machine_id=lease.machine_id, epoch=lease.epoch)
        with boundary(EnvError, "env.board"):
            self._inner.board(lease)

    async def setup(self, ctx: Context) -> None:
        assert self._inner is not None, "boot comes first"
        if self._kit.mcp is not None:
            self._inner = McpEnvironment(self._inner, self._kit.mcp)
        self._conversation = Conversation(ctx)
        self._env = RecordedEnvironment(self._inner, self._conversation, ctx.clock)
        opening = await self._env.open(ctx.seed)
        pin = await _pin_of(ctx)
        further = {name: self._recorded(ctx, each, pin, name) for name, each in self._kit.further.items()}
        ctx.equip(self._recorded(ctx, self._kit, pin), self._env, opening, policies=further)

    def _recorded(
        self, ctx: Context, own: "EpisodeKit | FurtherPolicy", pin: int | PublishedPolicy | None, name: str = ""
    ) -> RecordedPolicy:
        lend = partial(
            ctx.lender.lend,
            own.policy,
            own.reopening,
            name=name,
            pin=pin,
            seconds=ctx.limits.turn_seconds,
        )
        return RecordedPolicy(
            lend,
            self._conversation,
            session=ctx.identity,
            sampling=_own_sampling(own.sampling or self._kit.sampling, ctx.rollout.metadata),
            seed=ctx.seed,
        )

    async def act(self, ctx: Context) -> Result:
        """Let the agent work. A conversation that became too long for the model is a result, not a failure."""
        try:
            answer = await (self._answer(ctx) if self._lease is None else while_held(self._lease, self._answer(ctx)))
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

    async def close(self, ctx: Context) -> None:
        try:
            await self._close(ctx)
        finally:
            if self._lease is not None:
                self._lease.release()

    async def _close(self, ctx: Context) -> None:
        if self._inner is None:
            return
        try:
            with boundary(EnvError, "env.artifacts"):
                for artifact in self._inner.artifacts():
                    ctx.record(EventKind.ARTIFACT, artifact.name, to_data(artifact))
        finally:
            await self._inner.close()

    async def _answer(self, ctx: Context) -> object:
        try:
            return await caller_of(self._kit.agent)(ctx.rollout.input, ctx)
        except Exception as exc:
            origin = _origin(exc)
            if origin is None or origin is exc:
                raise
        raise origin

    def _stop_reason(self) -> StopReason:
        if self._env.terminated:
            return StopReason.TERMINATED
        return StopReason.TRUNCATED if self._env.truncated else StopReason.ANSWERED


async def _pin_of(ctx: Context) -> int | PublishedPolicy | None:
    """The only policy that the rollout may be run with: by its version, or that of the resources it is pinned to."""
    pin = ctx.rollout.metadata.get(PIN_KEY)
    if pin is not None and (type(pin) is not int or pin < 0):
        raise AgentError(f"the rollout's {PIN_KEY} is {pin!r:.40}; give the number of a version", stage="setup")
    if pin is None and ctx.rollout.config.resources_version is not None:
        try:
            return published_in(await ctx.resources())
        except msgspec.ValidationError as exc:
            version = ctx.rollout.config.resources_version
            raise PolicyError(f"resources {version} hold a policy that cannot be read: {exc}", stage="setup") from exc
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
        return convert({**msgspec.structs.asdict(sampling), **given}, Sampling)
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

"""What a worker needs to run episodes, described in a form that crosses process borders, and opened from it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from outrider.agent import AgentFunction, EpisodeFactory
from outrider.agent.episode import EpisodeKit
from outrider.agent.function import agent_of, episodes_of
from outrider.agent.lending import Reopening
from outrider.agent.mcp import McpServer, open_mcp_tools
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env import Environments
from outrider.env.registry import environments_of
from outrider.env.templates import templated
from outrider.policy import ChatPolicy, Sampling
from outrider.policy.opening import open_policy
from outrider.policy.spec import Budget, PolicySpec
from outrider.pool.journal import MachineJournal
from outrider.runner.machines import SupplySpec, check_supply, open_supply
from outrider.runner.meter import Meter, MeteredPolicy


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """Which environment a tag stands for: a name the registry knows, and its configuration.

    `system_template` takes the place of its system message, `turn_template` goes around what it says each turn.
    """

    name: str
    config: Mapping[str, Any] = {}
    system_template: str | None = None
    turn_template: str | None = None


class EpisodeSpec(Struct, frozen=True, kw_only=True):
    """How rollouts are run: which agent, on which environment (by the rollout's tag), asking which policy.

    Without a policy and environments, `agent` is a plain function that does it all by itself. What is None is left to
    the agent; one that is a plain function takes no settings. `mcp` are servers whose tools are offered too; `supply`
    is where environments that act on machines get them.
    """

    agent: str = "chat"
    policy: PolicySpec | None = None
    environments: Mapping[str, EnvironmentSpec] = {}
    sampling: Sampling = Sampling()
    max_turns: int | None = None
    max_context_tokens: int | None = None
    mcp: tuple[McpServer, ...] = ()
    supply: SupplySpec | None = None


@asynccontextmanager
async def open_episodes(
    spec: EpisodeSpec, meter: Meter, *, worker: int = 0, journal: MachineJournal | None = None
) -> AsyncIterator[EpisodeFactory]:
    """Episodes as `spec` describes them; what they share is opened here and closed at the end.

    `worker` is the worker's number, and `journal` where its own machines are written down, if it has any.
    """
    if spec.policy is None:
        yield episodes_of(spec.agent)
        return
    agent = _agent(spec)
    async with AsyncExitStack() as stack:
        policy = await open_policy(spec.policy)
        stack.push_async_callback(policy.close)
        environments = {}
        for tag, kind in spec.environments.items():
            environments[tag] = _environments(kind)
            stack.push_async_callback(environments[tag].close)
        mcp = None
        if spec.mcp:
            mcp = await open_mcp_tools(spec.mcp)
            stack.push_async_callback(mcp.close)
        supply = None
        if spec.supply is not None:
            supply = await stack.enter_async_context(open_supply(spec.supply, worker=worker, journal=journal))
        kit = EpisodeKit(
            policy=MeteredPolicy(policy, meter),
            environments=environments,
            agent=agent,
            sampling=spec.sampling,
            mcp=mcp,
            reopening=Reopening(spec=spec.policy, open=partial(_reopened, meter=meter)),
            supply=supply,
        )
        yield kit.episodes


def _environments(kind: EnvironmentSpec) -> Environments:
    return templated(
        environments_of(kind.name, kind.config),
        system_template=kind.system_template,
        turn_template=kind.turn_template,
    )


async def _reopened(spec: PolicySpec, *, meter: Meter) -> ChatPolicy:
    """The policy where a trainer has published another model or endpoint."""
    if spec.budget != Budget():
        raise InvalidInput("a policy with a budget cannot be moved, since its budget would begin anew; give none")
    return MeteredPolicy(await open_policy(spec), meter)


def _agent(spec: EpisodeSpec) -> AgentFunction:
    settings = {"max_turns": spec.max_turns, "max_context_tokens": spec.max_context_tokens}
    return agent_of(spec.agent, **{name: value for name, value in settings.items() if value is not None})


async def check_episodes(spec: EpisodeSpec, tasks: Sequence[Task] = ()) -> None:
    """Raise `InvalidInput` if rollouts of `tasks` could not run as described: one message instead of many failures."""
    if spec.policy is None:
        episodes_of(spec.agent)
        return
    _agent(spec)
    for kind in spec.environments.values():
        environments = _environments(kind)
        try:
            check_supply(spec.supply, environments, kind.name)
            await environments.check()
            for task in tasks:
                environments.make(task)
        finally:
            await environments.close()
    if spec.mcp:
        await (await open_mcp_tools(spec.mcp)).close()
    policy = await open_policy(spec.policy)
    try:
        await policy.check()
    finally:
        await policy.close()

"""What a worker needs to run episodes, described in a form that crosses process borders, and opened from it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.agent import AgentFunction, EpisodeFactory
from outrider.agent.episode import EpisodeKit, FurtherPolicy
from outrider.agent.function import agent_of, episodes_of
from outrider.agent.lending import Reopening
from outrider.agent.mcp import McpServer, open_mcp_tools
from outrider.core.clock import SystemClock
from outrider.core.errors import InvalidInput
from outrider.core.secret import bare
from outrider.core.task import Task
from outrider.env import Environments
from outrider.env.registry import environments_of
from outrider.env.templates import templated
from outrider.orchestra import BaseOrchestra
from outrider.orchestra.teams.registry import PREFIX as TEAM
from outrider.orchestra.teams.registry import READY_MADE, team_of
from outrider.policy import ChatPolicy, Sampling
from outrider.policy.budget import Purse
from outrider.policy.opening import open_policy
from outrider.policy.spec import Budget, PolicySpec
from outrider.pool.journal import MachineJournal
from outrider.runner.machines import SupplySpec, check_supply, open_supply
from outrider.runner.meter import Meter, MeteredPolicy


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """Which environment a tag stands for: a name the registry knows, and its configuration.

    `system_template` takes the place of its system message, `turn_template` goes around what it says each turn. Not
    `on_machines`, its episodes do without, also where those of other tags have some.
    """

    name: str
    config: Mapping[str, Any] = {}
    system_template: str | None = None
    turn_template: str | None = None
    on_machines: bool = True


class EpisodeSpec(Struct, frozen=True, kw_only=True):
    """How rollouts are run: which agent, on which environment (by the rollout's tag), asking which policy.

    Without a policy and environments, `agent` is a plain function that does it all by itself. What is None is left to
    the agent; one that is a plain function takes no settings. `team` are those of a team, `policies` further ones by
    name for its agents; the budget of `policy` is for the calls of all. `mcp` are servers whose tools are offered too;
    `supply` is where environments that act on machines get them.
    """

    agent: str = "chat"
    team: Mapping[str, Any] = {}
    policy: PolicySpec | None = None
    policies: Mapping[str, PolicySpec] = {}
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
        policies = {}
        purse = Purse(spec.policy.budget, SystemClock())
        for name, each in {"": spec.policy, **_further(spec, spec.policy)}.items():
            opened = await open_policy(each, purse=purse)
            stack.push_async_callback(opened.close)
            reopening = Reopening(spec=each, open=partial(_reopened, meter=meter))
            policies[name] = FurtherPolicy(policy=MeteredPolicy(opened, meter), reopening=reopening)
        own = policies.pop("")
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
            policy=own.policy,
            environments=environments,
            agent=agent,
            sampling=spec.sampling,
            mcp=mcp,
            reopening=own.reopening,
            supply=supply,
            without_machines=frozenset(tag for tag, kind in spec.environments.items() if not kind.on_machines),
            further=policies,
        )
        yield kit.episodes


def _environments(kind: EnvironmentSpec) -> Environments:
    return templated(
        environments_of(kind.name, bare(kind.config)),
        system_template=kind.system_template,
        turn_template=kind.turn_template,
    )


def _further(spec: EpisodeSpec, own: PolicySpec) -> dict[str, PolicySpec]:
    """The policies beside the run's own, with its budget, which is one for all of them."""
    for name, policy in spec.policies.items():
        if not name:
            raise InvalidInput("a policy has no name; the run's own is `policy`, those in `policies` each need one")
        if policy.budget != Budget():
            raise InvalidInput(f"policy {name!r} has a budget; give it to the run's own policy, it is for all calls")
    return {name: replace(policy, budget=own.budget) for name, policy in spec.policies.items()}


async def _reopened(spec: PolicySpec, *, meter: Meter) -> ChatPolicy:
    """The policy where a trainer has published another model or endpoint."""
    if spec.budget != Budget():
        raise InvalidInput("a policy with a budget cannot be moved, since its budget would begin anew; give none")
    return MeteredPolicy(await open_policy(spec), meter)


def _agent(spec: EpisodeSpec) -> AgentFunction:
    settings = {"max_turns": spec.max_turns, "max_context_tokens": spec.max_context_tokens}
    given = {name: value for name, value in settings.items() if value is not None}
    if spec.agent.startswith(TEAM):
        return team_of(spec.agent, {**given, **spec.team})
    if spec.team:
        raise InvalidInput(
            f"there are settings for a team ({', '.join(spec.team)}), and the agent is {spec.agent!r}; "
            f"name {', '.join(TEAM + name for name in READY_MADE)}, or your own as {TEAM}module:function"
        )
    return agent_of(spec.agent, **given)


async def check_episodes(spec: EpisodeSpec, tasks: Sequence[Task] = ()) -> None:
    """Raise `InvalidInput` if rollouts of `tasks` could not run as described: one message instead of many failures."""
    if spec.policy is None:
        episodes_of(spec.agent)
        return
    further = _further(spec, spec.policy)
    agent = _agent(spec)
    if isinstance(agent, BaseOrchestra):
        _check_team(agent, further)
    for kind in spec.environments.values():
        environments = _environments(kind)
        try:
            check_supply(spec.supply if kind.on_machines else None, environments, kind.name)
            await environments.check()
            for task in tasks:
                environments.make(task)
        finally:
            await environments.close()
    if spec.mcp:
        await (await open_mcp_tools(spec.mcp)).close()
    for name, each in {"": spec.policy, **further}.items():
        try:
            await _check_policy(each)
        except InvalidInput as exc:
            if not name:
                raise
            raise InvalidInput(f"policy {name!r}: {exc}") from exc


async def _check_policy(spec: PolicySpec) -> None:
    policy = await open_policy(spec)
    try:
        await policy.check()
    finally:
        await policy.close()


def _check_team(team: BaseOrchestra, policies: Mapping[str, PolicySpec]) -> None:
    for agent in team.agents.values():
        if agent.policy and agent.policy not in policies:
            raise InvalidInput(
                f"agent {agent.name!r} asks the policy {agent.policy!r}, which the run has not; "
                f"give one: --policy {agent.policy}=MODEL, or `policies: {{{agent.policy}: {{model: …}}}}`"
            )

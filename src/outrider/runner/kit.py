"""What a worker needs to run episodes, described in a form that crosses process borders, and opened from it."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.agent import AgentFunction, EpisodeFactory
from outrider.agent.episode import EpisodeKit, FurtherPolicy
from outrider.agent.function import BUNDLED, agent_of, episodes_of
from outrider.agent.lending import Reopening
from outrider.agent.mcp import McpServer, open_mcp_tools
from outrider.core.bounds import PositiveCount, check_bounds
from outrider.core.chat import ToolSpec
from outrider.core.clock import SystemClock
from outrider.core.errors import InvalidInput
from outrider.core.loading import users_code
from outrider.core.secret import bare
from outrider.core.task import Task
from outrider.env import Environments
from outrider.env.registry import BUILT_IN, config_fields, environments_of, is_built_in
from outrider.env.templates import templated
from outrider.orchestra import BaseOrchestra
from outrider.orchestra.teams.registry import PREFIX as TEAM
from outrider.orchestra.teams.registry import READY_MADE, team_of
from outrider.policy import ChatPolicy, Probe, Sampling
from outrider.policy.budget import Purse
from outrider.policy.opening import exposed_secrets, open_policy
from outrider.policy.spec import Budget, PolicySpec
from outrider.pool.journal import MachineJournal
from outrider.runner.machines import SupplySpec, check_supply, open_supply
from outrider.runner.meter import Meter, MeteredPolicy

_log = logging.getLogger(__name__)

_WITHOUT_TOOLS = (
    "--agent react (agent: react in a file), which writes calls as text; vLLM takes tools when it is started with "
    "--enable-auto-tool-choice and --tool-call-parser"
)
_NO_INSTRUCTIONS = """give --env instructions="''" and write the rules into the questions, or """
_WITHOUT_SYSTEM = "serve it with a chat template that takes them (vLLM: --chat-template FILE)"


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """Which environment a tag stands for: a name the registry knows, and its configuration.

    `system_template` takes the place of its system message, `turn_template` goes around what it says each turn;
    `system_prompt` is put before the system message as it stands. Not `on_machines`, its episodes do without, also
    where those of other tags have some.
    """

    name: str
    config: Mapping[str, Any] = {}
    system_template: str | None = None
    turn_template: str | None = None
    system_prompt: str | None = None
    on_machines: bool = True


class EpisodeSpec(Struct, frozen=True, kw_only=True):
    """How rollouts are run: which agent, on which environment (by the rollout's tag), asking which policy.

    Without a policy and environments, `agent` is a plain function that does it all by itself. What is None is left to
    the agent; one that is a plain function takes no settings. `team` are those of a team, `policies` further ones by
    name for its agents; the budget of `policy` is for the calls of all, `sampling` too but for those that `sampling_of`
    names. `mcp` are servers whose tools are offered too;
    `supply` is where environments that act on machines get them.
    """

    agent: str = "chat"
    team: Mapping[str, Any] = {}
    policy: PolicySpec | None = None
    policies: Mapping[str, PolicySpec] = {}
    environments: Mapping[str, EnvironmentSpec] = {}
    sampling: Sampling = Sampling()
    sampling_of: Mapping[str, Sampling] = {}
    max_turns: PositiveCount | None = None
    max_context_tokens: PositiveCount | None = None
    mcp: tuple[McpServer, ...] = ()
    supply: SupplySpec | None = None

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def is_built_in(self) -> bool:
        """Whether it runs no agent, team or environment of the user's, which may block the event loop."""
        names = (kind.name for kind in self.environments.values())
        return ":" not in self.agent.removeprefix(TEAM) and all(map(is_built_in, names))


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
            sampling = spec.sampling_of.get(name)
            policies[name] = FurtherPolicy(policy=MeteredPolicy(opened, meter), reopening=reopening, sampling=sampling)
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
        system_prompt=kind.system_prompt,
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


async def check_episodes(spec: EpisodeSpec, tasks: Sequence[Task] = (), *, ask_servers: bool = True) -> None:
    """Raise `InvalidInput` if rollouts of `tasks` could not run as described: one message instead of many failures.

    Not `ask_servers`, whether models can be reached is found out by the rollouts. Logs a warning for each secret that
    would leave this machine unencrypted.
    """
    for warning in dict.fromkeys(warning for each in _policies(spec).values() for warning in exposed_secrets(each)):
        _log.warning("%s", warning)
    await check_policies(spec, await check_environments(spec, tasks), ask_servers=ask_servers)


async def check_environments(spec: EpisodeSpec, tasks: Sequence[Task] = ()) -> Probe:
    """All of `check_episodes` but for the policies; what the agent will send to a model."""
    if spec.policy is None:
        episodes_of(spec.agent)
        return Probe()
    agent = _agent(spec)
    if isinstance(agent, BaseOrchestra):
        _check_team(agent, _further(spec, spec.policy))
    probes = []
    for kind in spec.environments.values():
        environments = _environments(kind)
        tools: tuple[ToolSpec, ...] = ()
        try:
            check_supply(spec.supply if kind.on_machines else None, environments, kind.name)
            with users_code(f"environment {kind.name!r}"):
                await environments.check()
                for task in tasks:
                    made = environments.make(task)
                    if kind.name in BUILT_IN and not tools:
                        tools = made.tools
        finally:
            await environments.close()
        if kind.name in BUILT_IN and spec.agent in BUNDLED:
            probes.append(_probe_of(spec.agent, kind, tools))
    if spec.mcp:
        mcp = await open_mcp_tools(spec.mcp)
        await mcp.close()
        if spec.agent == "chat":
            probes.append(Probe(tools=mcp.specs, without_tools=_WITHOUT_TOOLS))
    return joined(probes)


def _probe_of(agent: str, kind: EnvironmentSpec, tools: tuple[ToolSpec, ...]) -> Probe:
    """What a bundled agent sends in a built-in environment; other agents and environments send what they like."""
    describes_tools = agent == "react" and bool(tools)
    has_system = kind.config.get("instructions") != "" or kind.system_prompt or kind.system_template
    settings = config_fields(kind.name)
    return Probe(
        tools=() if describes_tools else tools,
        has_system=describes_tools or bool(has_system),
        without_tools=("--env calculator=false, or " if "calculator" in settings else "") + _WITHOUT_TOOLS,
        without_system=(_NO_INSTRUCTIONS if "instructions" in settings else "") + _WITHOUT_SYSTEM,
    )


def joined(probes: Sequence[Probe]) -> Probe:
    """What any of them holds."""
    return Probe(
        tools=next((each.tools for each in probes if each.tools), ()),
        has_system=any(each.has_system for each in probes),
        without_tools=next((each.without_tools for each in probes if each.without_tools), ""),
        without_system=next((each.without_system for each in probes if each.without_system), ""),
    )


async def check_policies(spec: EpisodeSpec, probe: Probe, *, ask_servers: bool = True) -> None:
    """Raise `InvalidInput` if a policy cannot be opened, or does not answer what `probe` holds."""
    for name, each in _policies(spec).items():
        sampling = spec.sampling_of.get(name, spec.sampling)
        try:
            await _check_policy(each, sampling, Probe() if name else probe, ask_servers=ask_servers)
        except InvalidInput as exc:
            if not name:
                raise
            raise InvalidInput(f"policy {name!r}: {exc}") from exc


def _policies(spec: EpisodeSpec) -> dict[str, PolicySpec]:
    """All policies by name; the run's own has none."""
    return {} if spec.policy is None else {"": spec.policy, **_further(spec, spec.policy)}


async def _check_policy(spec: PolicySpec, sampling: Sampling, probe: Probe, *, ask_servers: bool) -> None:
    policy = await open_policy(spec)
    try:
        if ask_servers:
            await policy.check(sampling, probe)
    finally:
        await policy.close()


def _check_team(team: BaseOrchestra, policies: Mapping[str, PolicySpec]) -> None:
    for agent in team.agents.values():
        if agent.policy and agent.policy not in policies:
            raise InvalidInput(
                f"agent {agent.name!r} asks the policy {agent.policy!r}, which the run has not; "
                f"give one: --policy {agent.policy}=MODEL, or `policies: {{{agent.policy}: {{model: …}}}}`"
            )

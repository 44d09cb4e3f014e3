"""Teams by name: the ready-made ones, and a user's own, with what a run tells them."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from outrider.agent.function import made
from outrider.core.bounds import PositiveCount, check_bounds
from outrider.core.errors import InvalidInput
from outrider.core.loading import load
from outrider.core.settings import settings_of
from outrider.orchestra.agent import Agent, hint
from outrider.orchestra.context import Eviction
from outrider.orchestra.orchestra import BaseOrchestra
from outrider.orchestra.performance import Performance
from outrider.orchestra.teams.debate import debate
from outrider.orchestra.teams.planner_actor import planner_actor
from outrider.orchestra.teams.proposer_solver import proposer_solver
from outrider.orchestra.teams.router import router
from outrider.orchestra.teams.search_critic import search_critic
from outrider.orchestra.teams.solver_verifier import solver_verifier
from outrider.policy import Sampling

PREFIX = "team:"
"""What begins the name of an agent that is a team."""

READY_MADE: Mapping[str, Callable[..., BaseOrchestra]] = MappingProxyType(
    {
        "search-critic": search_critic,
        "router": router,
        "solver-verifier": solver_verifier,
        "planner-actor": planner_actor,
        "debate": debate,
        "proposer-solver": proposer_solver,
    }
)


class AgentChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may say about one agent of a team; None leaves it as it is."""

    policy: str | None = None
    system: str | None = None
    prompt: str | None = None
    sampling: Sampling | None = None
    max_context_tokens: PositiveCount | None = None
    eviction: Eviction | None = None

    def __post_init__(self) -> None:
        check_bounds(self)


class TeamChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may say about any team, whoever made it."""

    performance: Performance | None = None
    agents: Mapping[str, AgentChanges] = {}


def team_of(name: str, settings: Mapping[str, Any] | None = None) -> BaseOrchestra:
    """The team called `team:NAME`, a ready-made one, or `team:module:name`, a user's own.

    The latter names a team, or a function or class that makes one. `settings` are those of whoever makes it, and the
    fields of `TeamChanges`.
    """
    known = TeamChanges.__struct_fields__
    given = dict(settings or {})
    changes = settings_of(
        TeamChanges, {key: given.pop(key) for key in known if key in given}, f"the settings of {name}"
    )
    found = _found(name)
    if isinstance(found, BaseOrchestra):
        if given:
            raise InvalidInput(
                f"{name} is made already and takes no {next(iter(given))}, only {' and '.join(known)}; "
                "name a function that makes it"
            )
        team: Any = found
    else:
        _check_names(name, found, given)
        team = made(name, found, given)
    if not isinstance(team, BaseOrchestra):
        raise InvalidInput(f"{name} makes a {type(team).__name__}; return an Orchestra, or a BaseOrchestra of your own")
    return _changed(team, changes, name)


def _found(name: str) -> Any:
    short = name.removeprefix(PREFIX)
    if short in READY_MADE:
        return READY_MADE[short]
    if ":" not in short:
        near = get_close_matches(short, READY_MADE, n=1)
        there = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(READY_MADE)}"
        raise InvalidInput(f"there is no team {short!r}; {there} Your own is {PREFIX}module:function")
    found = load(short, "team", such_as="my_teams:build")
    if not (callable(found) or isinstance(found, BaseOrchestra)):
        raise InvalidInput(f"{name} is a {type(found).__name__}; name a team, or a function that makes one")
    return found


def _check_names(name: str, maker: Callable[..., Any], given: Mapping[str, Any]) -> None:
    parameters = inspect.signature(maker).parameters.values()
    takes = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(takes) < len(parameters) and maker not in READY_MADE.values():
        return
    takes += TeamChanges.__struct_fields__
    for key in given:
        if key not in takes:
            near = get_close_matches(key, takes, n=1)
            there = f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes)}"
            raise InvalidInput(f"{name} has no setting {key!r}; {there}")


def _changed(team: BaseOrchestra, changes: TeamChanges, name: str) -> BaseOrchestra:
    changed = copy(team)
    changed.performance = changes.performance or team.performance
    changed.agents = dict(team.agents)
    for agent, values in changes.agents.items():
        if agent not in team.agents:
            raise InvalidInput(f"{name} has no agent {agent!r}; {hint(agent, team.agents)}")
        changed.agents[agent] = _with(team.agents[agent], values)
    return changed


def _with(agent: Agent, values: AgentChanges) -> Agent:
    return replace(agent, **{key: value for key, value in asdict(values).items() if value is not None})

"""An agent of a team: plain values. Who it is, what it is told, what it may read, and how its words are understood."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from outrider.core.bounds import PositiveCount, check_bounds
from outrider.core.errors import InvalidInput
from outrider.orchestra.context import Eviction
from outrider.orchestra.prompt import Prompt
from outrider.policy import Sampling

Parse = Callable[[str], Any]
"""What an agent's words mean; a `VerdictRule` gives a `Verdict`."""


PROGRAM = "team"
"""The author of what a program itself puts into the context, by `team.note`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """`prompt` is the user's message, with places that the team fills in: see `Prompt`; `system` the message before it.

    `policy` names one of the run's policies; empty: the run's own. `reads` are the agents whose words it sees where its
    prompt has `{context}`; None: those of all. `max_context_tokens` bounds its whole prompt: words of others are left
    out by the rule of `eviction`, the question and the system message never.
    """

    name: str
    prompt: str
    system: str = ""
    policy: str = ""
    reads: tuple[str, ...] | None = None
    parse: Parse = str.strip
    sampling: Sampling = field(default_factory=Sampling)
    max_context_tokens: PositiveCount | None = None
    eviction: Eviction = Eviction.OLDEST

    def __post_init__(self) -> None:
        if not self.name or "." in self.name or "/" in self.name:
            raise InvalidInput(f"an agent is named {self.name!r}; give a name without dots and slashes")
        check_bounds(self)
        if isinstance(self.reads, str):
            raise InvalidInput(f"agent {self.name!r}: reads is a text; write reads=({self.reads!r},)")
        if self.name == PROGRAM:
            raise InvalidInput(f"{PROGRAM!r} is the name of the program itself; name the agent otherwise")
        Prompt(self.prompt)


def agents_of(given: Mapping[str, Agent] | Iterable[Agent]) -> dict[str, Agent]:
    """The agents by name, in their order. `InvalidInput` if they cannot be a team."""
    agents: dict[str, Agent] = {}
    for agent in given.values() if isinstance(given, Mapping) else given:
        if agent.name in agents:
            raise InvalidInput(f"two agents are named {agent.name!r}; each needs a name of its own")
        agents[agent.name] = agent
    if isinstance(given, Mapping) and (wrong := [key for key, agent in given.items() if key != agent.name]):
        raise InvalidInput(f"the agent under {wrong[0]!r} is named {given[wrong[0]].name!r}; give both the same name")
    if not agents:
        raise InvalidInput("a team needs an agent")
    for agent in agents.values():
        for name in agent.reads or ():
            if name not in agents and name != PROGRAM:
                raise InvalidInput(f"agent {agent.name!r} reads the unknown agent {name!r}; {hint(name, agents)}")
    return agents


def check_order(agents: Mapping[str, Agent], needs: Mapping[str, Sequence[str]]) -> None:
    """Refuse declared dependencies that name nobody, or that no order can fulfil."""
    for name, others in needs.items():
        for each in (name, *others):
            if each not in agents:
                raise InvalidInput(f"the dependencies name the unknown agent {each!r}; {hint(each, agents)}")
    done: set[str] = set()
    left = {name: set(others) for name, others in needs.items()}
    while ready := [name for name, others in left.items() if others <= done | (agents.keys() - left.keys())]:
        done.update(ready)
        for name in ready:
            del left[name]
    if left:
        raise InvalidInput(f"the dependencies go in a circle: {' → '.join(_circle(left))}")


def _circle(left: Mapping[str, set[str]]) -> list[str]:
    path = [next(iter(left))]
    while True:
        following = next(name for name in sorted(left[path[-1]]) if name in left)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


def hint(name: str, agents: Iterable[str]) -> str:
    known = list(agents)
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"

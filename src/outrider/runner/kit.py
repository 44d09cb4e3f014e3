"""What a worker needs to run episodes, described in a form that crosses process borders, and opened from it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct

from outrider.agent import EpisodeFactory
from outrider.agent.function import episodes_of
from outrider.policy import Sampling
from outrider.policy.spec import PolicySpec
from outrider.runner.meter import Meter, MeteredPolicy


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """Which environment a tag stands for: a name the registry knows, and its configuration."""

    name: str
    config: Mapping[str, Any] = {}


class EpisodeSpec(Struct, frozen=True, kw_only=True):
    """How rollouts are run: which agent, on which environment (by the rollout's tag), asking which policy.

    Without a policy and environments, `agent` is a plain function that does it all by itself.
    """

    agent: str = "chat"
    policy: PolicySpec | None = None
    environments: Mapping[str, EnvironmentSpec] = {}
    sampling: Sampling = Sampling()
    max_turns: int = 100
    max_context_tokens: int | None = None


@asynccontextmanager
async def open_episodes(spec: EpisodeSpec, meter: Meter) -> AsyncIterator[EpisodeFactory]:
    """Episodes as `spec` describes them; what they share is opened here and closed at the end."""
    if spec.policy is None:
        yield episodes_of(spec.agent)
        return
    from outrider.agent.episode import EpisodeKit, agent_of
    from outrider.env.registry import environments_of
    from outrider.policy.opening import open_policy

    agent = agent_of(spec.agent, max_turns=spec.max_turns, max_context_tokens=spec.max_context_tokens)
    async with AsyncExitStack() as stack:
        policy = await open_policy(spec.policy)
        stack.push_async_callback(policy.close)
        environments = {}
        for tag, kind in spec.environments.items():
            environments[tag] = environments_of(kind.name, kind.config)
            stack.push_async_callback(environments[tag].close)
        yield EpisodeKit(MeteredPolicy(policy, meter), environments, agent, spec.sampling).episodes

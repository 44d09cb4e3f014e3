"""What acts: a user's function or an agent of ours, the context it acts in, and the episode around it."""

from outrider.agent.chat import ChatAgent
from outrider.agent.context import Context, current
from outrider.agent.episode import EnvironmentEpisode, EpisodeKit
from outrider.agent.function import agent_of
from outrider.agent.protocol import AgentFunction, Episode, EpisodeFactory, Result, StopReason
from outrider.agent.react import ReActAgent

__all__ = [
    "AgentFunction",
    "ChatAgent",
    "Context",
    "EnvironmentEpisode",
    "Episode",
    "EpisodeFactory",
    "EpisodeKit",
    "ReActAgent",
    "Result",
    "StopReason",
    "agent_of",
    "current",
]

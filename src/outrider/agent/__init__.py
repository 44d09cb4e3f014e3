"""What acts: a user's function, and the context it acts in."""

from outrider.agent.context import Context, current
from outrider.agent.protocol import AgentFunction, Episode, EpisodeFactory, Result

__all__ = ["AgentFunction", "Context", "Episode", "EpisodeFactory", "Result", "current"]

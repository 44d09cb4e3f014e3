"""Agents that work together on one sample."""

from outrider.orchestra.agent import Agent
from outrider.orchestra.caller import Reply
from outrider.orchestra.context import Entry, Eviction, TeamContext
from outrider.orchestra.orchestra import BaseOrchestra, BatchResult, Orchestra
from outrider.orchestra.performance import Performance
from outrider.orchestra.profile import TeamStatistics
from outrider.orchestra.rows import Row, rows_of
from outrider.orchestra.search import SearchMultiAgentOrchestra
from outrider.orchestra.team import Team
from outrider.orchestra.verdict import Boxed, Outcome, Tag, Verdict, VerdictKind, VerdictRule

__all__ = [
    "Agent",
    "BaseOrchestra",
    "BatchResult",
    "Boxed",
    "Entry",
    "Eviction",
    "Orchestra",
    "Outcome",
    "Performance",
    "Reply",
    "Row",
    "SearchMultiAgentOrchestra",
    "Tag",
    "Team",
    "TeamContext",
    "TeamStatistics",
    "Verdict",
    "VerdictKind",
    "VerdictRule",
    "rows_of",
]

"""The search team under the name by which many know it."""

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.orchestra.agent import Agent
from outrider.orchestra.orchestra import BaseOrchestra
from outrider.orchestra.team import Team
from outrider.orchestra.teams.checks import at_least_one
from outrider.orchestra.teams.search_critic import AGENTS, search_and_answer


class SearchMultiAgentOrchestra(BaseOrchestra):
    """Search with a critic, at most `max_rounds` times, then answer: `team:search-critic` as a class.

    Agents of one's own are named `search`, `critic` and `answer`; there may be more, for a `play` of one's own.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent] | Iterable[Agent] = AGENTS,
        *,
        max_rounds: int = 2,
        **settings: Any,
    ) -> None:
        at_least_one(max_rounds=max_rounds)
        super().__init__(agents, **settings)
        self.max_rounds = max_rounds

    async def play(self, team: Team) -> str:
        return await search_and_answer(team, self.max_rounds)

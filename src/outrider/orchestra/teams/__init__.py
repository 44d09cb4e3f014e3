"""Ready-made teams, one pattern a file."""

from outrider.orchestra.teams.debate import debate
from outrider.orchestra.teams.planner_actor import planner_actor
from outrider.orchestra.teams.proposer_solver import proposer_solver
from outrider.orchestra.teams.registry import READY_MADE, team_of
from outrider.orchestra.teams.router import router
from outrider.orchestra.teams.search_critic import search_critic
from outrider.orchestra.teams.solver_verifier import solver_verifier

__all__ = [
    "READY_MADE",
    "debate",
    "planner_actor",
    "proposer_solver",
    "router",
    "search_critic",
    "solver_verifier",
    "team_of",
]

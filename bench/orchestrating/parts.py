"""What small parts of a call cost by themselves: the context of a team, and its profile."""

import statistics
import time
from collections.abc import Callable

from orchestrating.workload import CRITIC, SEARCH, response
from outrider.orchestra import Entry, TeamContext
from outrider.orchestra.profile import Profile, Span

N_ENTRIES = 4
REPEATS = 300


def measure() -> dict[str, float]:
    """Microseconds for each call of an agent, by what is done."""
    said = [response((SEARCH, CRITIC)[n % 2], 0, n // 2, ok=False) for n in range(N_ENTRIES)]

    def context() -> None:
        team = TeamContext()
        for number, text in enumerate(said):
            team.append(Entry(author=SEARCH, round=number, text=text, n_tokens=200, call_id=f"{SEARCH}.{number}.0"))
            team.view(CRITIC, count=len)

    def string() -> None:
        team = ""
        for text in said:
            team += f'\nThe output of "{SEARCH}": {text}'

    def profile() -> None:
        spans = [
            Span(agent=SEARCH, call_id="", began_at=float(n), ended_at=n + 0.9, model_seconds=0.8)
            for n in range(N_ENTRIES)
        ]
        kept.add(spans, sample="0:0")

    kept = Profile((SEARCH, CRITIC))
    return {f"{part.__name__}_us": _us(part) / N_ENTRIES for part in (context, string, profile)}


def _us(part: Callable[[], None]) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.thread_time_ns()
        part()
        taken.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(taken)

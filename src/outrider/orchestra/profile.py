"""Where a team's time goes: by agent and by sample, in bounded memory.

The critical path of a sample is found from its end: at each point, what ended last before it is what the program
waited for. Where nothing did, the program itself took the time.
"""

import heapq
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from outrider.core.sketch import Sketch
from outrider.orchestra.report import AgentStatistics, Link, SampleStatistics, Seconds, TeamStatistics, line

__all__ = ["Profile", "Span", "TeamStatistics", "critical_path"]

N_SLOWEST = 5
"""Samples that are told of one by one."""

MAX_LINKS = 100
"""Pieces of a critical path that are kept, the longest."""

SLACK_SECONDS = 0.001
"""What ended so little after something began may still be what it waited for: clocks are rounded."""

_log = logging.getLogger("outrider.orchestra")


class Span(Struct, frozen=True, kw_only=True):
    """One call of an agent, or one use of the environment (`agent` is empty), in monotonic time."""

    agent: str
    call_id: str
    began_at: float
    ended_at: float
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    parse_seconds: float = 0.0
    completion_tokens: int = 0
    used: bool = True

    @property
    def seconds(self) -> float:
        return max(self.ended_at - self.began_at, 0.0)


def critical_path(spans: Iterable[Span]) -> list[tuple[Span, float]]:
    """What a sample waited for, in order, and for how many seconds of each."""
    path: list[tuple[Span, float]] = []
    point = float("inf")
    for span in sorted(spans, key=lambda span: (span.ended_at, -span.began_at), reverse=True):
        if span.ended_at <= point + SLACK_SECONDS and span.began_at < min(point, span.ended_at):
            path.append((span, min(span.ended_at, point) - span.began_at))
            point = span.began_at
    return path[::-1]


@dataclass(slots=True)
class _Times:
    """The calls of one agent."""

    n_wasted: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    wasted_seconds: float = 0.0
    critical_seconds: float = 0.0
    total: Sketch = field(default_factory=Sketch)
    queue: Sketch = field(default_factory=Sketch)
    model: Sketch = field(default_factory=Sketch)
    parse: Sketch = field(default_factory=Sketch)

    def add(self, span: Span) -> None:
        self.completion_tokens += span.completion_tokens
        if not span.used:
            self.n_wasted += 1
            self.wasted_tokens += span.completion_tokens
            self.wasted_seconds += span.seconds
        self.total.add(span.seconds)
        if span.agent:
            self.queue.add(max(span.queue_seconds, 0.0))
            self.model.add(max(span.model_seconds, 0.0))
            self.parse.add(max(span.parse_seconds, 0.0))

    def statistics(self, agent: str, wall_seconds: float) -> AgentStatistics:
        return AgentStatistics(
            agent=agent,
            n_calls=self.total.n,
            n_wasted=self.n_wasted,
            completion_tokens=self.completion_tokens,
            wasted_tokens=self.wasted_tokens,
            wasted_seconds=self.wasted_seconds,
            total=_seconds(self.total),
            queue=_seconds(self.queue),
            model=_seconds(self.model),
            parse=_seconds(self.parse),
            critical_seconds=self.critical_seconds,
            critical_share=_share(self.critical_seconds, wall_seconds),
        )


class Profile:
    """Adds up the spans of samples. `print_every`: a line to the log after so many of them."""

    def __init__(self, agents: Iterable[str], *, print_every: int = 0) -> None:
        self._agents = {name: _Times() for name in agents}
        self._tools = _Times()
        self._print_every = print_every
        self._wall = Sketch()
        self._slowest: list[tuple[float, int, SampleStatistics]] = []

    def add(self, spans: Sequence[Span], *, sample: str = "") -> None:
        """The spans of one sample that has ended; one that did nothing took no time."""
        for span in spans:
            self._times(span).add(span)
        path = critical_path(spans)
        for span, seconds in path:
            self._times(span).critical_seconds += seconds
        began_at = min((span.began_at for span in spans), default=0.0)
        wall = max(max((span.ended_at for span in spans), default=0.0) - began_at, 0.0)
        self._wall.add(wall)
        if wall > (self._slowest[0][0] if len(self._slowest) == N_SLOWEST else 0.0):
            self._keep(_sample(sample, wall, spans, path, began_at))
        if self._print_every > 0 and self._wall.n % self._print_every == 0 and _log.isEnabledFor(logging.INFO):
            _log.info(line(self.statistics()))

    def _times(self, span: Span) -> _Times:
        return self._agents[span.agent] if span.agent else self._tools

    def _keep(self, sample: SampleStatistics) -> None:
        """Of samples that took as long, those that came first are kept."""
        heapq.heappush(self._slowest, (sample.wall_seconds, -self._wall.n, sample))
        if len(self._slowest) > N_SLOWEST:
            heapq.heappop(self._slowest)

    def statistics(self) -> TeamStatistics:
        wall = self._wall.total
        agents = tuple(times.statistics(name, wall) for name, times in self._agents.items())
        tools = self._tools.statistics("", wall)
        own = max(wall - sum(each.critical_seconds for each in (*agents, tools)), 0.0)
        return TeamStatistics(
            n_samples=self._wall.n,
            n_calls=sum(agent.n_calls for agent in agents),
            n_wasted=sum(agent.n_wasted for agent in agents),
            completion_tokens=sum(agent.completion_tokens for agent in agents),
            wasted_tokens=sum(agent.wasted_tokens for agent in agents),
            wasted_seconds=sum(agent.wasted_seconds for agent in agents),
            wall=_seconds(self._wall),
            own_seconds=own,
            own_share=_share(own, wall),
            agents=agents,
            tools=tools,
            slowest=tuple(sample for _, _, sample in sorted(self._slowest, key=lambda kept: kept[:2], reverse=True)),
        )


def _sample(
    name: str, wall: float, spans: Sequence[Span], path: Sequence[tuple[Span, float]], began_at: float
) -> SampleStatistics:
    longest = heapq.nlargest(MAX_LINKS, range(len(path)), key=lambda place: path[place][1])
    return SampleStatistics(
        sample=name,
        wall_seconds=wall,
        wasted_seconds=sum(span.seconds for span in spans if not span.used),
        n_calls=sum(1 for span in spans if span.agent),
        path=tuple(
            Link(agent=span.agent, call_id=span.call_id, began=span.began_at - began_at, seconds=seconds)
            for span, seconds in (path[place] for place in sorted(longest))
        ),
    )


def _seconds(sketch: Sketch) -> Seconds:
    return Seconds(
        sum=sketch.total,
        mean=sketch.mean or 0.0,
        p50=sketch.quantile(0.5) or 0.0,
        p95=sketch.quantile(0.95) or 0.0,
    )


def _share(seconds: float, wall_seconds: float) -> float:
    return seconds / wall_seconds if wall_seconds else 0.0

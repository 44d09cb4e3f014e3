"""What the agents of a team did and where the time went, as figures and as text."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

TOOLS = "tools"
OWN = "own time"


class Seconds(Struct, frozen=True, kw_only=True):
    """Times over all samples. The quantiles are within 2 %."""

    sum: float = 0.0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0


class AgentStatistics(Struct, frozen=True, kw_only=True):
    """What one agent did, or, without a name, the tools.

    `total` is a call from beginning to end: in line for the model, with it, and parsing its answer. Calls that the
    program went on without are wasted. `critical_seconds` are those in which the sample waited for nobody else.
    """

    agent: str
    n_calls: int = 0
    n_wasted: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    wasted_seconds: float = 0.0
    total: Seconds = Seconds()
    queue: Seconds = Seconds()
    model: Seconds = Seconds()
    parse: Seconds = Seconds()
    critical_seconds: float = 0.0
    critical_share: float = 0.0


class Link(Struct, frozen=True, kw_only=True):
    """A piece of a critical path: a call, or the use of a tool (no `agent`). `began` counts from the first call."""

    agent: str
    call_id: str
    began: float
    seconds: float


class SampleStatistics(Struct, frozen=True, kw_only=True):
    """One sample. What of `wall_seconds` is in no link of the path is the program's own time."""

    sample: str
    wall_seconds: float
    wasted_seconds: float
    n_calls: int
    path: tuple[Link, ...]


class TeamStatistics(Struct, frozen=True, kw_only=True):
    """What a team did in all samples so far; `print` shows it as a table.

    A sample's time, `wall`, is from its first call to the end of its last. Shares are of its sum over all samples:
    those of the agents, of the tools and of the program itself (`own_share`) add up to 1.
    """

    n_samples: int = 0
    n_calls: int = 0
    n_wasted: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    wasted_seconds: float = 0.0
    wall: Seconds = Seconds()
    own_seconds: float = 0.0
    own_share: float = 0.0
    agents: tuple[AgentStatistics, ...] = ()
    tools: AgentStatistics = AgentStatistics(agent="")
    slowest: tuple[SampleStatistics, ...] = ()
    """The samples that took longest, the slowest first."""

    def __str__(self) -> str:
        return table(self)


HEADINGS = (
    *("agent", "calls", "wasted", "tokens"),
    *("in line s", "p95", "model s", "mean", "p50", "p95", "parsing s", "p95"),
    *("critical path s", "share"),
)
"""Columns of the table. Times are sums over all samples, in seconds, where nothing else is said."""


def rows(statistics: TeamStatistics) -> Iterator[tuple[str, ...]]:
    """The cells of the table below its headings: agents, tools if there were any, and the program's own time."""
    for agent in statistics.agents:
        yield _row(agent)
    if statistics.tools.n_calls:
        yield _tools(statistics.tools)
    blank = ("",) * (len(HEADINGS) - 3)
    yield (OWN, *blank, _seconds(statistics.own_seconds), _share(statistics.own_share))


def _row(agent: AgentStatistics) -> tuple[str, ...]:
    queue, model, parse = agent.queue, agent.model, agent.parse
    times = (queue.sum, queue.p95, model.sum, model.mean, model.p50, model.p95, parse.sum, parse.p95)
    counts = (f"{agent.n_calls:,}", f"{agent.n_wasted:,}", f"{agent.completion_tokens:,}")
    return (agent.agent, *counts, *map(_seconds, times), _seconds(agent.critical_seconds), _share(agent.critical_share))


def _tools(tools: AgentStatistics) -> tuple[str, ...]:
    """Their time stands where that of the model does."""
    total = tools.total
    times = map(_seconds, (total.sum, total.mean, total.p50, total.p95))
    path = (_seconds(tools.critical_seconds), _share(tools.critical_share))
    return (TOOLS, f"{tools.n_calls:,}", "", "", "", "", *times, "", "", *path)


def table(statistics: TeamStatistics) -> str:
    """The figures of each agent in a line of their own."""
    cells = [HEADINGS, *rows(statistics)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    lines = ("  ".join(_placed(row, widths)).rstrip() for row in cells)
    return "\n".join((heading(statistics), *lines))


def heading(statistics: TeamStatistics) -> str:
    """What all samples came to, in a line."""
    wall = statistics.wall
    each = f"{statistics.n_samples:,} samples, {_seconds(wall.mean)} s each"
    if statistics.n_samples == 1:
        each = f"{_seconds(wall.sum)} s"
    elif statistics.n_samples:
        each += f" (p50 {_seconds(wall.p50)}, p95 {_seconds(wall.p95)})"
    return f"{each}; {statistics.n_calls:,} calls{_wasted(statistics)}"


def _wasted(statistics: TeamStatistics) -> str:
    if not statistics.n_wasted:
        return ", none wasted"
    tokens = f"{statistics.wasted_tokens:,} of {statistics.completion_tokens:,} tokens"
    return f", {statistics.n_wasted:,} wasted ({tokens}, {_seconds(statistics.wasted_seconds)} s)"


def line(statistics: TeamStatistics) -> str:
    """All of it in one line, for a log: each agent's share of the time that samples took."""
    parts = [
        f"{agent.agent} {_share(agent.critical_share)} ({agent.n_calls:,} at {_seconds(agent.total.mean)} s)"
        for agent in statistics.agents
    ]
    if statistics.tools.n_calls:
        parts.append(f"{TOOLS} {_share(statistics.tools.critical_share)}")
    parts.append(f"{OWN} {_share(statistics.own_share)}")
    return f"{heading(statistics)} · {' · '.join(parts)}"


def _placed(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    first, *rest = row
    yield first.ljust(widths[0])
    for cell, width in zip(rest, widths[1:], strict=True):
        yield cell.rjust(width)


def _seconds(seconds: float) -> str:
    """As many digits as matter: `0.012`, `1.234`, `123.4`, `12,345`."""
    if seconds >= 1000 or not seconds:  # noqa: PLR2004
        return f"{seconds:,.0f}"
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"  # noqa: PLR2004


def _share(share: float) -> str:
    return f"{share:.0%}"

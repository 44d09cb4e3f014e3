"""Four plots as one SVG file: group calls, channels, large payloads and the start, each system a bar."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from clustering.names import BATCH, COPY, SINGLE, US
from goals import Line
from report import readable

WIDTH, MARGIN, TOP = 980, 16, 40
LABEL, BAR, ROW, TITLE = 190, 180, 18, 30
"""Widths of a label and of the longest bar, heights of a bar with its space and of a title."""

STYLE = """
.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.plot .paper{fill:#fff}.plot .title{font-weight:600;font-size:13px;fill:#1f2328}.plot text{fill:#57606a}
.plot .us{fill:#5b7cfa}.plot .peer{fill:#d1512d}.plot .limit{fill:#8c959f}
@media (prefers-color-scheme:dark){.plot .paper{fill:#0d1117}.plot .title{fill:#e6edf3}.plot text{fill:#9198a1}}
"""


class Plot(NamedTuple):
    """One figure of one case, for all systems."""

    title: str
    case: str
    metric: str
    unit: str
    is_logarithmic: bool = False


COLUMNS = (
    (
        Plot("A group of 4 called, `wait()`", "call 4 sync", "call_ms", "ms"),
        Plot("The same, awaited (logarithmic)", "call 4 async", "call_ms", "ms", is_logarithmic=True),
        Plot("First group of 4 answers (logarithmic)", "start", "first_group_seconds", "s", is_logarithmic=True),
    ),
    (
        Plot("Channel, one by one (logarithmic)", f"channel {SINGLE}", "items_per_second", "items/s", True),
        Plot("Channel, batches of 32 (logarithmic)", f"channel {BATCH}", "items_per_second", "items/s", True),
        Plot("64 MB from worker to worker", "carry 64 MB", "gb_per_second", "GB/s"),
    ),
)


def picture(lines: Sequence[Line]) -> str:
    """The picture as SVG text."""
    parts: list[str] = []
    bottoms = []
    for number, plots in enumerate(COLUMNS):
        y = float(TOP)
        for plot in plots:
            own = {
                line["system"]: line["value"]
                for line in lines
                if (line["case"], line["metric"]) == (plot.case, plot.metric) and line["value"]
            }
            if own:
                parts += _plot(plot, own, MARGIN + number * WIDTH / 2, y)
                y += TITLE + ROW * len(own) + 8
        bottoms.append(y)
    height = max(bottoms) + MARGIN
    body = "\n".join(parts)
    return (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="Calls, channels, payloads and start">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>\n{body}\n</svg>\n'
    )


def _plot(plot: Plot, found: dict[str, float], x: float, y: float) -> Iterator[str]:
    yield _text(x, y - 8, plot.title, "title")
    least, most = min(found.values()), max(found.values())
    for number, (system, value) in enumerate(found.items()):
        top = y + ROW * number
        if plot.is_logarithmic:
            share = 0.1 + 0.9 * math.log(value / least) / (math.log(most / least) or 1.0)
        else:
            share = value / most
        kind = "us" if system.startswith(US) else "limit" if system.startswith(COPY) else "peer"
        yield _text(x + LABEL - 8, top + 11, system, anchor="end")
        yield (
            f'<rect class="{kind}" x="{x + LABEL:.1f}" y="{top + 1:.1f}" width="{BAR * share:.1f}" '
            f'height="{ROW - 5}" rx="2"/>'
        )
        yield _text(x + LABEL + BAR * share + 6, top + 11, f"{readable(value)} {plot.unit}")


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

"""The picture of a run as one SVG file: scores with their intervals, how long rollouts took, how many tokens.

Drawn by hand, so that no plotting library is needed; colours follow the reader's light or dark theme.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from outrider.evaluate.estimate import Estimate
from outrider.evaluate.summary import Bar, Quantiles, Summary

WIDTH = 960
MAX_ROWS = 24
LABEL_CHARACTERS = 18

_LEFT, _MIDDLE, _RIGHT = 24, 500, WIDTH - 24
_TOP, _ROW, _PANEL, _GAP = 24, 26, 190, 28
_LABEL = 140
_VALUE = 56

STYLE = """
.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.plot .paper{fill:#fff}.plot .title{font-weight:600;font-size:13px;fill:#1f2328}.plot text{fill:#57606a}
.plot .name{fill:#1f2328}.plot .grid{stroke:#d8dee4}.plot .bar{fill:#5b7cfa}.plot .soft{fill:#b6c4fd}
.plot .error{stroke:#1f2328;stroke-width:1.5}.plot .mark{stroke:#d1512d;stroke-width:1.5;stroke-dasharray:3 3}
.plot text.hot{fill:#d1512d}
@media (prefers-color-scheme:dark){.plot .paper{fill:#0d1117}.plot .title,.plot .name{fill:#e6edf3}
.plot text{fill:#9198a1}.plot .grid{stroke:#30363d}.plot .bar{fill:#5b7cfa}.plot .soft{fill:#2f3f7f}
.plot .error{stroke:#e6edf3}.plot .mark{stroke:#ff8b66}.plot text.hot{fill:#ff8b66}}
"""


def plot(summary: Summary) -> str:
    """The picture as SVG text, to be written to a file or put into a page."""
    rows = score_rows(summary)
    height = max(_TOP + 40 + _ROW * len(rows) + 40, _TOP + 2 * _PANEL + _GAP + 16)
    left, right = _MIDDLE + 40, _RIGHT
    seconds, tokens = summary.histograms["seconds"], summary.histograms["tokens"]
    times, counts = _marks(summary.total.seconds), _marks(summary.total.tokens)
    parts = [
        *_scores(rows, (_LEFT, _MIDDLE - 20)),
        *_histogram("Seconds per rollout", seconds, times, seconds_text, (left, right, _TOP)),
        *_histogram("Tokens per rollout", tokens, counts, count_text, (left, right, _TOP + _PANEL + _GAP)),
    ]
    body = "\n".join(parts)
    return (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="Scores, seconds and tokens of the run">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def score_rows(summary: Summary) -> list[tuple[str, Estimate | None, int]]:
    """Name, mean reward over what was scored, and number of rollouts: of all, then group by group."""
    rows = [("all", summary.total.reward.scored, summary.total.n)]
    for name, groups in summary.by.items():
        if name == "tag" and len(groups) == 1:
            continue
        rows += [
            (value if name == "tag" else f"{name} {value}", group.reward.scored, group.n)
            for value, group in groups.items()
        ]
    return rows[:MAX_ROWS]


def _marks(quantiles: Quantiles | None) -> list[tuple[str, float]]:
    return [] if quantiles is None else [("p50", quantiles.p50), ("p95", quantiles.p95)]


def _scores(rows: Sequence[tuple[str, Estimate | None, int]], span: tuple[int, int]) -> Iterator[str]:
    left, right = span[0] + _LABEL, span[1] - _VALUE
    known = [estimate for _, estimate, _ in rows if estimate is not None]
    ticks = axis_ticks(
        min([0.0, *(_low(estimate) for estimate in known)]), max([1.0, *(_high(estimate) for estimate in known)])
    )
    scale = _linear(ticks[0], ticks[-1], left, right)
    bottom = _TOP + 40 + _ROW * len(rows)
    yield _text(span[0], _TOP + 14, "Mean reward, 95 % interval", "title")
    for tick in ticks:
        yield f'<line class="grid" x1="{scale(tick):.1f}" x2="{scale(tick):.1f}" y1="{_TOP + 32}" y2="{bottom}"/>'
        yield _text(scale(tick), bottom + 16, f"{tick:g}", anchor="middle")
    for number, (name, estimate, n) in enumerate(rows):
        middle = _TOP + 40 + _ROW * number + _ROW / 2
        yield _text(left - 10, middle + 4, _cut(name), "name", anchor="end", title=f"{name}: {n:,} rollouts")
        if estimate is None:
            yield _text(scale(0.0) + 6, middle + 4, "no score")
            continue
        begin, end = sorted((scale(0.0), scale(estimate.mean)))
        shape = f'x="{begin:.1f}" y="{middle - 8}" width="{max(end - begin, 1):.1f}" height="16" rx="2"'
        yield f'<rect class="{"soft" if number else "bar"}" {shape}/>'
        if estimate.low is not None and estimate.high is not None:
            yield from _error_bar(scale(estimate.low), scale(estimate.high), middle)
        yield _text(right + 10, middle + 4, f"{estimate.mean:.3f}", "name")


def _error_bar(low: float, high: float, middle: float) -> Iterator[str]:
    yield f'<line class="error" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    for x in (low, high):
        yield f'<line class="error" x1="{x:.1f}" x2="{x:.1f}" y1="{middle - 4}" y2="{middle + 4}"/>'


def _histogram(
    title: str,
    bars: Sequence[Bar],
    marks: Sequence[tuple[str, float]],
    shown: Callable[[float], str],
    box: tuple[int, int, int],
) -> Iterator[str]:
    left, right, top = box
    base = top + _PANEL - 30
    yield _text(left, top + 14, title, "title")
    yield f'<line class="grid" x1="{left}" x2="{right}" y1="{base}" y2="{base}"/>'
    if not bars:
        yield _text(left, top + 60, "nothing to show")
        return
    most = max(bar.n for bar in bars)
    width = (right - left) / len(bars)
    for number, bar in enumerate(bars):
        if bar.n:
            tall = max((base - top - 36) * bar.n / most, 1.5)
            note = f"{bar.n:,} from {shown(bar.low)} to {shown(bar.high)}"
            place = f'x="{left + number * width + 0.5:.1f}" y="{base - tall:.1f}"'
            size = f'width="{width - 1:.1f}" height="{tall:.1f}"'
            yield f'<rect class="bar" {place} {size} rx="1.5"><title>{escape(note)}</title></rect>'
    half = len(bars) // 2
    yield _text(left, base + 16, shown(bars[0].low))
    if half:
        yield _text(left + half * width, base + 16, shown(bars[half].low), anchor="middle")
    yield _text(right, base + 16, shown(bars[-1].high), anchor="end")
    scale = _logarithmic(bars[0].low, bars[-1].high, left, right)
    for _, value in marks:
        x = scale(value)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 28}" y2="{base}"/>'
    named = "   ".join(f"{name} {shown(value)}" for name, value in marks)
    yield _text(right, top + 14, named, "hot", anchor="end")


def axis_ticks(low: float, high: float) -> list[float]:
    """Some five round numbers that enclose the span."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def seconds_text(seconds: float) -> str:
    """A time that people read: `850 ms`, `12.3 s`, `4 min 5 s`, `3.2 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if seconds < 3600 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def count_text(number: float) -> str:
    """A count that people read: `950`, `12.3k`, `4.5M`."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _linear(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    return lambda value: left + (value - low) / (high - low) * (right - left)


def _logarithmic(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    if high <= low:
        return lambda _: (left + right) / 2
    ratio = math.log(high / low)
    return lambda value: left + math.log(min(max(value, low), high) / low) / ratio * (right - left)


def _low(estimate: Estimate) -> float:
    return estimate.mean if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.mean if estimate.high is None else estimate.high


def _cut(name: str) -> str:
    return name if len(name) <= LABEL_CHARACTERS else name[: LABEL_CHARACTERS - 1] + "…"


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", title: str = "") -> str:
    note = f"<title>{escape(title)}</title>" if title else ""
    style = f' class="{kind}"' if kind else ""
    return (
        f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" xml:space="preserve">{escape(text)}{note}</text>'
    )

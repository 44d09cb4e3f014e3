"""The picture of a team at work on one sample: who was asked when, and what the sample waited for.

One lane an agent, one for the tools, with as many rows as it did things at once. Drawn as plain SVG in the colours of
the page, which also has a title on each bar.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from html import escape
from itertools import pairwise

from msgspec import Struct

from outrider.evaluate.plot import axis_ticks, seconds_text
from outrider.evaluate.timeline import Deed, statistics_of
from outrider.orchestra.profile import Span, critical_path
from outrider.orchestra.report import HEADINGS, TOOLS, heading, rows

WIDTH = 960
MAX_BARS = 300
MAX_ROWS = 12
"""Rows of one lane. What does not find room on them is drawn over others."""

LABEL_CHARACTERS = 18
MAX_IDS = 8

_LEFT, _RIGHT, _TOP = 156, WIDTH - 20, 46
_ROW, _BAR, _THIN, _PAD = 20, 14, 6, 9
_LANE = 44
_LEAST_WIDTH = 1.5
_LEGEND = (
    ("queue", "in line", 62),
    ("model", "model", 60),
    ("parse", "parsing", 68),
    ("tool", "tools", 56),
    ("wasted", "not used", 78),
    ("critical", "critical path", 92),
)


class _Lane(Struct, frozen=True, kw_only=True):
    name: str
    note: str
    top: float
    height: float


class _Bar(Struct, frozen=True, kw_only=True):
    deed: Deed
    middle: float


class _Scale(Struct, frozen=True, kw_only=True):
    began_at: float
    seconds: float

    def x(self, at: float) -> float:
        return _LEFT + (at - self.began_at) / self.seconds * (_RIGHT - _LEFT)


def profile_html(deeds: Sequence[Deed]) -> str:
    """Picture and table of what a team did; nothing for others."""
    return f'<div class="profile">{waterfall(deeds)}{_table(deeds)}</div>' if deeds else ""


def waterfall(deeds: Sequence[Deed]) -> str:
    """The picture as SVG text for the page."""
    scale = _scale(deeds)
    shown = _longest(deeds)
    lanes, bars = _laid_out(shown, deeds)
    bottom = lanes[-1].top + lanes[-1].height
    path = [span for span, _ in critical_path([deed.span for deed in deeds])]
    on_path = {id(span) for span in path}
    note = f"{len(deeds) - len(shown):,} shorter ones are not drawn" if len(deeds) > len(shown) else ""
    parts = [
        *_legend(),
        *_axis(scale, bottom, note),
        *(text for lane in lanes for text in _lane(lane)),
        *(_bar(bar, scale, is_critical=id(bar.deed.span) in on_path) for bar in bars),
        *_thread(path, {id(bar.deed.span): bar for bar in bars}, scale),
    ]
    height = bottom + 34
    label = f"{len(deeds)} calls and steps of a team over {seconds_text(scale.seconds)}"
    head = f'<svg class="waterfall" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def _scale(deeds: Sequence[Deed]) -> _Scale:
    began_at = min(deed.span.began_at for deed in deeds)
    seconds = max(deed.span.ended_at for deed in deeds) - began_at
    return _Scale(began_at=began_at, seconds=max(seconds, 1e-6))


def _longest(deeds: Sequence[Deed]) -> list[Deed]:
    places = nlargest(MAX_BARS, range(len(deeds)), key=lambda place: deeds[place].span.seconds)
    return [deeds[place] for place in sorted(places)]


def _laid_out(shown: Sequence[Deed], deeds: Sequence[Deed]) -> tuple[list[_Lane], list[_Bar]]:
    """Lanes in the order in which agents first appear, the tools last."""
    drawn = {deed.span.agent for deed in shown}
    met = dict.fromkeys(deed.span.agent for deed in deeds if deed.span.agent in drawn)
    lanes: list[_Lane] = []
    bars: list[_Bar] = []
    top: float = _TOP
    for name in sorted(met, key=bool, reverse=True):
        placed, n_rows = _in_rows([deed for deed in shown if deed.span.agent == name])
        height = max(2 * _PAD + n_rows * _ROW, _LANE)
        first = top + (height - n_rows * _ROW) / 2 + _ROW / 2
        bars += [_Bar(deed=deed, middle=first + row * _ROW) for deed, row in placed]
        lanes.append(_Lane(name=name or TOOLS, note=_note(name, deeds), top=top, height=height))
        top += height
    return lanes, bars


def _in_rows(deeds: Sequence[Deed]) -> tuple[list[tuple[Deed, int]], int]:
    """Each on the first row that is free when it begins, and how many rows there are."""
    ends: list[float] = []
    placed = []
    for deed in deeds:
        row = next((number for number, end in enumerate(ends) if end <= deed.span.began_at), len(ends))
        if row == MAX_ROWS:
            row = ends.index(min(ends))
        ends[row : row + 1] = [deed.span.ended_at]
        placed.append((deed, row))
    return placed, len(ends)


def _note(name: str, deeds: Sequence[Deed]) -> str:
    spans = [deed.span for deed in deeds if deed.span.agent == name]
    what = ("call" if name else "step") + ("" if len(spans) == 1 else "s")
    return f"{len(spans):,} {what} · {seconds_text(sum(span.seconds for span in spans))}"


def _legend() -> Iterator[str]:
    x = float(_RIGHT - sum(width for _, _, width in _LEGEND))
    for kind, text, width in _LEGEND:
        size = f'width="11" height="{_THIN if kind == "parse" else 11}" rx="2"'
        yield f'<rect class="{kind}" x="{x:g}" y="{17 if kind == "parse" else 14.5}" {size}/>'
        yield _text(x + 16, 24, text)
        x += width


def _axis(scale: _Scale, bottom: float, note: str) -> Iterator[str]:
    yield _text(16, 24, "Where the time went", "title")
    if note:
        yield _text(176, 24, note)
    step = axis_ticks(0.0, scale.seconds * 0.6)[1]
    for number in range(int(scale.seconds / step * 1.000001) + 1):
        x = scale.x(scale.began_at + number * step)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:g}"/>'
        yield _text(x, bottom + 18, _tick_text(number * step), anchor="middle")


def _tick_text(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:g} ms"


def _lane(lane: _Lane) -> Iterator[str]:
    yield f'<line class="grid" x1="16" x2="{_RIGHT}" y1="{lane.top:g}" y2="{lane.top:g}"/>'
    middle = lane.top + lane.height / 2
    name = _cut(lane.name)
    yield _text(16, middle - 2, name, "name", title="" if name == lane.name else lane.name)
    yield _text(16, middle + 13, lane.note, "note")


def _bar(bar: _Bar, scale: _Scale, *, is_critical: bool) -> str:
    span, top = bar.deed.span, bar.middle - _BAR / 2
    answered_at = span.began_at + span.queue_seconds + span.model_seconds
    parts = [f"<title>{escape(_title(bar.deed, is_critical=is_critical))}</title>"]
    if not span.agent:
        parts.append(_rect("tool", scale, (span.began_at, span.ended_at), top, _BAR, least=_LEAST_WIDTH))
    else:
        model_at = span.began_at + span.queue_seconds
        parts.append(_rect("queue", scale, (span.began_at, model_at), top, _BAR))
        parts.append(_rect("model", scale, (model_at, answered_at), top, _BAR, least=_LEAST_WIDTH))
        parts.append(_rect("parse", scale, (answered_at, span.ended_at), bar.middle - _THIN / 2, _THIN))
    kind = "deed" if span.used else "deed wasted"
    if is_critical or not span.used:
        outline = "critical" if is_critical else "outline"
        parts.append(_rect(outline, scale, (span.began_at, span.ended_at), top - 2, _BAR + 4, least=_LEAST_WIDTH))
    return f'<g class="{kind}">{"".join(parts)}</g>'


def _rect(
    kind: str, scale: _Scale, between: tuple[float, float], top: float, height: float, *, least: float = 0.0
) -> str:
    left = scale.x(between[0])
    width = max(scale.x(between[1]) - left, least)
    if width < _LEAST_WIDTH / 3:
        return ""
    place = f'x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{height:g}" rx="{min(2.0, width / 2):.1g}"'
    return f'<rect class="{kind}" {place}/>'


def _thread(path: Sequence[Span], bars: Mapping[int, _Bar], scale: _Scale) -> Iterator[str]:
    """Lines from the end of each bar on the critical path to the beginning of the next."""
    drawn = [bars[id(span)] for span in path if id(span) in bars]
    for bar, following in pairwise(drawn):
        begin, end = scale.x(bar.deed.span.ended_at), scale.x(following.deed.span.began_at)
        yield f'<path class="thread" d="M{begin:.1f} {bar.middle:g}H{end:.1f}V{following.middle:g}"/>'


def _title(deed: Deed, *, is_critical: bool) -> str:
    span, call = deed.span, deed.call
    if call is None:
        parts = [f"step of the environment, {seconds_text(span.seconds)}"]
    else:
        times = (("in line", span.queue_seconds), ("model", span.model_seconds), ("parsing", span.parse_seconds))
        parts = [
            f"{call.id}, round {call.round + 1}",
            ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in times if seconds),
            f"{deed.prompt_tokens:,} → {span.completion_tokens:,} tokens",
            f"verdict {deed.verdict}" if deed.verdict else "",
            f"because: {call.route}" if call.route else "",
            f"read {_ids(call.reads)}" if call.reads else "",
            f"did not fit: {_ids(call.dropped)}" if call.dropped else "",
            "" if span.used else "not used",
        ]
    return "\n".join(filter(None, [*parts, "on the critical path" if is_critical else ""]))


def _ids(ids: Sequence[str]) -> str:
    rest = f" and {len(ids) - MAX_IDS:,} more" if len(ids) > MAX_IDS else ""
    return ", ".join(ids[:MAX_IDS]) + rest


def _table(deeds: Sequence[Deed]) -> str:
    statistics = statistics_of(deeds)
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(statistics))
    caption = f"<caption>{escape(heading(statistics))}</caption>"
    return f'<div class="figures"><table>{caption}<tr>{head}</tr>{body}</table></div>'


def _cut(name: str) -> str:
    return name if len(name) <= LABEL_CHARACTERS else name[: LABEL_CHARACTERS - 1] + "…"


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "", title: str = "") -> str:
    style = (f'class="{kind}" ' if kind else "") + (f'text-anchor="{anchor}" ' if anchor else "")
    note = f"<title>{escape(title)}</title>" if title else ""
    return f'<text {style}x="{x:.1f}" y="{y:.1f}">{escape(text)}{note}</text>'

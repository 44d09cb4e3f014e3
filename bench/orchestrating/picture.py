"""Two plots as one SVG file: wall time by flow and batch, and what each switch is worth."""

from collections.abc import Iterator, Sequence
from html import escape

from goals import Line
from orchestrating.found import Found
from orchestrating.names import MASKS, NO_CACHE, NO_EXIT, SERIAL, SYNC, SYNC_NO_CACHE, SYNC_SPARE, SYNC_WHOLE, US

WIDTH = 960
TOP, ROW, MARGIN, MIDDLE = 56, 18, 16, 500
LABEL, BAR = 150, 260

STYLE = """
.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.plot .paper{fill:#fff}.plot .title{font-weight:600;font-size:13px;fill:#1f2328}.plot text{fill:#57606a}
.plot .grid{stroke:#d8dee4}.plot .us{fill:#5b7cfa}.plot .peer{fill:#d1512d}
@media (prefers-color-scheme:dark){.plot .paper{fill:#0d1117}.plot .title{fill:#e6edf3}.plot text{fill:#9198a1}
.plot .grid{stroke:#30363d}}
"""
RATE = "p=0.25"
SWITCHES = {
    "early termination": (NO_EXIT, US),
    "each sample by itself": (SYNC, US),
    "parallel agents": (SERIAL, US),
    "preprocessing cache": (NO_CACHE, US),
    "agent skip": (SYNC_SPARE, SYNC),
    "only active samples": (SYNC_WHOLE, SYNC_NO_CACHE),
}


def picture(lines: Sequence[Line]) -> str:
    """The picture as SVG text."""
    found = Found(lines)
    walls = [case for case in found.cases("critic ", "episode ", "math ") if case.endswith(f"{RATE} tail")]
    gains = list(_gains(found))
    height = TOP + max(2.5 * ROW * len(walls), ROW * len(gains)) + 40
    body = "\n".join([*_walls(found, walls), *_switches(gains), *_legend(height)])
    return (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="Wall time of teams, and what each switch is worth">\n'
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>\n{body}\n</svg>\n'
    )


def _walls(found: Found, cases: Sequence[str]) -> Iterator[str]:
    yield _text(MARGIN, TOP - 28, "Wall seconds (approval 0.25, tail)", "title")
    values = {(case, system): found.value(case, system, "wall_seconds") for case in cases for system in (US, MASKS)}
    most = max((value for value in values.values() if value is not None), default=1.0)
    for number, case in enumerate(cases):
        y = TOP + 2.5 * ROW * number
        flow, batch, *_ = case.split()
        yield _text(MARGIN, y + 18, f"{flow}, batch {batch[2:]}")
        for system, kind, dy in ((US, "us", 0), (MASKS, "peer", ROW)):
            value = values[case, system]
            if value is not None:
                yield from _bar(MARGIN + LABEL, y + dy, BAR * value / most, kind, f"{value:.2f} s")


def _gains(found: Found) -> Iterator[tuple[str, str, float, float]]:
    """The switch, the case, and its gain in wall and in CPU time."""
    for name, (off, on) in SWITCHES.items():
        for case in found.cases("switches "):
            wall, cpu = (found.quotient(case, metric, off, on) for metric in ("wall_seconds", "cpu_seconds"))
            if wall is not None and cpu is not None and "p=0.85" in case:
                yield name, case, wall, cpu


def _switches(gains: Sequence[tuple[str, str, float, float]]) -> Iterator[str]:
    yield _text(MIDDLE, TOP - 28, "How many times as long without it: wall, CPU (approval 0.85)", "title")
    most = max((max(wall, cpu) for _, _, wall, cpu in gains), default=1.0)
    left, width = MIDDLE + 230, 140
    one = left + width / max(most, 1.0)
    yield f'<line class="grid" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 12}" y2="{TOP + ROW * len(gains)}"/>'
    before = ""
    for number, (name, case, wall, cpu) in enumerate(gains):
        y = TOP + ROW * number
        if name != before:
            yield _text(MIDDLE, y + 11, name)
        before = name
        yield _text(left - 8, y + 11, _short(case), anchor="end")
        yield from _bar(left, y, width * wall / most, "us")
        yield _text(left + width + 8, y + 11, f"{wall:.2f}, {cpu:.2f}")
        yield f'<circle class="peer" cx="{left + width * cpu / most:.1f}" cy="{y + 7}" r="3"/>'


def _short(case: str) -> str:
    flow, batch, _, latency, *rest = case.removeprefix("switches ").replace(",", "").split()
    if flow == "parallel":
        return f"{flow} {batch} {latency}"
    return f"{flow} in groups" if rest else flow


def _bar(x: float, y: float, width: float, kind: str, note: str = "") -> Iterator[str]:
    yield f'<rect class="{kind}" x="{x:.1f}" y="{y + 1:.1f}" width="{max(width, 1):.1f}" height="{ROW - 5}" rx="2"/>'
    yield _text(x + width + 6, y + 11, note)


def _legend(height: float) -> Iterator[str]:
    for x, kind, text in (
        (MARGIN, "us", US),
        (MARGIN + 90, "peer", MASKS),
        (MIDDLE, "us", "wall"),
        (MIDDLE + 70, "peer", "CPU"),
    ):
        yield f'<rect class="{kind}" x="{x}" y="{height - 24:g}" width="10" height="10" rx="2"/>'
        yield _text(x + 16, height - 15, text)


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

"""The frontier as one SVG file: throughput against mean and against maximum staleness, on the heavy workload."""

from collections.abc import Iterator, Mapping
from html import escape

from scheduling.cells import PLAIN, US

WIDTH, HEIGHT = 960, 420
TOP, BOTTOM, GAP, MARGIN = 48, 360, 70, 56

STYLE = """
.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.plot .paper{fill:#fff}.plot .title{font-weight:600;font-size:13px;fill:#1f2328}.plot text{fill:#57606a}
.plot .grid{stroke:#d8dee4}.plot .us{fill:#5b7cfa}.plot .plain{fill:#8c959f}.plot .peer{fill:#d1512d}
.plot text.us{fill:#3a56c5;font-weight:600}.plot text.peer{fill:#d1512d}
@media (prefers-color-scheme:dark){.plot .paper{fill:#0d1117}.plot .title{fill:#e6edf3}.plot text{fill:#9198a1}
.plot .grid{stroke:#30363d}.plot text.us{fill:#8ea6ff}.plot text.peer{fill:#ff8b66}}
"""

Rows = Mapping[tuple[str, str], Mapping[str, float]]


def picture(rows: Rows) -> str:
    """The picture as SVG text; `rows` holds the figures by case and system."""
    width = (WIDTH - 2 * MARGIN - GAP) / 2
    panels = (("mean", "staleness_mean", MARGIN), ("maximum", "staleness_max", MARGIN + width + GAP))
    parts = [part for name, metric, left in panels for part in _panel(rows, name, metric, (left, left + width))]
    body = "\n".join([*parts, *_legend()])
    return (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="Throughput against staleness">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n{body}\n</svg>\n'
    )


def _panel(rows: Rows, name: str, metric: str, span: tuple[float, float]) -> Iterator[str]:
    left, right = span
    most = max([1.0, *(row[metric] for row in rows.values())])
    n_ticks = int(most) + 1

    def x(value: float) -> float:
        return left + value / n_ticks * (right - left)

    yield _text(left, TOP - 20, f"% of X* against {name} staleness of a trajectory (heavy)", "title")
    for percent in range(0, 101, 20):
        yield f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{_y(percent):.1f}" y2="{_y(percent):.1f}"/>'
        yield _text(left - 8, _y(percent) + 4, f"{percent}", anchor="end")
    for tick in range(0, n_ticks + 1, max(n_ticks // 6, 1)):
        yield _text(x(tick), BOTTOM + 18, f"{tick}", anchor="middle")
    for (case, system), row in rows.items():
        kind = _kind(system)
        note = f"{system}, {case}: {row['pct_of_bound']:.1f} % at {name} staleness {row[metric]:.2f}"
        at = f'cx="{x(row[metric]):.1f}" cy="{_y(row["pct_of_bound"]):.1f}"'
        yield f'<circle class="{kind}" {at} r="{5 if kind == "us" else 4}"><title>{escape(note)}</title></circle>'
        if kind != "plain":
            aside = -8 if kind == "peer" and row[metric] else 8
            anchor = "end" if aside < 0 else "start"
            yield _text(x(row[metric]) + aside, _y(row["pct_of_bound"]) + 4, _label(case, system), kind, anchor=anchor)


def _legend() -> Iterator[str]:
    names = (
        ("us", "outrider: hard maximum (batches ahead)"),
        ("peer", "models of other rules"),
        ("plain", "plain rule"),
    )
    for number, (kind, text) in enumerate(names):
        x = MARGIN + 290 * number
        yield f'<circle class="{kind}" cx="{x}" cy="{HEIGHT - 18}" r="5"/>'
        yield _text(x + 12, HEIGHT - 14, text)


def _kind(system: str) -> str:
    return {US: "us", PLAIN: "plain"}.get(system, "peer")


def _label(case: str, system: str) -> str:
    _, _, limit = case.partition("max=")
    return limit.replace(" ahead=", " (") + (")" if "ahead" in limit else "") if system == US else system[9:]


def _y(percent: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * percent / 100


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

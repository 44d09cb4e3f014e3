"""The loads as one SVG file: how much of the machines' time was used, and how long rollouts waited for them."""

from collections.abc import Iterator, Mapping
from html import escape

from pooling.systems import LOCK, US

WIDTH, MARGIN, GAP, TOP = 960, 20, 40, 56
LABEL = 210
ROW, CASE = 20, 30
"""Heights of a bar with its space, and of the title of a case."""

STYLE = """
.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.plot .paper{fill:#fff}.plot .title{font-weight:600;font-size:13px;fill:#1f2328}.plot text{fill:#57606a}
.plot .us{fill:#5b7cfa;stroke:#5b7cfa}.plot .peer{fill:#d1512d;stroke:#d1512d}.plot .part{fill:#8c959f;stroke:#8c959f}
.plot .rail{fill:#d8dee4}.plot text{stroke:none}.plot .range{stroke-width:3}
@media (prefers-color-scheme:dark){.plot .paper{fill:#0d1117}.plot .title{fill:#e6edf3}.plot text{fill:#9198a1}
.plot .rail{fill:#30363d}}
"""

Rows = Mapping[tuple[str, str], Mapping[str, float]]


def picture(rows: Rows) -> str:
    """The picture as SVG text; `rows` holds the figures by case and system."""
    cases = list(dict.fromkeys(case for case, _ in rows))
    height = TOP + CASE * len(cases) + ROW * len(rows) + MARGIN
    width = (WIDTH - LABEL - 2 * MARGIN - GAP - 60) / 2
    used, waited = LABEL + MARGIN, LABEL + MARGIN + width + GAP
    parts = [
        _text(used, TOP - 24, "used, % of machine-seconds", "title"),
        _text(waited, TOP - 24, "wait: p50 to p99, dot at p95", "title"),
    ]
    y = float(TOP)
    for case in cases:
        found = {system: row for (one, system), row in rows.items() if one == case}
        parts.append(_text(MARGIN, y + 8, case, "title"))
        y += CASE
        longest = max(row["wait_p99_seconds"] for row in found.values()) or 1.0
        for system, row in found.items():
            parts += _row(system, row, y - 12, (used, waited, width), longest)
            y += ROW
    body = "\n".join(parts)
    return (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="Utilisation and waits">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def _row(
    system: str, row: Mapping[str, float], y: float, places: tuple[float, float, float], longest: float
) -> Iterator[str]:
    used, waited, width = places
    kind = {US: "us", LOCK: "peer"}.get(system, "part")
    percent = row["utilisation_pct"]
    yield _text(used - 8, y + 10, system, anchor="end")
    yield f'<rect class="rail" x="{used:.1f}" y="{y:.1f}" width="{width - 50:.1f}" height="12"/>'
    yield f'<rect class="{kind}" x="{used:.1f}" y="{y:.1f}" width="{(width - 50) * percent / 100:.1f}" height="12"/>'
    yield _text(used + width - 44, y + 10, f"{percent:.1f} %")
    p50, p95, p99 = (waited + width * row[f"wait_{name}_seconds"] / longest for name in ("p50", "p95", "p99"))
    yield f'<line class="{kind} range" x1="{p50:.1f}" x2="{p99:.1f}" y1="{y + 6:.1f}" y2="{y + 6:.1f}"/>'
    yield f'<circle class="{kind}" cx="{p95:.1f}" cy="{y + 6:.1f}" r="4"/>'
    yield _text(waited + width + 10, y + 10, f"{row['wait_p95_seconds']:.4g} s")


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

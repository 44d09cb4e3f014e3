"""Learning curves of synchronous and asynchronous training, side by side: `python curves.py` writes `curves.svg`.

Extra: `train`.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace
from train import CONFIG, Step, train

from outrider.evaluate.plot import axis_ticks
from outrider.train import read_scheduler_config
from policy import LinearPolicy

ANSWER_SECONDS = 0.03
UPDATE_SECONDS = 0.4
N_STEPS = 15
N_RUNS = 5

WIDTH, HEIGHT = 960, 304
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP = 56, 56, 400, 216, 64
COLOURS = ("#5b7cfa", "#d1512d")
STYLE = """
.curves{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.curves .paper{fill:#fff}.curves text{fill:#57606a}.curves .title{font-weight:600;font-size:13px;fill:#1f2328}
.curves .grid{stroke:#d8dee4}.curves .curve{fill:none;stroke-width:2;stroke-linejoin:round}
@media (prefers-color-scheme:dark){.curves .paper{fill:#0d1117}.curves text{fill:#9198a1}
.curves .title{fill:#e6edf3}.curves .grid{stroke:#30363d}}
"""


def draw(curves: Mapping[str, Sequence[Step]]) -> str:
    """The picture as SVG text: success rates by step on the left, by seconds on the right."""
    by_step = {name: [(step.number, step.success) for step in steps] for name, steps in curves.items()}
    by_time = {name: [(step.seconds, step.success) for step in steps] for name, steps in curves.items()}
    right = LEFT + PANEL_WIDTH + GAP
    parts = [*_panel("Success by step", by_step, LEFT), *_panel("Success by seconds", by_time, right)]
    for number, (name, steps) in enumerate(curves.items()):
        parts.append(_text(LEFT + 200 * number, 24, f"— {name}, {steps[-1].seconds:.1f} s", COLOURS[number]))
    return (
        f'<svg class="curves" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="Success rates of {escape(" and ".join(curves))} training">\n'
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], left: int) -> Iterator[str]:
    bottom, right = TOP + PANEL_HEIGHT, left + PANEL_WIDTH
    ticks = axis_ticks(0.0, max(x for points in curves.values() for x, _ in points))
    yield _text(left, TOP - 10, title)
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = bottom - share * PANEL_HEIGHT
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    for tick in ticks:
        x = left + tick / ticks[-1] * PANEL_WIDTH
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
    for colour, (name, points) in zip(COLOURS, curves.items(), strict=True):
        places = [(left + x / ticks[-1] * PANEL_WIDTH, bottom - y * PANEL_HEIGHT) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="curve" stroke="{colour}" points="{path}"><title>{escape(name)}</title></polyline>'


def _text(x: float, y: float, text: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text class="title" x="{x}" y="{y}"{style}>{escape(text)}</text>'


def curve(ratio: float) -> list[Step]:
    """How a training does that generates `ratio` batches ahead: the mean of some, which differ in their lakes."""
    runs = [asyncio.run(_run(ratio, seed)) for seed in range(N_RUNS)]
    return [
        Step(
            number=number,
            success=fmean(step.success for step in steps),
            staleness=fmean(step.staleness for step in steps),
            seconds=fmean(step.seconds for step in steps),
        )
        for number, steps in enumerate(zip(*runs, strict=True), 1)
    ]


def _run(ratio: float, seed: int) -> Coroutine[None, None, list[Step]]:
    config = replace(read_scheduler_config(CONFIG), async_generation_ratio=ratio, seed=seed)
    return train(config, LinearPolicy(answer_seconds=ANSWER_SECONDS, update_seconds=UPDATE_SECONDS), N_STEPS)


if __name__ == "__main__":
    Path("curves.svg").write_text(draw({"synchronous": curve(0.0), "asynchronous": curve(1.0)}))

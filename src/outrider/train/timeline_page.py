"""The page of a timeline: one file with a picture of all slots, to find out where they stood idle.

Invariants:
- It loads nothing: style, script and data are in the file, and its security policy forbids all else.
- Whatever came from outside goes through `escape`, or is data that the script shows as text.
- Its size is bounded: bars that are too thin to be seen are merged until they fit.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from outrider.core.causes import Cause
from outrider.train import assets
from outrider.train.timeline import THIN_SECONDS, Bar, MarkKind, SlotSeconds, Stay, Timeline, merged
from outrider.train.watch import Phase

MAX_BARS = 200_000
"""How many bars a page holds; about 1.5 MB."""

_MEANINGS: Mapping[Phase, str] = {
    Phase.MACHINE: "waits for a machine to be free",
    Phase.RESET: "the environment is made and reset",
    Phase.HELD: "waits for leave to ask the model",
    Phase.MODEL: "the model is asked",
    Phase.ENV: "the environment takes a step",
    Phase.SCORE: "scored and closed",
}


def page_of(
    timeline: Timeline,
    *,
    title: str,
    facts: Mapping[str, Any] | None = None,
    causes: Sequence[Cause] = (),
    max_bars: int = MAX_BARS,
) -> str:
    """The page as HTML text. `causes` say why rollouts failed."""
    return "".join(_document(timeline, title, facts or {}, causes, max_bars))


def _document(
    timeline: Timeline, title: str, facts: Mapping[str, Any], causes: Sequence[Cause], max_bars: int
) -> Iterator[str]:
    style = files(assets).joinpath("timeline.css").read_text(encoding="utf-8")
    script = files(assets).joinpath("timeline.js").read_text(encoding="utf-8")
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    named = "".join(f"<span>{escape(name)} <b>{escape(str(value))}</b></span>" for name, value in facts.items())
    spent = timeline.slot_seconds()
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style></head>\n<body>'
    yield f'<h1>{escape(title)}</h1><p class="facts">{named}</p>\n<div class="tiles">{"".join(_tiles(timeline, spent))}'
    yield "</div>\n"
    if causes:
        yield f'<ul class="causes">{"".join(map(_cause, causes))}</ul>\n'
    if timeline.n_left_out:
        yield f'<p class="note">Only the latest attempts are here; {timeline.n_left_out:,} before them are not.</p>\n'
    yield f'<ul class="legend">{"".join(_legend(spent))}</ul>\n'
    yield '<div class="chart"><canvas id="chart" role="img" aria-label="What each slot did when"></canvas></div>\n'
    yield '<p class="hint">Drag over a stretch of time to see it closer, double-click for all of it. '
    yield "Gaps are idle slots: bubbles.</p>\n"
    yield '<div id="tip" hidden></div>\n<noscript><p class="note">The picture needs a script.</p></noscript>\n'
    yield f'<script type="application/json" id="data">{_json(data_of(timeline, max_bars=max_bars))}</script>\n'
    yield f"<footer>Made by Outrider.</footer>\n<script>{script}</script></body></html>\n"


def _json(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _cause(cause: Cause) -> str:
    side = f"{cause.boundary}: " if cause.boundary else ""
    return f"<li><b>{cause.n:,} failed</b> {escape(side + cause.message)} <code>{escape(cause.example)}</code></li>"


def _tiles(timeline: Timeline, spent: SlotSeconds) -> Iterator[str]:
    n_batches = len({mark.batch for mark in timeline.marks if mark.kind is MarkKind.PUBLISHED})
    numbers = {
        "of the slots' time at work": f"{spent.at_work:.1%}",
        "of it occupied, with what waits": f"{spent.occupancy:.1%}",
        "slots": f"{timeline.n_slots:,}",
        "attempts": f"{len(timeline.stays):,}",
        "batches trained on": f"{n_batches:,}",
        "from the first claim to the last end": _span(timeline.seconds),
    }
    for name, number in numbers.items():
        yield f'<div class="tile"><b>{number}</b><span>{name}</span></div>'


def _legend(spent: SlotSeconds) -> Iterator[str]:
    for phase in Phase:
        if phase is Phase.MACHINE and not spent.by_phase[phase]:
            continue  # most runs have no machines
        yield _legend_entry(phase, phase, _MEANINGS[phase], spent.by_phase[phase], spent.total)
    yield _legend_entry("idle", "idle", "no attempt in the slot", spent.idle, spent.total)
    yield '<li><i class="trainer"></i>training</li><li><i class="mark delivered"></i>batch delivered</li>'
    yield '<li><i class="mark published"></i>version published</li>'


def _legend_entry(kind: str, name: str, meaning: str, seconds: float, total: float) -> str:
    share = f"{seconds / total:.1%}" if total else "-"
    shown = f"{name} <small>{share}, {_span(seconds)}</small>"
    return f'<li title="{escape(meaning)}"><i class="{kind}"></i>{shown}</li>'


def _span(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004 two minutes are easier to read as seconds
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def data_of(timeline: Timeline, *, max_bars: int = MAX_BARS) -> dict[str, Any]:
    """What the page's script draws. Times are milliseconds since the beginning.

    An attempt is its row, begin, rollout, group, tag, version, status, and its bars: phase, length, phase, length, ….
    """
    phases, statuses = list(Phase), sorted({stay.status for stay in timeline.stays})
    groups, tags = _numbered(stay.group_id for stay in timeline.stays), _numbered(stay.tag for stay in timeline.stays)
    workers = timeline.workers()
    first_rows, rows = _rows(workers)
    thinned = _thinned(timeline.stays, max_bars)
    return {
        "span": _ms(timeline.seconds),
        "phases": phases,
        "statuses": statuses,
        "workers": list(workers),
        "rows": rows,
        "groups": list(groups),
        "tags": list(tags),
        "attempts": [
            [
                first_rows[stay.worker_id] + stay.lane,
                _ms((stay.began_at - timeline.began_at).total_seconds()),
                stay.rollout_id,
                groups[stay.group_id],
                tags[stay.tag],
                stay.version,
                statuses.index(stay.status),
                [number for bar in bars for number in (phases.index(bar.phase), _ms(bar.ended) - _ms(bar.began))],
            ]
            for stay, bars in zip(timeline.stays, thinned, strict=True)
        ],
        "marks": [[_since(timeline, mark.at), mark.kind, mark.label] for mark in timeline.marks],
        "training": list(_training(timeline)),
    }


def _numbered(names: Iterator[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _rows(workers: Mapping[str, Sequence[Stay]]) -> tuple[dict[str, int], list[int]]:
    """The first row of each worker, and for each row the number of its worker."""
    first_rows: dict[str, int] = {}
    rows: list[int] = []
    for number, (worker_id, stays) in enumerate(workers.items()):
        first_rows[worker_id] = len(rows)
        rows += [number] * (max(stay.lane for stay in stays) + 1)
    return first_rows, rows


def _thinned(stays: Sequence[Stay], max_bars: int) -> list[Sequence[Bar]]:
    """The bars of each, merged so far that all of them are no more than `max_bars`, or one for each."""
    found: list[Sequence[Bar]] = [merged(stay.bars, THIN_SECONDS) for stay in stays]
    thin_seconds = sum(stay.seconds for stay in stays) / max(max_bars, 1)
    while sum(map(len, found)) > max(max_bars, len(stays)):
        found = [merged(bars, thin_seconds) for bars in found]
        thin_seconds *= 2
    return found


def _training(timeline: Timeline) -> Iterator[list[Any]]:
    """When the trainer had a batch: from its delivery to the version that came of it."""
    published = {mark.batch: mark.at for mark in timeline.marks if mark.kind is MarkKind.PUBLISHED}
    for mark in timeline.marks:
        if mark.kind is MarkKind.DELIVERED:
            until = published.get(mark.batch, timeline.ended_at)
            yield [_since(timeline, mark.at), _since(timeline, until), f"training on batch {mark.batch}"]


def _since(timeline: Timeline, at: datetime) -> int:
    return _ms((at - timeline.began_at).total_seconds())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

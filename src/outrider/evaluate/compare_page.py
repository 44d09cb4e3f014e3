"""The page of a comparison: one file that loads nothing, in the style of the page of a run."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from outrider.evaluate import assets
from outrider.evaluate.compare import Comparison, TaskPair
from outrider.evaluate.markup import readable
from outrider.evaluate.report import estimate_text

MAX_TASKS = 5_000
_CUT = 200
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def compare_page(found: Comparison) -> str:
    """The page as text: the numbers, then each task, the greatest difference first."""
    title = f"{found.b} against {found.a}"
    style = files(assets).joinpath("page.css").read_text(encoding="utf-8")
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in _tiles(found)
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in doubts(found))
    rows = "".join(map(_row, found.tasks[:MAX_TASKS]))
    more = len(found.tasks) - MAX_TASKS
    rest = f'<p class="note">{more:,} tasks with smaller differences are left out here; --json has all.</p>'
    heading = "".join(
        f'<th class="{"number" if name in ("A", "B", "B less A") else ""}">{name}</th>'
        for name in ("task", "A", "B", "B less A", "answer of A", "answer of B")
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<style>{style}</style></head>\n<body>'
        f'<h1>{escape(title)}</h1><p class="facts"><span>A <b>{escape(found.a)}</b></span>'
        f"<span>B <b>{escape(found.b)}</b></span></p>"
        f'<div class="tiles">{tiles}</div>{notes}\n<table class="compare"><thead><tr>{heading}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table>{rest if more > 0 else ''}\n<footer>Made by Outrider.</footer></body></html>\n"
    )


def doubts(found: Comparison) -> Iterator[str]:
    """What readers of the comparison should know of its pairs, and what it is not about."""
    n, n_differing = len(found.tasks), len(found.differing)
    if n_differing:
        yield (
            f"{n_differing:,} of {n:,} pairs have the same id, but another question or expected answer, such as "
            f"{found.differing[0]}; {n - n_differing:,} match: are both runs on the same file, with choices in the "
            "same order?"
        )
    yield from left_out(found)


def left_out(found: Comparison) -> Iterator[str]:
    """What the comparison is not about."""
    for name, tasks in ((found.a, found.only_a), (found.b, found.only_b)):
        if tasks:
            yield f"{len(tasks):,} tasks are in {name} alone and not compared"
    if found.unscored:
        yield f"{len(found.unscored):,} tasks have no score in one of the runs and are not compared"


def p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"  # noqa: PLR2004 further digits say nothing


def _tiles(found: Comparison) -> Iterator[tuple[str, str]]:
    n = len(found.tasks)
    yield f"mean reward of A over {n:,} tasks", f"{found.mean_a:.3f}"
    yield f"mean reward of B over {n:,} tasks", f"{found.mean_b:.3f}"
    yield f"B less A {estimate_text(found.difference).partition(' ')[2]}", f"{found.difference.mean:+.3f}"
    yield found.test, p_text(found.p)
    yield "tasks better, worse, the same in B", f"{found.n_better:,} / {found.n_worse:,} / {found.n_same:,}"


def _row(pair: TaskPair) -> str:
    kind = "good" if pair.difference > 0 else "bad" if pair.difference < 0 else "none"
    numbers = "".join(f'<td class="number">{text}</td>' for text in (f"{pair.a:.3g}", f"{pair.b:.3g}"))
    answers = "".join(f"<td>{_cut(answer)}</td>" for answer in (pair.answer_a, pair.answer_b))
    return (
        f"<tr><td>{escape(pair.task_id)}</td>{numbers}"
        f'<td class="number {kind}">{pair.difference:+.3g}</td>{answers}</tr>\n'
    )


def _cut(answer: Any) -> str:
    text = "" if answer is None else answer if isinstance(answer, str) else readable(answer)
    line = " ".join(text[: _CUT * 2].split())
    return escape(line[:_CUT].encode(errors="replace").decode())

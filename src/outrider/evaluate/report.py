"""The report of a run: `summary.json` for programs, `summary.md` with `plot.svg` for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.core import wire
from outrider.core.crash_points import reached
from outrider.core.decoding import from_json
from outrider.core.errors import Boundary
from outrider.core.files import write_private_whole
from outrider.evaluate.estimate import Estimate
from outrider.evaluate.plot import count_text, plot, seconds_text
from outrider.evaluate.summary import GroupSummary, Quantiles, Scored, Summary

SUMMARY_JSON, SUMMARY_MD, PLOT = "summary.json", "summary.md", "plot.svg"

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


def write_report(folder: Path, summary: Summary, *, run: str, facts: Mapping[str, Any] | None = None) -> None:
    """Write the three files into `folder`, each whole or not at all. `facts` say what was run: model, mode, data."""
    facts = facts or {}
    values = from_json(wire.to_json({"run": run, "facts": facts}))
    values |= from_json(wire.to_json(summary))
    write_private_whole(folder / SUMMARY_JSON, msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")
    reached("report.summary_written")
    write_private_whole(folder / PLOT, plot(summary))
    reached("report.plot_written")
    write_private_whole(folder / SUMMARY_MD, markdown(summary, run=run, facts=facts))


def markdown(summary: Summary, *, run: str, facts: Mapping[str, Any]) -> str:
    """The report for people."""
    total = summary.total
    parts = [
        f"# {_plain(run)}",
        *([_table(("", ""), [(name, f"{value}") for name, value in facts.items()])] if facts else []),
        _headline(total),
        f"![Scores, seconds and tokens]({PLOT})",
        "## Scores",
        _table(("", "scored", "all"), _scores(total)),
        _reading(summary),
    ]
    for name, groups in summary.by.items():
        if name != "tag" or len(groups) > 1:
            parts += [f"## By {_plain(name)}", _group_table(name, groups)]
    if summary.not_grouped:
        parts.append(f"Fields with too many values to split by: {', '.join(map(_plain, summary.not_grouped))}.")
    if total.failures:
        parts += ["## Failures", _table(("side", "whose", "rollouts"), _failures(total))]
        parts.append(_table(("cause", "rollouts", "one of them"), _causes(summary)))
    parts += ["## Work", _table(("", "mean", "p50", "p95", "max"), _spreads(total)), _totals(summary)]
    return "\n\n".join(parts) + "\n"


def estimate_text(estimate: Estimate | None) -> str:
    """A mean with its interval: `0.624 [0.583, 0.663]`."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.3f}"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def missing_text(total: GroupSummary) -> str:
    """Says what has no score, and why: `29 of 1,600 rollouts have no score: 20 failed (12 policy, 8 limit)`."""
    n_missing = total.n - total.n_scored
    if not n_missing:
        return f"All {total.n:,} rollouts were scored."
    sides = ", ".join(f"{n:,} {side}" for side, n in total.failures.items())
    reasons = []
    if n_failed := total.statuses.get("failed", 0):
        reasons.append(f"{n_failed:,} failed" + (f" ({sides})" if sides else ""))
    if n_cancelled := total.statuses.get("cancelled", 0):
        reasons.append(f"{n_cancelled:,} cancelled")
    if n_unscored := n_missing - n_failed - n_cancelled:
        reasons.append(f"{n_unscored:,} ended without one")
    return f"{n_missing:,} of {total.n:,} rollouts have no score: {', '.join(reasons)}."


def spent_text(total: GroupSummary) -> str:
    """The time that all attempts took together, of which most run at once: `3 min 2 s by all attempts, ...`."""
    seconds, calls = seconds_text(total.attempt_seconds), seconds_text(total.model_seconds)
    return f"{seconds} by all attempts together, {calls} of it in model calls"


def _headline(total: GroupSummary) -> str:
    scored = total.reward.scored
    if scored is None:
        return f"**No score** from {total.n:,} rollouts. {missing_text(total)}"
    mean = f"**Mean reward {estimate_text(scored)}** over {scored.n:,} rollouts of {total.n_tasks:,} tasks"
    return f"{mean}. {missing_text(total)}"


def _scores(total: GroupSummary) -> Iterator[tuple[str, str, str]]:
    yield "rollouts", f"{total.n_scored:,}", f"{total.n:,}"
    yield "mean reward", estimate_text(total.reward.scored), estimate_text(total.reward.all)
    for k, passed in total.pass_at.items():
        yield f"pass@{k}", _of_tasks(passed.scored, total.n_tasks), _of_tasks(passed.all, total.n_tasks)


def _failures(total: GroupSummary) -> Iterator[tuple[str, str, str]]:
    for side, n in total.failures.items():
        yield side, "infrastructure" if Boundary(side).is_infrastructure else "the agent's", f"{n:,}"


def _causes(summary: Summary) -> Iterator[tuple[str, str, str]]:
    for cause in summary.causes:
        yield f"{cause.boundary}: {cause.message}", f"{cause.n:,}", cause.example


def _of_tasks(estimate: Estimate | None, n_tasks: int) -> str:
    text = estimate_text(estimate)
    return text if estimate is None or estimate.n == n_tasks else f"{text} ({estimate.n:,} of {n_tasks:,} tasks)"


def _reading(summary: Summary) -> str:
    return (
        "Brackets are 95 % confidence intervals over tasks. *scored* leaves out what has no score; *all* counts it as "
        f"nothing reached. A sample passes with a reward of {summary.success_at:g} or more; pass@k leaves out samples "
        "that the infrastructure lost, and counts them as not passed under *all*."
    )


def _group_table(name: str, groups: Mapping[str, GroupSummary]) -> str:
    rows = [
        (
            value,
            f"{group.n:,}",
            estimate_text(group.reward.scored),
            estimate_text(group.reward.all),
            estimate_text(_pass_one(group)),
            "-" if group.seconds is None else seconds_text(group.seconds.p50),
        )
        for value, group in groups.items()
    ]
    return _table((name, "rollouts", "mean reward, scored", "mean reward, all", "pass@1", "p50"), rows)


def _pass_one(group: GroupSummary) -> Estimate | None:
    return group.pass_at.get(1, Scored(scored=None, all=None)).scored


def _spreads(total: GroupSummary) -> Iterator[tuple[str, ...]]:
    for name, spread, shown in (
        ("seconds", total.seconds, seconds_text),
        ("turns", total.turns, count_text),
        ("tokens", total.tokens, count_text),
    ):
        yield (name, *_spread(spread, shown))


def _spread(spread: Quantiles | None, shown: Any) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 4
    return tuple(shown(value) for value in (spread.mean, spread.p50, spread.p95, spread.max))


def _totals(summary: Summary) -> str:
    total = summary.total
    sentences = [
        f"{total.model_calls:,} model calls, {total.prompt_tokens:,} tokens in and {total.completion_tokens:,} out",
        f"{seconds_text(summary.wall_seconds)} in all",
        spent_text(total),
    ]
    if summary.rollouts_per_second is not None and summary.tokens_per_second is not None:
        sentences.append(
            f"{summary.rollouts_per_second:.3g} rollouts and {summary.tokens_per_second:,.0f} tokens a second"
        )
    sentences.append(f"{total.retries:,} attempts and {total.call_retries:,} calls repeated, all counted")
    if summary.money is not None:
        sentences.append(f"{summary.money:.4g} in money")
    if summary.n_planned is not None and total.n < summary.n_planned:
        sentences.append(f"{summary.n_planned:,} rollouts planned, {summary.n_begun:,} begun, {total.n:,} done")
    if summary.n_replaced:
        sentences.append(f"{summary.n_replaced:,} samples replaced by their retries")
    return "; ".join(sentences) + "."


def _table(heading: Sequence[str], rows: Any) -> str:
    lines = [heading, ["---", *(["---:"] * (len(heading) - 1))], *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))

"""Scoring an episode: OSWorld's evaluators on the machine that the agent has left."""

import asyncio
from dataclasses import dataclass
from typing import Any

from outrider.core.decoding import convert
from outrider.env.osworld.action import Special
from outrider.env.osworld.getters import GETTERS, GotFile
from outrider.env.osworld.metrics import METRICS, Expected
from outrider.env.osworld.setup import Setup
from outrider.env.osworld.task import Check, Evaluator, Getter
from outrider.env.osworld.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the episode was worth, from 0 to 1, and why."""

    value: float
    reason: str


async def evaluate(evaluator: Evaluator, workspace: Workspace, last: Special | None) -> Verdict:
    """`last` is the last action, if it was a special one. What is infrastructure's fault is raised, never scored.

    An agent that gave up gets 0, and 1 where giving up is right. `and` is 0 as soon as one check is, and the mean of
    all otherwise; `or` is the best one.
    """
    await Setup(workspace).run(evaluator.postconfig, is_after=True)
    gave_up = last is Special.FAIL
    if not evaluator.checks:
        said = "said" if gave_up else "did not say"
        return Verdict(value=float(gave_up), reason=f"infeasible: the agent {said} FAIL")
    if gave_up:
        return Verdict(value=0.0, reason="the agent said FAIL, but the task can be done")
    decides = 0.0 if evaluator.conj == "and" else 1.0
    values: list[float] = []
    reasons: list[str] = []
    for check in evaluator.checks:
        value, reason = await _score(check, workspace)
        values.append(value)
        reasons.append(reason)
        if value == decides:
            return Verdict(value=value, reason="; ".join(reasons))
    total = sum(values) / len(values) if evaluator.conj == "and" else max(values)
    return Verdict(value=total, reason="; ".join(reasons))


async def _score(check: Check, workspace: Workspace) -> tuple[float, str]:
    metric = METRICS[check.func]
    result = await _got(check.result, workspace)
    expected = None if check.expected is None else await _got(check.expected, workspace)
    if not isinstance(metric.expects, Expected):
        expected = convert(expected, metric.expects)
    options = convert(dict(check.options), metric.options)
    # In a thread, since it may take its time with what the agent has made.
    found = await asyncio.to_thread(metric.score, result, expected, options)
    value = min(max(found, 0.0), 1.0)
    return value, f"{check.func}: {value:g} of {check.result.type} {_shown(result)}"


async def _got(getter: Getter, workspace: Workspace) -> Any:
    kind = GETTERS[getter.type]
    return await kind.get(convert(dict(getter.settings), kind.settings), workspace)


def _shown(result: Any) -> str:
    if isinstance(result, GotFile):
        return f"{result.name} ({len(result.data)} bytes)"
    text = repr(result)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


_MOST_CHARS = 120

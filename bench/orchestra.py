"""ORCHESTRA: teams of agents, each sample by itself, against batches with masks; and what each switch is worth.

Teams, policy, tokenizer and rows are real, the model is a rule; see `orchestrating/`.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import mul
from typing import Any

from goals import Goal, Line
from orchestrating import parts, tokens
from orchestrating.cells import Bench, Cell, Figures, n_differing
from orchestrating.names import (
    ALL_OFF,
    FREE,
    LEAST,
    LIMITED,
    MASKS,
    NO_CACHE,
    NO_EXIT,
    ONE_BY_ONE,
    PARTS,
    PARTS_SYNC,
    REAL,
    SERIAL,
    STREAM,
    SYNC,
    SYNC_NO_CACHE,
    SYNC_SPARE,
    SYNC_WHOLE,
    US,
)
from orchestrating.picture import picture
from orchestrating.tables import METHOD, PICTURE
from orchestrating.tables import tables as tables_of
from orchestrating.workload import RATES, SAMPLES, least_seconds
from outrider.testing import run_virtual
from report import Report, main

__all__ = ["GOOD", "METHOD", "pictures", "run", "tables"]

FLOWS = ("critic", "episode", "math")
AS_MASKS = {
    "batch_synchronous": True,
    "enable_agent_skip": False,
    "enable_preprocessing_cache": False,
    "enable_parallel_agents": False,
}
"""As Dr. MAS works: approved samples are left out of later calls there too, so early termination stays on."""

LOCKSTEP = {"batch_synchronous": True}
UNCACHED = {**LOCKSTEP, "enable_preprocessing_cache": False}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    NO_EXIT: {"switches": {"enable_early_termination": False}},
    NO_CACHE: {"switches": {"enable_preprocessing_cache": False}},
    SERIAL: {"switches": {"enable_parallel_agents": False}},
    SYNC: {"switches": LOCKSTEP},
    SYNC_SPARE: {"switches": {**LOCKSTEP, "enable_agent_skip": False}},
    SYNC_NO_CACHE: {"switches": UNCACHED},
    SYNC_WHOLE: {"switches": UNCACHED, "whole_batch": True},
    LIMITED: {"switches": {"max_context_length": 8192}},
    ALL_OFF: {"switches": {**AS_MASKS, "enable_early_termination": False}, "whole_batch": True},
}
"""Our settings with one of them changed; the baseline with one more; and everything at once."""

BESIDE = {SYNC_SPARE: SYNC, SYNC_WHOLE: SYNC_NO_CACHE}
"""The baseline without that one more."""

SWITCHES = (NO_EXIT, NO_CACHE, SERIAL, SYNC, SYNC_SPARE)
N_PARTS = 4
GROUP = 8

MEAN = "mean_cpu_ms_per_call"
GAIN = "best_gain"
"""Of wall or CPU seconds, where the least of all rounds is largest: noise does not count as a gain."""

GOOD = (
    Goal(text="the same samples", metric="samples_off", at_most=0.0),
    Goal(text="≤ 2 ms CPU per agent call, over all calls of the largest batch", metric=MEAN, at_most=2.0),
    Goal(text="the same in each case, whatever its prompts", metric="cpu_ms_per_call", at_most=2.0),
    Goal(text="each prompt tokenised at most once", metric="tokenised_of_prompt", at_most=1.0),
    Goal(
        text=f"never slower than `{MASKS}` in the same run: wall ≤ 1x",
        metric="ratio",
        of="wall_seconds",
        against=MASKS,
        at_most=1.0,
    ),
    Goal(text="rows identical in every mode, also one by one", metric="rows_differing", at_most=0.0),
    Goal(text="each switch's gain, in the best of its cases ≥ 1.02x", metric=GAIN, at_least=1.02),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run."""

    batches: Sequence[int]
    masked: Sequence[int]
    rounds: int
    switch_batch: int
    stream_batch: int
    memory_batch: int
    real_batch: int
    rates: Sequence[float] = RATES
    texts: tuple[str, ...] = tokens.TEXTS


FULL = Sizes(
    batches=(8, 64, 256),
    masked=(8, 64, 256),
    rounds=3,
    switch_batch=64,
    stream_batch=64,
    memory_batch=256,
    real_batch=64,
)
QUICK = replace(FULL, batches=(8, 256), masked=(8, 256))


class Round:
    """Runs cells, compares the rows of those that do the same work, and tells their figures."""

    def __init__(self, report: Report, bench: Bench) -> None:
        self._report = report
        self._bench = bench
        self._rows: dict[tuple[object, ...], tuple[bytes, ...]] = {}
        self.n_differing = 0
        self.n_compared = 0

    def play(self, cell: Cell, system: str, case: str = "", **how: Any) -> Figures:
        case = case or cell.case
        figures = self._bench.run(cell, **how)
        self._compare(cell, system, figures)
        add = self._report.add
        add(case, system, "samples", figures.samples, "n")
        add(case, system, "cpu_seconds", figures.cpu_seconds, "s")
        add(case, system, "wall_seconds", figures.wall_seconds, "s")
        add(case, system, "cpu_ms_per_call", figures.cpu_ms_per_call, "ms")
        add(case, system, "samples_per_second", figures.samples / figures.wall_seconds, "1/s")
        add(case, system, "rollouts_per_second", cell.batch / figures.wall_seconds, "1/s")
        add(case, system, "prompt_tokens", figures.prompt_tokens, "tokens")
        add(case, system, "tokenised_per_call", figures.tokenised, "tokens")
        add(case, system, "tokenising_ms_per_call", 1000 * figures.tokenising_seconds / figures.samples, "ms")
        add(case, system, "rollout_mean_seconds", figures.statistics.wall.mean, "s")
        if figures.for_nothing:
            add(case, system, "calls_for_nothing", figures.for_nothing, "n")
        return figures

    def _compare(self, cell: Cell, system: str, figures: Figures) -> None:
        expected = self._rows.setdefault(cell.work, figures.rows)
        wrong = n_differing(expected, figures.rows)
        self.n_compared += 1
        self.n_differing += wrong
        if wrong:
            self._report.say(f"{cell.case}, {system}: {wrong} of {len(expected)} rows and outcomes differ")


def matrix(sizes: Sizes, batches: Sequence[int]) -> Iterator[Cell]:
    for flow, batch, rate, tail in product(FLOWS, batches, sizes.rates, (False, True)):
        yield Cell(flow=flow, batch=batch, rate=rate, tail=tail)


def measure_matrix(report: Report, playing: Round, sizes: Sizes) -> None:
    """Ours and batches with masks, one after the other in each round."""
    for number in range(sizes.rounds):
        for cell in matrix(sizes, sorted({*sizes.batches, *sizes.masked})):
            if cell.batch in sizes.batches:
                tell_ours(report, cell, playing.play(cell, US), with_agents=number == 0)
            if cell.batch in sizes.masked:
                playing.play(replace(cell, switches=AS_MASKS, whole_batch=True), MASKS)
        report.say(f"round {number + 1} of {sizes.rounds}: all flows, batches, approvals and latencies")
    tell_calls(report, [cell.case for cell in matrix(sizes, sizes.batches[-1:])])
    for cell in matrix(sizes, sizes.batches):
        report.add(cell.case, LEAST, "wall_seconds", least_seconds(*cell.work[:3], tail=cell.tail), "s")
        if cell.batch in sizes.masked:
            for metric in ("wall_seconds", "cpu_seconds"):
                report.ratio(cell.case, metric, of=US, against=MASKS)
        if cell.batch == max(sizes.batches):
            playing.play(cell, FREE, on=run_virtual)
    report.publish()


def tell_ours(report: Report, cell: Cell, figures: Figures, *, with_agents: bool) -> None:
    expected = SAMPLES[cell.flow, cell.batch][RATES.index(cell.rate)]
    report.add(cell.case, US, "samples_off", abs(figures.samples - expected), "n")
    report.add(cell.case, US, "tokenised_of_prompt", figures.tokenised / figures.prompt_tokens, "x")
    for agent in figures.statistics.agents if with_agents else ():
        case = f"agent {cell.case}, {agent.agent}"
        report.add(case, US, "calls", agent.n_calls, "n")
        for name in ("total", "queue", "model", "parse"):
            report.add(case, US, f"{name}_mean_ms", 1000 * getattr(agent, name).mean, "ms")
        report.add(case, US, "critical_pct", 100 * agent.critical_share, "%")


def tell_calls(report: Report, cases: Sequence[str]) -> None:
    """Means over all calls."""
    n_calls = [report.value(case, US, "samples") for case in cases]

    def mean(metric: str) -> float:
        each = [report.value(case, US, metric) for case in cases]
        return sum(map(mul, each, n_calls)) / sum(n_calls)

    report.add("calls", US, MEAN, mean("cpu_ms_per_call"), "ms")
    report.add("calls", US, "mean_tokenising_ms", mean("tokenising_ms_per_call"), "ms")
    report.add("calls", US, "mean_prompt_tokens", mean("prompt_tokens"), "tokens")


def switch_cells(sizes: Sizes) -> Iterator[tuple[Cell, Sequence[str]]]:
    """What is run, and with which changes: those that can matter there."""
    for flow, rate in product(FLOWS, sizes.rates):
        everything = [system for system in VARIANTS if system != SERIAL]
        yield (
            Cell(flow=flow, batch=sizes.switch_batch, rate=rate, tail=True),
            everything if rate == RATES[0] else [NO_EXIT, SYNC],
        )
    for batch, tail in product(sorted({8, sizes.switch_batch}), (False, True)):
        yield Cell(flow="parallel", batch=batch, rate=RATES[0], tail=tail), [SERIAL, SYNC]
    yield Cell(flow="critic", batch=sizes.switch_batch, rate=RATES[0], tail=True, group=GROUP), [NO_CACHE]


def measure_switches(report: Report, playing: Round, sizes: Sizes) -> None:
    cells = list(switch_cells(sizes))
    for _, (cell, systems) in product(range(sizes.rounds), cells):
        playing.play(cell, US, switch_case(cell))
        for system in systems:
            playing.play(replace(cell, **VARIANTS[system]), system, switch_case(cell))
    for cell, systems in cells:
        for system, metric in product(systems, ("wall_seconds", "cpu_seconds")):
            report.ratio(switch_case(cell), metric, of=US, against=system)
            if system in BESIDE:
                report.ratio(switch_case(cell), metric, of=BESIDE[system], against=system)
    tell_gains(report, cells)
    report.publish()


def tell_gains(report: Report, cells: Sequence[tuple[Cell, Sequence[str]]]) -> None:
    """What each switch is worth where it is worth most: how many times as long it takes with the switch turned off."""
    for switch in SWITCHES:
        gains = [
            min(report.quotients(switch_case(cell), metric, of=switch, against=BESIDE.get(switch, US)))
            for (cell, systems), metric in product(cells, ("wall_seconds", "cpu_seconds"))
            if switch in systems
        ]
        if gains:
            report.add(gain_case(switch), US, GAIN, max(gains), "x")


def gain_case(switch: str) -> str:
    return f"switch: {switch}"


def switch_case(cell: Cell) -> str:
    return f"switches {cell.case}" + (f", groups of {cell.group}" if cell.group > 1 else "")


def measure_streams(report: Report, playing: Round, sizes: Sizes) -> None:
    """Several batches, through one window or one after the other."""
    window = sizes.stream_batch
    cells = [Cell(flow=flow, batch=N_PARTS * window, rate=RATES[0], tail=True, window=window) for flow in FLOWS]
    for _, cell in product(range(sizes.rounds), cells):
        case = stream_case(cell)
        for system, each in (
            (STREAM, cell),
            (PARTS, replace(cell, chunk=window)),
            (PARTS_SYNC, replace(cell, chunk=window, switches=LOCKSTEP)),
        ):
            figures = playing.play(each, system, case)
            report.add(case, system, "in_flight", figures.in_flight, "x")
    for cell, system in product(cells, (PARTS, PARTS_SYNC)):
        report.ratio(stream_case(cell), "wall_seconds", of=STREAM, against=system)
    report.publish()


def stream_case(cell: Cell) -> str:
    return f"stream {cell.flow} {N_PARTS}x{cell.window} p={cell.rate:g} tail"


def measure_rest(report: Report, playing: Round, sizes: Sizes) -> None:
    """Memory, one sample after the other, the real clock, and small parts."""
    for flow in FLOWS:
        cell = Cell(flow=flow, batch=sizes.memory_batch, rate=RATES[0], tail=True)
        for system, each in ((US, cell), (MASKS, replace(cell, switches=AS_MASKS, whole_batch=True))):
            figures = playing.play(each, f"{system}, traced", f"memory {cell.case}", traced=True)
            report.add(f"memory {cell.case}", system, "peak_mb", figures.peak_mb, "MB")
            report.add(f"memory {cell.case}", system, "kb_per_rollout", 1024 * figures.peak_mb / cell.batch, "KB")
    report.say("memory")
    for flow in (*FLOWS, "parallel"):
        cell = Cell(flow=flow, batch=sizes.switch_batch, rate=RATES[0], tail=True, window=1)
        playing.play(cell, ONE_BY_ONE, f"one by one {cell.case}", on=run_virtual)
    cell = Cell(flow="critic", batch=sizes.real_batch, rate=RATES[0], tail=False)
    for _ in range(3):
        playing.play(cell, US, f"clock {cell.case}")
        playing.play(cell, REAL, f"clock {cell.case}", on=asyncio.run)
    report.ratio(f"clock {cell.case}", "wall_seconds", of=REAL, against=US)
    for metric, value in parts.measure().items():
        report.add("parts", US, metric, value, "us")
    report.publish()


def measure(report: Report, sizes: Sizes) -> None:
    tokenizer, size = tokens.trained(sizes.texts)
    report.say(f"a tokenizer with {size:,} entries")
    report.add("tokenizer", US, "vocabulary", size, "n")
    playing = Round(report, Bench(tokenizer))
    for step in (measure_matrix, measure_switches, measure_streams, measure_rest):
        step(report, playing, sizes)
        report.say(f"{step.__name__} done")
    tell_rows(report, playing)


def tell_rows(report: Report, playing: Round) -> None:
    report.add("rows", US, "rows_differing", playing.n_differing, f"in {playing.n_compared} runs")
    report.publish()


def tables(lines: Sequence[Line]) -> list[str]:
    """The section in the results."""
    return tables_of(lines)


def pictures(lines: Sequence[Line]) -> dict[str, str]:
    """The files that belong to the section."""
    return {PICTURE: picture(lines)}


def run(report: Report, quick: bool) -> None:
    measure(report, QUICK if quick else FULL)


if __name__ == "__main__":
    sys.exit(main("orchestra", run, sys.argv[1:]))

"""The benchmark of teams: its workload, its model and its baseline, and that a tiny round measures all and can fail."""

import asyncio
import gc
import importlib
import io
import sys
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path

import pytest

from outrider.orchestra.team import Team
from outrider.testing import run_virtual

BENCH = Path(__file__).parents[2] / "bench"
TEXTS = ("README.md", "docs/concepts.md")

TINY = {
    "batches": (8,),
    "masked": (8,),
    "rounds": 1,
    "switch_batch": 8,
    "stream_batch": 2,
    "memory_batch": 8,
    "real_batch": 8,
    "texts": TEXTS,
}


@pytest.fixture
def program(monkeypatch):
    """Imports a module of the bench folder, as its programs do."""
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module
    gc.unfreeze()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{BENCH}/"):
            del sys.modules[name]


@pytest.fixture
def bench(program):
    tokenizer, _ = program("orchestrating.tokens").trained(TEXTS)
    return program("orchestrating.cells").Bench(tokenizer)


def cell(program, flow, *, batch=8, rate=0.85, tail=True, **more):
    return program("orchestrating.cells").Cell(flow=flow, batch=batch, rate=rate, tail=tail, **more)


def test_the_workload_asks_as_often_as_is_laid_down(program):
    workload = program("orchestrating.workload")
    for (flow, batch), expected in workload.SAMPLES.items():
        asked = [
            sum(len(list(workload.calls(flow, sid, batch, rate))) for sid in range(batch)) for rate in workload.RATES
        ]
        assert tuple(asked) == expected, (flow, batch)
    assert workload.SAMPLES["episode", 256] == (600, 1338)


def test_teams_send_those_samples_each_prompt_tokenised_once_and_lose_no_time_between_calls(program, bench):
    workload = program("orchestrating.workload")
    for flow, rate, batch in (*product(("critic", "episode", "math"), (0.85, 0.25), (8,)), ("math", 0.85, 64)):
        played = bench.run(cell(program, flow, rate=rate, batch=batch), on=run_virtual)
        assert played.samples == workload.SAMPLES[flow, batch][workload.RATES.index(rate)]
        assert played.for_nothing == 0
        assert played.tokenised <= played.prompt_tokens
        least = workload.least_seconds(flow, batch, rate, tail=True)
        assert least <= played.wall_seconds < least + batch * workload.ADMISSION_SECONDS


def test_the_model_takes_one_request_after_the_other_and_answers_each_in_its_own_time(program):
    server, workload = program("orchestrating.server"), program("orchestrating.workload")
    tokenizer, _ = program("orchestrating.tokens").trained(TEXTS)
    model = server.Server(server.World(batch=8, rate=0.85, tail=True), server.Replies(tokenizer))
    ended = {}

    async def ask(sid):
        model.coming = server.Asked(workload.SEARCH, sid, 0)
        request = server.TokenRequest(prompt_ids=[1, 2], sampling=None)
        reply, _ = await model.ask(request)
        ended[sid] = asyncio.get_running_loop().time()
        return tokenizer.decode(list(reply.ids))

    async def main():
        return await asyncio.gather(*map(ask, range(3)))

    said = run_virtual(main())
    assert said[1] == workload.response(workload.SEARCH, 1, 0, True) + "<|im_end|>"
    for sid, at in ended.items():
        assert at == pytest.approx(0.002 * (sid + 1) + 0.05 + workload.tail_ms(workload.SEARCH, sid, 0) / 1000)


def test_the_baseline_does_the_same_and_tokenises_the_prompts_of_all_in_every_call(program, bench):
    orchestra, differing = program("orchestra"), program("orchestrating.cells").n_differing
    one = cell(program, "math")
    ours = bench.run(one, on=run_virtual)
    masked = program("dataclasses").replace(one, switches=orchestra.AS_MASKS, whole_batch=True)
    theirs = bench.run(masked, on=run_virtual)
    assert differing(ours.rows, theirs.rows) == 0
    assert theirs.samples == ours.samples == 18
    assert theirs.wall_seconds > ours.wall_seconds
    n_calls = 4  # solver, verifier, solver, verifier: all are approved by then
    assert theirs.tokenised * theirs.samples > n_calls * 8 * 0.9 * theirs.prompt_tokens
    assert theirs.tokenised > 1.4 * ours.tokenised


@pytest.mark.timeout(60)
def test_a_tiny_round_measures_all_and_judges_by_the_goals(program):
    orchestra, results = program("orchestra"), program("results")
    report = program("report").Report("orchestra", as_json=True, out=io.StringIO())
    orchestra.measure(report, orchestra.Sizes(**TINY))
    told = {(line["case"], line["system"], line["metric"]): line["value"] for line in report.lines}
    for system in ("outrider", "batch with masks (ours)"):
        assert told["episode b=8 p=0.25 tail", system, "samples"] == 43
        assert told["episode b=8 p=0.25 tail", system, "cpu_ms_per_call"] > 0
        assert told["memory critic b=8 p=0.85 tail", system, "peak_mb"] > 0
    section = results.section("orchestra", report.lines, "a test", datetime.now(UTC))
    assert "a quarter of Dr. MAS's wall time is not judged" in section
    assert "| 12 | yes |" in next(line for line in section.splitlines() if line.startswith("| the same samples | 0 |"))
    assert "| each prompt tokenised at most once | 0." in section
    assert "| rows identical in every mode, also one by one | 0 | rows | 1 | yes |" in section
    assert {case for case, _, metric in told if metric == orchestra.GAIN} == {
        f"switch: {switch}" for switch in orchestra.SWITCHES
    }
    assert "| 5 |" in next(line for line in section.splitlines() if line.startswith("| each switch's gain"))
    assert program("goals").uncounted(orchestra.GOOD, (), report.lines) == []
    assert "not measured" not in section.partition("### The guide's optimisations")[2]
    for above, below in pairwise(section.splitlines()):
        assert not (above.startswith("|") and below.startswith("|")) or above.count("|") == below.count("|"), below
    assert "<svg" in orchestra.pictures(report.lines)["orchestra.svg"]


def test_a_switch_that_gains_nothing_fails_the_benchmark(program):
    orchestra, report_module = program("orchestra"), program("report")
    report = report_module.Report("orchestra", as_json=True, out=io.StringIO())
    cells = list(orchestra.switch_cells(orchestra.Sizes(**TINY)))
    useless = {orchestra.SYNC_SPARE: (1.05, 1.05, 1.0)}
    for cell, systems in cells:
        for system in (orchestra.US, *systems):
            for seconds in useless.get(
                system, (1.0, 1.0, 1.0) if system in (orchestra.US, orchestra.SYNC) else (1.5, 1.4, 1.3)
            ):
                for metric in ("wall_seconds", "cpu_seconds"):
                    report.add(orchestra.switch_case(cell), system, metric, seconds, "s")
    orchestra.tell_gains(report, cells)
    report.publish()
    (goal,) = [goal for goal in orchestra.GOOD if goal.metric == orchestra.GAIN]
    gains = {line["case"]: line["value"] for line in goal.lines(report.lines)}
    assert gains == {
        "switch: early termination off": 1.3,
        "switch: preprocessing cache off": 1.3,
        "switch: parallel agents off": 1.3,
        "switch: batch synchronous": 1.0,
        "switch: batch synchronous, agent skip off": 1.0,
    }
    assert not goal.met(goal.worst(report.lines))


def test_a_switch_that_changes_rows_fails_the_benchmark(program, monkeypatch):
    def rounds(team, n):
        """As it is without early termination, had somebody forgotten that what is said then must not count."""
        for number in range(n):
            team._state.round = number
            yield number
            if team._state.approved and team._performance.enable_early_termination:
                return

    monkeypatch.setattr(Team, "rounds", rounds)
    orchestra = program("orchestra")
    report = program("report").Report("orchestra", as_json=True, out=io.StringIO())
    tokenizer, _ = program("orchestrating.tokens").trained(TEXTS)
    playing = orchestra.Round(report, program("orchestrating.cells").Bench(tokenizer))
    orchestra.measure_switches(report, playing, orchestra.Sizes(**TINY, rates=(0.85,)))
    orchestra.tell_rows(report, playing)
    (goal,) = [goal for goal in orchestra.GOOD if goal.metric == "rows_differing"]
    worst = goal.worst(report.lines)
    assert worst > 0
    assert not goal.met(worst)

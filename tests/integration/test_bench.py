"""The benchmark programs: what they print, and that a tiny round of each works without any baseline."""

import io
import json
from datetime import UTC, datetime

import pytest

TINY = {
    "rounds": 1,
    "matrix_ns": (48,),
    "large_n": 48,
    "processes_n": 32,
    "http_n": 0,
    "depths": (1500,),
    "claims_at_depth": 100,
    "idle_samples": 2,
    "idle_samples_of_them": 0,
    "memory_n": 32,
    "query_rows": 20,
    "ended_rows": 1000,
    "tags": 50,
    "runner_ns": (8,),
}


def test_a_report_prints_one_documented_object_a_line(program):
    out = io.StringIO()
    report = program("report").Report("store", as_json=True, out=out)
    for ours, theirs in ((9000.0, 1800.0), (8000.0, 2000.0), (9500.0, 1900.0)):
        report.add("sqlite claimers=16 n=10000", "outrider", "pairs_per_cpu_second", ours, "1/s")
        report.add("memory claimers=16 n=10000", "agentlightning-0.3.0", "pairs_per_cpu_second", theirs, "1/s")
    report.ratio(
        "sqlite claimers=16 n=10000",
        "pairs_per_cpu_second",
        of="outrider",
        against="agentlightning-0.3.0",
        against_case="memory claimers=16 n=10000",
    )
    report.publish()
    ours, _, ratio = map(json.loads, out.getvalue().splitlines())
    assert ours == {
        "bench": "store",
        "case": "sqlite claimers=16 n=10000",
        "system": "outrider",
        "metric": "pairs_per_cpu_second",
        "value": 9000.0,
        "unit": "1/s",
    }
    assert (ratio["metric"], ratio["value"], ratio["of"]) == ("ratio", 5.0, "pairs_per_cpu_second")
    assert ratio["against"] == "agentlightning-0.3.0 memory claimers=16 n=10000"


def test_a_system_that_cannot_run_leaves_its_column_empty_and_says_why(program, capsys):
    out = io.StringIO()
    report = program("report").Report("store", as_json=True, out=out)
    report.add("memory", "outrider", "query_ms", 1.0, "ms")
    report.missing("", "agentlightning-0.3.0", "no network")
    report.ratio("memory", "query_ms", of="outrider", against="agentlightning-0.3.0")
    report.publish()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["value"] for line in lines] == [1.0, None]
    assert lines[1]["reason"] == "no network"
    assert "no network" in capsys.readouterr().err
    section = program("results").section("store", lines, "a test", datetime.now(UTC))
    assert "Not measured: agentlightning-0.3.0 : no network" in section
    assert "| memory | 1 |" in section


def test_a_section_of_the_results_replaces_the_one_before_it_and_no_other(program):
    results = program("results")
    text = "# Results\n\n## POOL\n\nkept\n\n## STORE\n\nold\n"
    assert results.replace_section(text, "store", "## STORE\n\nnew\n") == (
        "# Results\n\n## POOL\n\nkept\n\n## STORE\n\nnew\n"
    )


def test_a_goal_is_judged_by_its_worst_case(program):
    goal = program("goals").Goal(text="", case="sqlite *", metric="idle_claim_ms", at_most=20.0)
    line = {"system": "outrider", "metric": "idle_claim_ms"}
    lines = [line | {"case": case, "value": value} for case, value in (("sqlite a", 3.0), ("sqlite b", 30.0))]
    worst = goal.worst([*lines, line | {"case": "memory a", "value": 99.0}])
    assert worst == 30.0
    assert not goal.met(worst)
    assert goal.worst([]) is None


@pytest.mark.timeout(60)
def test_a_tiny_round_of_the_store_benchmark_measures_every_section(program, tmp_path):
    store, engines = program("store"), program("store_engines")
    report = program("report").Report("store", as_json=True, out=io.StringIO())
    sizes = program("store_sizes").Sizes(**TINY)
    store.measure(report, sizes, [engines.MEMORY, engines.sqlite(tmp_path)], them=None)
    metrics = {line["metric"] for line in report.lines}
    assert metrics >= {
        "pairs_per_cpu_second",
        "enqueues_per_cpu_second",
        "idle_claim_ms",
        "recovery_seconds",
        "runner_cpu_ms",
        "query_ms",
        "claim_cost_ratio",
        "claim_ms",
    }
    may_be_none_or_less = {"memory_mb_per_10k", "recovery_over_lease_seconds"}
    assert all(line["value"] > 0 for line in report.lines if line["metric"] not in may_be_none_or_less)


def test_a_tiny_round_of_the_policy_benchmark_measures_our_client(program):
    policy, report_module, subject = program("policy"), program("report"), program("subject")
    report = report_module.Report("policy", as_json=True, out=io.StringIO())
    with policy.server() as url, subject.Subject("outrider_policy.py") as ours:
        ours.ask("open", url=url)
        policy.measure(report, policy.Sizes(rounds=1, ours=32, theirs=0), {policy.US: (ours, 32)})
        ours.ask("close")
    report.publish()
    assert {line["case"] for line in report.lines} == {str(case) for case in policy.CASES}
    assert all(line["value"] > 0 for line in report.lines)


@pytest.mark.parametrize(
    ("arguments", "metrics"),
    [
        (("live", "FrozenLake", "20"), {"kb_per_rollout", "cpu_ms_per_turn", "loop_lag_p99_ms", "wall_seconds"}),
        (("through", "200"), {"rollouts_per_cpu_second", "wall_seconds", "memory_mb", "memory_growth"}),
    ],
)
def test_a_tiny_load_of_the_scale_benchmark_tells_its_figures(program, arguments, metrics):
    scale, report_module = program("scale"), program("report")
    report = report_module.Report("scale", as_json=True, out=io.StringIO())
    scale.load(report, "tiny", *arguments)
    report.publish()
    assert {line["metric"] for line in report.lines} == metrics

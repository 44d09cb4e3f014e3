"""The cluster benchmark: that a tiny round measures everything and can fail, and that one who hangs is left out."""

import io
from datetime import UTC, datetime

import pytest

TINY = {
    "programs": ("outrider local", "multiprocessing.Queue", "numpy copy"),
    "rounds": 1,
    "starts": 1,
    "deaths": 1,
    "call_seconds": 0.02,
    "stream_seconds": 0.02,
    "n_carried": {"1 KB": 2, "1 MB": 2, "64 MB": 1},
}


@pytest.fixture
def report(program):
    return program("report").Report("cluster", as_json=True, out=io.StringIO())


@pytest.mark.soak
def test_a_tiny_round_without_ray_measures_everything_there_is(program, report):
    cluster, results = program("cluster"), program("results")
    cluster.measure(report, cluster.Sizes(**TINY))
    assert [line["reason"] for line in report.lines if line["metric"] == "unavailable"] == []
    told = {(line["case"], line["system"], line["metric"]): line["value"] for line in report.lines}
    us = "outrider local"
    for metric in cluster.STARTS:
        assert told["start", us, metric] > 0
    for size in (4, 1):
        for how in ("sync", "async", "outstanding=200"):
            assert told[f"call {size} {how}", us, "call_ms"] > 0
    for stream in ("1to1", "4to1", "batch=32", "async=64"):
        assert told[f"channel {stream}", us, "items_per_second"] > 0
        assert told[f"channel {stream}", us, "cpu_us_per_item"] > 0
    assert told["channel 4to1", "multiprocessing.Queue", "items_per_second"] > 0
    for size in ("1 KB", "1 MB", "64 MB"):
        for system in (us, f"{us} send_tensor", "numpy copy", "numpy copy to a new array"):
            assert 0 < told[f"carry {size}", system, "carry_ms"] <= told[f"carry {size}", system, "read_ms"]
    for how in ("call", "recv", "async recv", "channel get"):
        assert 0 < told[f"death {how}", us, "death_seconds"] < 5
    section = results.section("cluster", report.lines, "a test", datetime.now(UTC))
    assert program("goals").uncounted(cluster.GOOD, cluster.LEFT_OUT, report.lines) == []
    assert "| death raises ≤ 5 s, on Ray | | | 0 | not measured |" in section
    assert "ChannelLost" in section
    assert "<svg" in cluster.pictures(report.lines)["cluster.svg"]


def test_a_goal_looks_at_the_peer_that_it_names(program, report):
    cluster = program("cluster")
    report.tells_spread = True
    for system, value in (("outrider", 2.2), ("raw ray", 2.0), ("rlinf-0.3.0", 1.0)):
        report.add("call 4 sync", system, "call_ms", value, "ms")
        report.add("call 4 sync", system, "call_ms", value + 1.0, "ms")
    for against in ("raw ray", "rlinf-0.3.0"):
        report.ratio("call 4 sync", "call_ms", of="outrider", against=against)
    report.publish()
    goal = next(goal for goal in cluster.GOOD if goal.of == "call_ms")
    assert goal.worst(report.lines) == pytest.approx((2.2 / 2.0 + 3.2 / 3.0) / 2, rel=1e-4)
    assert goal.met(goal.worst(report.lines))
    assert not goal.met(1.2)
    ours = next(line for line in report.lines if line["system"] == "outrider")
    assert (ours["least"], ours["value"], ours["most"]) == (2.2, 2.7, 3.2)


SURVIVOR = """
from clustering import load
from subject import serve

async def nothing(**_):
    return {}

async def die():
    return load.died(0.0, lambda: None)

serve({"open": nothing, "launch": nothing, "close": nothing, "doom": nothing, "die": die})
"""


def test_a_death_that_raises_no_error_is_a_failure(program, report, monkeypatch, tmp_path):
    cluster, subjects = program("cluster"), program("clustering.subjects")
    (tmp_path / "survivor.py").write_text(SURVIVOR)
    monkeypatch.setitem(subjects.PROGRAMS, "outrider local", (str(tmp_path / "survivor.py"), {}))
    bench = cluster.ClusterBench(report, cluster.Sizes(**TINY | {"programs": ("outrider local",), "deaths": 2}), None)
    bench.deaths()
    bench.close()
    assert [line for line in report.lines if line["metric"] == "death_seconds"] == []
    rows = program("results").told_goals(cluster.GOOD, report.lines)
    named = "death async recv, death call, death channel get, death recv"
    assert f"| the same without Ray | | | 0 | **no**: did not run: {named} |" in rows


def test_a_system_that_does_not_answer_is_killed_and_named(program, report, monkeypatch):
    cluster = program("cluster")
    monkeypatch.setattr(program("clustering.subjects"), "ASK_SECONDS", 0.05)
    bench = cluster.ClusterBench(report, cluster.Sizes(**TINY | {"programs": ("multiprocessing.Queue",)}), None)
    bench.streams()
    bench.close()
    missing = [(line["case"], line["system"]) for line in report.lines if line["metric"] == "unavailable"]
    assert missing == [(f"channel {stream}", "multiprocessing.Queue") for stream in ("1to1", "4to1")]
    assert all("ended with code -9" in line["reason"] for line in report.lines)

"""The pool benchmark: its meter, its models, and that a tiny round measures everything and can fail."""

import asyncio
import io
from datetime import UTC, datetime

import pytest

from outrider.testing import run_virtual
from outrider.testing.fake_machines import FakeMachine, FakeProvider, Step

TINY = {
    "short_rounds": 1,
    "short_leases": 4,
    "long_rounds": 1,
    "long_leases": 0,
    "long_systems": (),
    "ablations": (),
    "cloud_rounds": 1,
    "cloud_leases": 12,
    "n_warm": 5,
    "kinds": ("process",),
    "n_resets": 1,
    "n_seeds": 1,
    "leases_per_seed": 60,
    "abused_leases": 3,
    "n_rollouts": 4,
    "n_machines": 2,
}


def test_a_machine_that_is_not_leased_while_somebody_waits_counts_as_idle(program):
    async def main():
        meter = program("pooling.meter").Meter(2)
        first, second = meter.asks(), meter.asks()
        await asyncio.sleep(1)  # two wait for two: 2 idle
        meter.took(first)
        await asyncio.sleep(4)  # 4 leased, 4 idle
        meter.took(second)
        await asyncio.sleep(3)  # 6 leased
        meter.gives_back()
        await asyncio.sleep(5)  # 5 leased, and nobody waits for the other
        return meter.utilisation, meter.waits.quantiles().greatest

    used, longest = run_virtual(main())
    assert used == pytest.approx(15 / (15 + 6))
    assert longest == 5


def outcome_of(program, system):
    """Two machines whose reset takes 2 s, four rollouts that hold one for 4 s and 5 s in turn."""
    systems, load = program("pooling.systems"), program("pooling.load")
    provider = FakeProvider(lambda operation: Step(seconds={"create": 3.0, "reset": 2.0}.get(operation, 0.0)))
    asked = load.Load(n_rollouts=4, n_machines=2, n_leases=8, median_seconds=4.0)

    async def main():
        began = asyncio.get_running_loop().time()
        async with systems.model(system, provider, 2) as made:
            startup = asyncio.get_running_loop().time() - began
            return await load.run_rollouts(made, asked, [4.0, 4.0, 5.0, 5.0] * 2, startup)

    return run_virtual(main())


def test_under_one_lock_a_free_machine_waits_for_the_reset_of_another(program):
    systems = program("pooling.systems")
    with_lock, without = (outcome_of(program, name) for name in (systems.LOCK, systems.IN_RELEASE))
    assert with_lock.startup_seconds == 6.0  # one after the other
    assert without.handovers.greatest == 0.0
    assert with_lock.handovers.greatest == 2.0
    assert with_lock.releases.greatest == 4.0  # its own reset and the other's
    assert without.releases.greatest == 2.0
    assert with_lock.utilisation < without.utilisation


def test_on_slow_machines_our_pool_hands_over_at_once_and_is_used_more(program):
    load, systems = program("pooling.load"), program("pooling.systems")
    asked = load.Load(n_rollouts=16, n_machines=4, n_leases=40, median_seconds=120.0, machines="modelled VMs")
    ours, theirs = (load.run_cloud(system, asked, 0) for system in (systems.US, systems.LOCK))
    assert ours.utilisation == pytest.approx(ours.utilisation_by_pool, abs=0.001)
    assert ours.utilisation <= ours.utilisation_ceiling + 0.03 < 0.93
    assert theirs.utilisation_ceiling is None
    assert ours.utilisation > 1.1 * theirs.utilisation
    assert ours.handovers.greatest < 1.0 < theirs.handovers.greatest
    assert ours.startup_seconds < theirs.startup_seconds / 2
    assert load.run_cloud(systems.US, asked, 0).waits == ours.waits


@pytest.mark.soak
def test_a_tiny_round_measures_us_and_the_model_and_judges_by_the_goals(program, monkeypatch):
    pool, results = program("pool"), program("results")
    monkeypatch.setattr(pool, "SHORT", 0.2)
    report = program("report").Report("pool", as_json=True, out=io.StringIO())
    pool.measure(report, pool.Sizes(**TINY))
    told = {(line["case"], line["system"], line["metric"]): line["value"] for line in report.lines}
    case = "4 on 2 desktops hold=0.2s"
    for system in ("outrider", "model of AgentFlow"):
        assert 0 < told[case, system, "utilisation_pct"] <= 100
        assert told[case, system, "startup_seconds"] > 0
    assert told[case, "outrider", "reset_p50_seconds"] > 0
    assert told["warm no journal", "outrider", "acquire_ms"] > 0
    assert told["warm sqlite journal, other process", "outrider", "acquire_p99_ms"] > 0
    assert told["machine process", "outrider", "reset_seconds"] > 0
    assert told[pool.FAULTS, "outrider", "leases"] >= 60
    for faults in (pool.FAULTS, pool.ABUSE):
        assert [told[faults, "outrider", name] for name in ("leaks", "dirty_handouts", "double_uses")] == [0, 0, 0]
    section = results.section("pool", report.lines, "a test", datetime.now(UTC))
    assert "| 10,000 fault-injected leases | 6" in section  # not met by so few
    assert "| 0 leaks | 0 | fake machines with faults | 2 | yes |" in section
    assert program("goals").uncounted(pool.GOOD, (), report.lines) == []
    assert f"### {case}" in section
    assert "<svg" in pool.pictures(report.lines)["pool.svg"]


def test_machines_that_lie_about_being_clean_fail_the_benchmark(program, monkeypatch):
    async def no(*_: object) -> bool:
        return False

    monkeypatch.setattr(FakeMachine, "has", no)
    pool = program("pool")
    report = program("report").Report("pool", as_json=True, out=io.StringIO())
    pool.measure_faults(report, pool.Sizes(**TINY | {"leases_per_seed": 300}))
    (goal,) = [goal for goal in pool.GOOD if goal.metric == "dirty_handouts"]
    worst = goal.worst(report.lines)
    assert worst > 0
    assert not goal.met(worst)

"""The benchmark programs: what they print, and that a tiny round of each works without any baseline."""

import asyncio
import io
import json
import subprocess
import time
from datetime import UTC, datetime

import pytest

LAGS = ("loop_lag_p99_ms", "loop_lag_max_ms")
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


def test_a_goal_with_a_case_that_our_system_could_not_run_is_not_met(program):
    goals, results = program("goals"), program("results")
    good = [
        goals.Goal(text=text, case=case, metric="ms", at_most=2.0)
        for text, case in (
            ("calls", "call *"),
            ("one", "call a sync"),
            ("other", "carry *"),
            ("none", "death *"),
            ("deep", "* queued=*"),
        )
    ]
    report = program("report").Report("cluster", as_json=True, out=io.StringIO())
    report.add("call a sync", "outrider", "ms", 1.0, "ms")
    report.add("carry 1 KB", "outrider", "ms", 1.0, "ms")
    report.missing("call b sync", "outrider", "it hangs")
    report.missing("death call", "outrider", "it cannot be started")
    report.missing("carry 1 KB", "peer", "no peer here")
    report.add("sqlite queued=1000", "outrider", "ms", 1.0, "ms")
    report.missing("postgres *", "outrider", "no server")
    report.publish()
    rows = results.told_goals(good, report.lines)
    assert "| calls | 1 | call a sync | 1 | **no**: did not run: call b sync |" in rows
    assert "| one | 1 | call a sync | 1 | yes |" in rows
    assert "| other | 1 | carry 1 KB | 1 | yes |" in rows
    assert "| none | | | 0 | **no**: did not run: death call |" in rows
    assert "| deep | 1 | sqlite queued=1000 | 1 | **no**: did not run: postgres * |" in rows


def test_a_goal_names_the_sizes_that_were_measured(program):
    results, store, sizes = program("results"), program("store"), program("store_sizes")
    for size in (sizes.QUICK, sizes.FULL):
        cases = {
            "claim_cost_ratio": [f"sqlite queued={depth}" for depth in size.depths],
            "query_wall_ms": [f"sqlite ended={size.ended_rows} statistics"],
            "claim_ms": [f"sqlite tags={size.tags} named=1"],
        }
        lines = [
            {"case": case, "system": "outrider", "metric": metric, "value": 1.0}
            for metric, names in cases.items()
            for case in names
        ]
        text = "\n".join(results.told_goals(store.GOOD, lines))
        depths = " and ".join(f"{depth:,}" for depth in size.depths)
        assert f"| cost per claim at {depths} queued ≤ 1.3x that at 1,000 |" in text
        assert f"| a look at {size.ended_rows:,} ended rollouts < 300 ms |" in text
        assert f"| a claim with {size.tags:,} tags ≤ 10 ms |" in text
    for name in results.programs():
        for goal in program(name).GOOD:
            assert "{" not in goal.title([])


def test_a_case_that_no_goal_counts_is_told_with_the_reason_or_as_a_fault(program):
    goals, results = program("goals"), program("results")
    good = (
        goals.Goal(text="quick", case="idle *", metric="claim_ms", at_most=20.0),
        goals.Goal(text="small", metric="kb", at_most=1.0),
    )
    left_out = (goals.LeftOut(case="busy *", metric="claim_ms", reason="it waits for the others"),)
    figures = (("idle 1", "claim_ms", 3.0), ("idle 2", "claim_ms", 30.0), ("busy 1", "claim_ms", 99.0))
    lines = [{"case": case, "system": "outrider", "metric": metric, "value": value} for case, metric, value in figures]
    theirs = lines[0] | {"case": "asleep 1", "system": "peer"}
    another = lines[0] | {"case": "asleep 1", "metric": "wall_seconds"}
    assert goals.uncounted(good, left_out, [*lines, theirs, another]) == []
    forgotten = lines[0] | {"case": "asleep 1"}
    assert goals.uncounted(good, left_out, [*lines, forgotten]) == [forgotten]
    assert goals.uncounted(good, (), lines) == [lines[2]]
    told = "\n".join((*results.told_goals(good, lines), *results.told_uncounted(good, left_out, [*lines, forgotten])))
    assert "| quick | 30 | idle 2 | 2 | **no** |" in told
    assert "| small | | | 0 | not measured |" in told
    assert "- claim_ms of busy 1: it waits for the others." in told
    assert "- **claim_ms of asleep 1: no goal counts it, and no reason is given.**" in told


def test_a_ratio_counts_for_the_goal_of_its_peer_only(program):
    goals = program("goals")
    goal = goals.Goal(text="", metric="ratio", of="call_ms", against="raw ray", at_most=1.1)
    ratio = {"case": "call 4", "system": "outrider", "metric": "ratio", "of": "call_ms", "value": 2.0}
    lines = [ratio | {"against": "rlinf"}, ratio | {"against": "raw ray", "of": "cpu_ms_per_call"}]
    assert goal.worst(lines) is None
    assert goals.uncounted((goal,), (), lines) == []
    assert goal.worst([*lines, ratio | {"against": "raw ray"}]) == 2.0


@pytest.mark.parametrize("name", ["cluster", "orchestra", "policy", "pool", "scale", "sched", "startup", "store"])
def test_every_case_that_a_benchmark_publishes_is_in_a_goal_of_its_metric_or_left_out_for_a_reason(program, name):
    module, goals = program(name), program("goals")
    left_out = getattr(module, "LEFT_OUT", ())
    lines = list(published(program, name))
    assert goals.uncounted(module.GOOD, left_out, lines) == []
    for cases in (*module.GOOD, *left_out):
        assert any(cases.holds(line) for line in lines), f"there is no such case: {cases}"


def published(program, name):
    """A line for each case of each metric that a goal is about, as a whole round makes them."""
    module = program(name)
    cases = {
        "cluster": lambda: cluster_cases(program),
        "orchestra": lambda: orchestra_cases(module),
        "policy": lambda: {metric: map(str, module.CASES) for metric in ("ratio", "client_cpu_ms_per_call")},
        "pool": lambda: pool_cases(program),
        "scale": lambda: {
            **dict.fromkeys(("kb_per_rollout", "cpu_ms_per_turn", "loop_lag_p99_ms"), ("live FrozenLake n=10000",)),
            "memory_growth": ["through sqlite n=1000000"],
        },
        "sched": lambda: sched_cases(module),
        "startup": lambda: {
            "import_ms": ["import"],
            **dict.fromkeys(("command_ms", "command_cpu_ms"), ("outrider --help", "outrider status")),
        },
        "store": lambda: store_cases(program),
    }[name]()
    for goal in module.GOOD:
        for case in cases[goal.metric if goal.metric != "ratio" or "ratio" in cases else goal.of]:
            key = {"metric": goal.metric, "system": goal.system, "of": goal.of, "against": goal.against}
            yield {name: value for name, value in key.items() if value is not None} | {"case": case, "value": 1.0}


def cluster_cases(program):
    names, cluster = program("clustering.names"), program("cluster")
    deaths = [f"death {how}" for how in cluster.DEATHS[names.US]]
    calls = [f"call {size} {how}" for size in (4, 1) for how in (names.SYNC, names.ASYNC, names.MANY)]
    return {
        "call_ms": calls,
        "items_per_second": [f"channel {stream}" for stream in names.N_PRODUCERS],
        "gb_per_second": [f"carry {size}" for size in names.SIZES],
        **dict.fromkeys(cluster.STARTS, ("start",)),
        "death_seconds": deaths,
    }


def orchestra_cases(orchestra):
    played = [cell.case for cell in orchestra.matrix(orchestra.FULL, orchestra.FULL.batches)]
    switched = [orchestra.switch_case(cell) for cell, _ in orchestra.switch_cells(orchestra.FULL)]
    return {
        **dict.fromkeys(("samples_off", "tokenised_of_prompt", "wall_seconds"), played),
        "cpu_ms_per_call": [*played, *switched, "clock critic b=64 p=0.85 flat", "memory critic b=64 p=0.85 tail"],
        orchestra.MEAN: ["calls"],
        "rows_differing": ["rows"],
        orchestra.GAIN: [orchestra.gain_case(switch) for switch in orchestra.SWITCHES],
    }


def pool_cases(program):
    pool = program("pool")
    loads = [pool.FULL.load(1, pool.SHORT), pool.FULL.load(1, pool.LONG), pool.FULL.load(1, pool.CLOUD, "modelled VMs")]
    warm = [f"warm {way}" for way in ("no journal", "sqlite journal", "sqlite journal, other process")]
    both = [pool.FAULTS, pool.ABUSE]
    return {
        "utilisation_pct": [load.case for load in loads],
        **dict.fromkeys(("acquire_ms", "acquire_p95_ms", "acquire_p99_ms"), warm),
        **dict.fromkeys(("leases", "leaks", "dirty_handouts", "double_uses"), both),
        "other_wrongs": [pool.FAULTS],
    }


def sched_cases(sched):
    cases = list(dict.fromkeys(cell.case for cell in sched.cells_of(sched.FULL) if cell.system == sched.US))
    metrics = ("pct_of_bound", "staleness_over_max", "length_bias_from_1", "waste_pct", "deadlocks")
    return {
        **dict.fromkeys((*metrics, "points_behind_plain", "points_lost_of_own_bound"), cases),
        "best_pct_of_bound": ["heavy mean<=1.5"],
        **dict.fromkeys(("us_per_event", sched.WITH_COLLECTOR), ("heavy live=10000",)),
    }


def store_cases(program):
    store, full = program("store"), program("store_sizes").FULL
    shared = ("sqlite", "postgres")
    compared = [pairs for pairs in store.pair_cases(full) if pairs.claimers == 16]
    flushing = [f"{engine} durability=full" for engine in shared]
    ended = [f"{engine} ended={full.ended_rows}" for engine in shared]
    tags = [f"{engine} tags={full.tags}" for engine in shared]
    return {
        "ratio": [
            *(f"{engine} {pairs}" for engine in ("memory", *shared, *flushing) for pairs in compared),
            *(f"{engine} processes=4 {store.Pairs(16, 1, full.processes_n)}" for engine in shared),
        ],
        "claim_cost_ratio": [f"{engine} queued={depth}" for engine in ("memory", *shared) for depth in full.depths],
        "idle_claim_p99_ms": ["memory same process", *(f"{engine} other process" for engine in shared)],
        "runner_cpu_ms": [f"{engine} workers=4 n={n}" for engine in ("memory", *shared) for n in full.runner_ns],
        "query_wall_ms": [f"{case} statistics" for case in ended],
        **dict.fromkeys(("status_wall_ms", "status_cpu_ms", "idle_cpu_pct"), ended),
        "claim_ms": [f"{case}{named}" for case in tags for named in ("", " named=1", f" named={full.tags}")],
        "recovery_over_lease_seconds": [f"{engine} lease=2s" for engine in shared],
    }


@pytest.fixture
def repository(tmp_path):
    """A repository with a file in `src`, and what runs git in it."""

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    for name in ("src/a.py", "bench/RESULTS.md", "bench/pool.svg", "docs.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return tmp_path, git


def test_a_section_holds_until_what_it_measured_changes(program, repository):
    measured, (root, git) = program("measured"), repository
    results = f"# Results\n\n## POOL\n\n| how | outrider bench pool at commit {measured.commit(root)}, in 1 minute |\n"
    assert measured.outdated(results, root) == {}
    for name in ("bench/RESULTS.md", "bench/pool.svg", "docs.md"):
        (root / name).write_text("new\n")
    git("commit", "--quiet", "--all", "--message", "what was measured")
    assert measured.outdated(results, root) == {}
    (root / "src/a.py").write_text("new\n")
    git("commit", "--quiet", "--all", "--message", "a change")
    (reason,) = measured.outdated(results, root).values()
    assert reason.startswith("changed since")
    assert reason.endswith("src/a.py")


def test_the_section_of_the_soak_holds_until_a_test_changes_too(program, repository):
    measured, (root, git) = program("measured"), repository
    first = measured.commit(root)
    results = "# Results\n" + "".join(f"\n## {name}\n\n| how | at commit {first} |\n" for name in ("SOAK", "POOL"))
    assert measured.outdated(results, root) == {}
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text("new\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "a test")
    assert measured.outdated(results, root) == {"soak": f"changed since {first}: tests/test_a.py"}


def test_the_check_asks_for_the_section_of_the_soak(program, tmp_path, monkeypatch, capsys):
    results = program("results")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    assert results.check() == 1
    assert "SOAK: it has no section" in capsys.readouterr().err


SOAKED = """
import os
from pathlib import Path
import pytest

def note(line):
    with Path(os.environ["OUTRIDER_SOAK_NOTES"]).open("a") as notes:
        print(line, file=notes)

@pytest.mark.soak
def test_a():
    note('{"what": "workers killed", "deaths": 3}')

@pytest.mark.soak
@pytest.mark.alone
def test_b():
    note('{"what": "workers killed", "deaths": 4}')
    assert "PYTEST_XDIST_WORKER" not in os.environ
    assert os.environ["OUTRIDER_SOAK_MINUTES"] == "30"
"""


@pytest.fixture
def soak(program, tmp_path, monkeypatch):
    """The program, in a folder with tests of its own and a file of results."""
    soak = program("suites")
    (tmp_path / "test_soaked.py").write_text(SOAKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak: long\n  hypothesis: many\n  alone: alone\n")
    (tmp_path / "RESULTS.md").write_text("# Results\n\n## SOAK\n\nold\n")
    for name, value in {"ROOT": tmp_path, "RESULTS": tmp_path / "RESULTS.md"}.items():
        monkeypatch.setattr(soak, name, value)
    monkeypatch.setattr(soak, "changes", list)
    monkeypatch.setattr(soak, "commit", lambda: "0123456789")
    for name in ("OUTRIDER_SOAK_MINUTES", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    return soak


def test_a_soak_runs_what_needs_the_machine_alone_by_itself_and_writes_the_counts_of_all(soak, tmp_path):
    assert soak.main("soak") == 0
    written = (tmp_path / "RESULTS.md").read_text()
    assert "2 tests, all passed" in written
    assert "| workers killed | 2 | 7 |" in written
    assert "make soak at commit 0123456789" in written
    assert "old" not in written


@pytest.fixture
def short_soak(soak, monkeypatch):
    """Without the processes of pytest-xdist."""
    calls = [("-p", "no:xdist", *call[:2]) for call in soak.SUITES["soak"].calls]
    monkeypatch.setitem(soak.SUITES, "soak", soak.Suite(calls=calls, method="how"))
    return soak


def test_a_soak_that_is_red_says_so_and_writes_nothing(short_soak, tmp_path, capsys):
    (tmp_path / "test_red.py").write_text("import pytest\n@pytest.mark.soak\ndef test_red():\n    assert False\n")
    assert short_soak.main("soak") == 1
    said = capsys.readouterr()
    assert "3 tests, **1 of them failed**" in said.out
    assert "not all is green" in said.err
    assert (tmp_path / "RESULTS.md").read_text() == "# Results\n\n## SOAK\n\nold\n"


def test_a_part_of_a_soak_is_printed_and_not_written(short_soak, tmp_path, capsys):
    assert short_soak.main("soak", "-k", "test_a") == 0
    assert "1 tests, all passed" in capsys.readouterr().out
    assert (tmp_path / "RESULTS.md").read_text() == "# Results\n\n## SOAK\n\nold\n"


def test_a_section_of_a_commit_that_is_not_ours_or_of_a_draft_must_be_measured_anew(program, repository):
    measured, (root, git) = program("measured"), repository
    first = measured.commit(root)
    git("switch", "--quiet", "--create", "aside")
    git("commit", "--quiet", "--allow-empty", "--message", "aside")
    aside = measured.commit(root)
    git("switch", "--quiet", "--detach", first)
    sections = {
        "POOL": f"at commit {first}",
        "SCHED": f"at commit {aside}",
        "STORE": "at commit 5c81fda",
        "SCALE": f"at commit {first} with local changes",
        "POLICY": "from somewhere",
    }
    results = "# Results\n" + "".join(f"\n## {name}\n\n| how | {how} |\n" for name, how in sections.items())
    reasons = measured.outdated(results, root)
    assert list(reasons) == ["sched", "store", "scale", "policy"]
    assert "not an ancestor" in reasons["sched"]
    assert "not in this repository" in reasons["store"]
    assert "draft" in reasons["scale"]
    assert "does not say" in reasons["policy"]


def test_the_versions_that_are_installed_are_part_of_what_is_measured(program, repository):
    measured, (root, git) = program("measured"), repository
    results = f"# Results\n\n## POOL\n\n| how | at commit {measured.commit(root)} |\n"
    for name in ("constraints.txt", "pyproject.toml"):
        (root / name).write_text("new\n")
        assert measured.changes(root) == [name]
        git("add", name)
        git("commit", "--quiet", "--message", name)
        assert measured.outdated(results, root)["pool"].endswith(name)
        results = f"# Results\n\n## POOL\n\n| how | at commit {measured.commit(root)} |\n"


def test_a_section_that_cannot_be_measured_again_is_told_from_one_that_is_only_outdated(program, repository, tmp_path):
    measured, (root, git) = program("measured"), repository
    first = measured.commit(root)
    (root / "src/a.py").write_text("new\n")
    git("commit", "--quiet", "--all", "--message", "a change")
    sections = {"POOL": first, "STORE": "5c81fda", "SCALE": f"{first} with local changes"}
    results = "# Results\n" + "".join(f"\n## {name}\n\n| how | at commit {how} |\n" for name, how in sections.items())
    assert list(measured.outdated(results, root)) == ["pool", "store", "scale"]
    assert list(measured.unpublishable(results, root)) == ["store", "scale"]
    shallow = tmp_path / "shallow"
    git("clone", "--quiet", "--depth", "1", f"file://{root}", str(shallow))
    assert list(measured.unpublishable(results, shallow)) == ["scale"]
    assert list(measured.outdated(results, shallow)) == ["pool", "store", "scale"]


def test_the_results_have_a_section_of_every_benchmark_measured_on_a_commit_of_the_history(program):
    """Sections that later commits have outdated are named by `make bench-check` alone."""
    measured, results = program("measured"), program("results")
    text = results.RESULTS.read_text()
    reasons = measured.unpublishable(text)
    reasons |= {name: "it has no section" for name in results.programs() if f"\n## {name.upper()}\n" not in text}
    assert reasons == {}, f"measure them: make bench NAMES='{' '.join(sorted(reasons))}'"


def test_only_a_commit_is_measured(program, repository, monkeypatch, capsys):
    measured, results, (root, git) = program("measured"), program("results"), repository
    assert measured.changes(root) == []
    for name in ("bench/RESULTS.md", "bench/pool.svg"):  # written by the section before
        (root / name).write_text("new\n")
    assert measured.changes(root) == []
    assert not measured.commit(root).endswith("with local changes")
    (root / "bench/new.py").write_text("")
    git("add", "bench/new.py")
    (root / "src/b.py").write_text("")
    assert measured.changes(root) == ["bench/new.py", "src/b.py"]
    assert measured.commit(root).endswith("with local changes")
    monkeypatch.setattr(results, "changes", lambda: measured.changes(root))
    asked = []
    monkeypatch.setattr(results, "measure", lambda name, _flags: asked.append(name) or 0)
    assert results.main(["startup"]) == 2
    assert "commit first, or pass --draft. Changed: bench/new.py, src/b.py" in capsys.readouterr().err
    assert asked == []
    assert results.main(["startup", "--quick", "--draft"]) == 0
    assert asked == ["startup"]
    assert "about 1 minutes: startup 1" in capsys.readouterr().err


def test_runs_with_programs_of_others_are_recorded_with_their_versions_as_soaks_are(program):
    suites, when = program("suites"), datetime(2026, 11, 19, tzinfo=UTC)
    said = (
        {"what": "LiteLLM proxy", "versions": {"litellm": "1.80.1"}},
        {"what": "transformers serve", "versions": {"transformers": "5.0.0", "torch": "2.9.1"}},
    )
    notes = suites.notes_of("\n".join(map(json.dumps, said)))
    green = suites.Outcome(n_tests=2, n_bad=0)
    section = suites.section("strangers", notes, green, "make strangers at commit abc", when)
    assert section.startswith("## STRANGERS\n")
    assert "| how | make strangers at commit abc |" in section
    assert "| when | 2026-11-19 00:00 UTC |" in section
    assert "| transformers serve | 1 | transformers 5.0.0, torch 2.9.1 |" in section
    notes = suites.notes_of("\n".join(json.dumps({"what": "killing", "deaths": n}) for n in (3, 4)))
    section = suites.section("soak", notes, green, "make soak at commit abc", when)
    assert "| | runs | deaths |" in section
    assert "| killing | 2 | 7 |" in section
    makefile = (program("measured").ROOT / "Makefile").read_text()
    for name in program("results").SUITES:
        assert name in suites.SUITES
        assert f"bench/suites.py {name}\n" in makefile


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


def test_a_block_of_the_event_loop_weighs_as_much_as_it_lasts(program):
    load = program("scale_load")
    lag = load.Lag()
    for _ in range(900):
        lag.count(0.0)
    lag.count(1.0)  # nine seconds without a block, and one with
    assert max(lag.seconds) == 1.0
    assert len(lag.seconds) == pytest.approx(1000, abs=2)
    assert lag.p99() == pytest.approx(0.9, abs=0.02)

    async def blocked():
        watched = load.Lag()
        watching = asyncio.create_task(watched.watch())
        await asyncio.sleep(0.05)
        time.sleep(0.5)
        await asyncio.sleep(0.05)
        watching.cancel()
        return watched.seconds

    late = asyncio.run(blocked())
    assert sum(one > 0.1 for one in late) > 30


@pytest.mark.parametrize(
    ("arguments", "metrics"),
    [
        (("live", "FrozenLake", "20"), {"kb_per_rollout", "cpu_ms_per_turn", *LAGS, "wall_seconds"}),
        (("through", "200"), {"rollouts_per_cpu_second", "wall_seconds", "memory_mb", "memory_growth"}),
    ],
)
def test_a_tiny_load_of_the_scale_benchmark_tells_its_figures(program, arguments, metrics):
    scale, report_module = program("scale"), program("report")
    report = report_module.Report("scale", as_json=True, out=io.StringIO())
    scale.load(report, "tiny", *arguments)
    report.publish()
    assert {line["metric"] for line in report.lines} == metrics

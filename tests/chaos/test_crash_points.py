"""A process killed at every named point between two writes: nothing is lost or doubled, and the outcome is the same."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import outrider
from soaking import note_soak, time_limit

HERE = Path(__file__).parent
SOAK_SECONDS = 15.0
"""For each point."""

REACHED: dict[str, tuple[str, ...]] = {
    "run": (
        *("run.folder_made", "run.config_written", "file.written", "run.plan_written"),
        *("sqlite.file_made", "sqlite.journal_set", "sqlite.schema_made", "sqlite.before_commit", "sqlite.committed"),
        *("plan.chunk_enqueued", "run.enqueued", "leases.taken", "runner.claimed", "recording.written"),
        *("attempt.before_end", "attempt.ended", "results.line_written", "run.collected"),
        *("report.summary_written", "report.plot_written", "run.report_written"),
    ),
    "extend": ("run.extension_configured", "run.extended"),
    "retry": ("run.retries_enqueued",),
    "work": (
        *("enqueue.chunk_enqueued", "attempt.said_running", "events.appended", "supervisor.revoked"),
        "supervisor.blocking_failed",
        *("export.written", "file.streamed"),
    ),
    "rollout": ("rollout.folder_made", "validation.enqueued", "rollout.step_published", "rollout.step_noted"),
    "train": (
        *("scheduler.ledger_opened", "scheduler.decided", "scheduler.delivered", "batch.written"),
        *("scheduler.before_publish", "scheduler.published", "scheduler.announced"),
    ),
    "pool": (
        *("pool.opened", "pool.before_create", "machine.noted", "pool.machine_made", "pool.journal_written"),
        *("pool.lease_written", "pool.machine_reset", "pool.machine_destroyed"),
    ),
    "channel": ("channel.put", "channel.claimed", "channel.settled", "channel.close_noted"),
    "abandon": ("channel.closed",),
}
AGAIN: dict[str, tuple[str, ...]] = {
    "extend": (
        *("file.written:7", "plan.chunk_enqueued:2", "attempt.before_end:3", "attempt.ended:3"),
        *("results.line_written:3", "run.collected:2", "report.summary_written:2"),
    ),
    "retry": (
        *("plan.chunk_enqueued:2", "results.line_written:5", "results.line_written:6"),
        *("run.collected:2", "report.summary_written:2"),
    ),
    "abandon": ("channel.put:1", "channel.close_noted:1"),
}
"""Points that another scenario reaches too; a run reaches them again when it is extended or its samples are retried."""

SQLITE = ("sqlite.before_commit", "sqlite.committed")
POSTGRES = ("postgres.stepped", "postgres.before_commit", "postgres.committed")
"""Reached by every scenario on that store, often."""

ON_POSTGRES: dict[str, tuple[str, ...]] = {
    "channel": (),
    "abandon": ("channel.closed",),
    "work": (),
    "train": (),
    "run": ("run.enqueued", "attempt.ended", "results.line_written"),
    "rollout": ("validation.enqueued", "rollout.step_published"),
}
"""What `make check` has killed on PostgreSQL too, beside those; `make soak` kills at every point."""


def points_in_source() -> list[str]:
    source = Path(outrider.__file__).parent
    return [point for path in source.rglob("*.py") for point in re.findall(r'reached\("([^"]+)"\)', path.read_text())]


def test_every_point_in_the_source_is_one_that_a_scenario_reaches():
    points = Counter(points_in_source())
    assert max(points.values()) == 1, "a name stands in one place"
    assert sorted(points) == sorted([*(point for known in REACHED.values() for point in known), *POSTGRES])


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: machines have sockets in it."""
    with tempfile.TemporaryDirectory(prefix="crash-") as made:
        yield Path(made)


def deaths(scenario: str, folder: Path, url: str, *points: str) -> Iterator[dict[str, Any]]:
    """What came of each death; the first line is the story without one."""
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    command = [sys.executable, HERE / "crash_scenarios.py", scenario, folder, url, *points]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            told = json.loads(line)
            assert "error" not in told, f"{scenario} at {told['point']}: {told['error']}"
            yield told
    assert program.returncode == 0


def check_deaths(scenario: str, folder: Path, url: str, points: Sequence[str]) -> None:
    undisturbed, *others = deaths(scenario, folder, url, *points)
    reached = {told["point"].partition(":")[0] for told in others if told["died"]}
    assert reached == {point.partition(":")[0] for point in points}
    for told in others:
        assert told["outcome"] == undisturbed["outcome"], f"{scenario} at {told['point']}"
    n_deaths, n_calls = sum(told["died"] for told in others), sum(told["n_calls"] for told in others)
    note_soak("killed at crash points", deaths=n_deaths, calls_checked=n_calls)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", list(REACHED))
def test_a_death_between_any_two_writes_changes_nothing_in_the_end(scenario: str, folder: Path):
    check_deaths(scenario, folder, "", [*(f"{point}:1" for point in REACHED[scenario]), *AGAIN.get(scenario, ())])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", list(ON_POSTGRES))
def test_a_death_between_any_two_writes_to_postgres_changes_nothing_in_the_end(
    scenario: str, folder: Path, postgres_url: str
):
    check_deaths(scenario, folder, postgres_url, [f"{point}:1" for point in (*POSTGRES, *ON_POSTGRES[scenario])])


def points_by_engine() -> Iterator[tuple[str, str, str]]:
    for scenario, points in REACHED.items():
        for point in {*points, *SQLITE}:
            yield scenario, "sqlite", point
        for point in {*points, *POSTGRES}:
            if not point.startswith("sqlite."):
                yield scenario, "postgres", point


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
@pytest.mark.parametrize(("scenario", "engine", "point"), sorted(points_by_engine()))
def test_whenever_a_point_is_reached_a_death_there_changes_nothing(
    scenario: str, engine: str, point: str, folder: Path, request: pytest.FixtureRequest
):
    url = "" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    check_deaths(scenario, folder, url, [f"{point}:*{SOAK_SECONDS:g}"])

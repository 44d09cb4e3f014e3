"""What all tests share: a clock to move, the PostgreSQL plugin, the settings of Hypothesis, and no silent skips."""

import os
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from outrider.testing import FakeClock

pytest_plugins = ["docker_engine", "hypervisor_stand_ins.stage", "aws_stand_in", "postgres_server", "history_checking"]

hypothesis.settings.register_profile("outrider", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("outrider")

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would starve beside the other tests

EVERYTHING_RUNS_HERE = Path("/etc/debian_version").exists() and os.geteuid() == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test may be skipped where its parts cannot be had, and says why; on Debian as root all can, so it fails."""
    report = yield
    if EVERYTHING_RUNS_HERE and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped on a machine where nothing may be: {report.longrepr}"
    return report


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()

"""A plugin of pytest: where everything can run, nothing is skipped, neither a test nor a whole file."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

EVERYTHING_RUNS_HERE = Path("/etc/debian_version").exists() and os.geteuid() == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test may be skipped where its parts cannot be had, and says why; on Debian as root all can, so it fails."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that is skipped as it is read, by `pytest.importorskip` for one."""
    report = yield
    if report.skipped:
        _refuse(report)
    return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if EVERYTHING_RUNS_HERE:
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped on a machine where nothing may be: {report.longrepr}"

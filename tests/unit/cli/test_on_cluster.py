"""Commands that may be spread over a cluster, and mostly are not."""

import subprocess
import sys

import pytest

from outrider.cli.options import on_cluster
from outrider.core.errors import InvalidInput

COMMANDS = "outrider.cli.run_job, outrider.cli.rollout_job, outrider.cli.work"


def test_no_cluster_is_opened_for_a_run_that_is_not_on_one():
    with on_cluster(None, "memory://", 0.0) as cluster:
        assert cluster is None


def test_cpus_that_nobody_would_reserve_are_refused():
    with pytest.raises(InvalidInput, match="it needs --ray"):
        on_cluster(None, "memory://", 1.0)


def test_what_is_for_clusters_is_not_even_loaded_without_one():
    check = f"import sys, {COMMANDS}; print([name for name in sys.modules if name.startswith('outrider.cluster')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"

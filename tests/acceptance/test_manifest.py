"""The manifest of a run on Kubernetes: its form, and its command."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.cli.run import command

MANIFEST = Path(__file__).parent.parent.parent / "examples" / "cluster" / "rayjob.yaml"


@pytest.fixture
def spec() -> dict[str, Any]:
    manifest = yaml.safe_load(MANIFEST.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    found: dict[str, Any] = manifest["spec"]
    return found


def test_the_manifest_has_a_head_and_workers_that_know_the_store(spec):
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert [variable["name"] for variable in container["env"]] == ["OUTRIDER_STORE"]
        assert container["image"]
        assert container["resources"]["limits"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert all(group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] for group in groups[1:])


def test_the_job_is_a_run_that_the_command_line_knows(spec):
    program, subcommand, *arguments = shlex.split(spec["entrypoint"])
    assert (program, subcommand) == ("outrider", "run")
    given = command.make_context("run", arguments, resilient_parsing=True).params
    assert (given["ray"], given["store"], given["cpus_per_worker"]) == ("", "$OUTRIDER_STORE", 1.0)

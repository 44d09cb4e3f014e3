"""Variables of workers: who they are in their group, and what their driver changed since its start."""

import json
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from outrider.cluster.address import WorkerAddress
from outrider.cluster.environment import changed_variables, variables_at_start, worker_environment
from outrider.cluster.placement import Placement

PLACE = Placement(rank=3, node_id=5, local_rank=1, local_world_size=2, n_gpus=1, gpus=(1,), n_cpus=0, node_rank=1)
environments = st.dictionaries(st.sampled_from("ABCDEF"), st.sampled_from("xyz"))


def test_a_worker_is_told_its_ranks_its_master_and_its_name():
    assert worker_environment(
        WorkerAddress("Actor", (0, 3)), PLACE, world_size=4, master_addr="10.0.0.1", master_port=29500
    ) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_NAME": "Actor:0",
        "WORKER_NAME": "Actor:0:3",
    }


@given(environments, environments)
def test_exactly_what_was_set_or_changed_is_forwarded(at_start, now):
    changed = changed_variables(now, at_start)
    assert at_start | changed == at_start | now
    assert all(at_start.get(name) != value for name, value in changed.items())


def test_what_belongs_to_one_process_a_terminal_or_ray_stays_here():
    now = dict.fromkeys(
        ["PWD", "SHLVL", "_", "COLUMNS", "LINES", "RAY_ADDRESS", "PYTEST_CURRENT_TEST", "CUDA_VISIBLE_DEVICES"], "1"
    )
    assert changed_variables(now | {"RAYON_NUM_THREADS": "2", "_X": "3"}, {}) == {"RAYON_NUM_THREADS": "2", "_X": "3"}


def test_the_start_of_a_program_comes_before_anything_it_set():
    program = """
import json, os
os.environ.update(SET="new", CHANGED="after"); del os.environ["REMOVED"]
from outrider.cluster.environment import changed_variables, variables_at_start
print(json.dumps(changed_variables(os.environ, variables_at_start())))
"""
    env = os.environ | {"CHANGED": "before", "REMOVED": "x", "KEPT": "a=b\nc", "LC_ALL": "C.UTF-8"}
    out = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, timeout=60)
    assert json.loads(out.stdout) == {"SET": "new", "CHANGED": "after"}


def test_a_system_without_proc_and_an_environment_that_was_written_over_give_that_of_the_import(tmp_path):
    at_import = variables_at_start(tmp_path / "missing")
    assert at_import["PATH"] == os.environ["PATH"]
    for damaged in (b"", b"\0\0\0", b"ray::Actor.method\0\0"):
        (tmp_path / "environ").write_bytes(damaged)
        assert variables_at_start(tmp_path / "environ") == at_import


def test_values_with_equals_signs_and_odd_bytes_survive(tmp_path):
    (tmp_path / "environ").write_bytes(b"A=b=c\0EMPTY=\0ODD=\xff\0")
    assert variables_at_start(tmp_path / "environ") == {"A": "b=c", "EMPTY": "", "ODD": os.fsdecode(b"\xff")}

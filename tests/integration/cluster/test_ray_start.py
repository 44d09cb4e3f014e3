"""Which Ray a cluster uses, and what is said where it cannot use it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.cluster import Cluster
from outrider.cluster.engines.ray.roll import own_ip
from outrider.core.errors import InvalidInput
from outrider.testing import eventually
from processes import program
from promptly import within

LATE_SECONDS = 30.0

FRESH = """
import json, os, signal, sys
import ray
from cluster_workers import Calculator
from ray._private import worker
from outrider.cluster import Cluster

def stop(*_):
    sys.exit("stopped")

variables = dict(os.environ)
signal.signal(signal.SIGTERM, stop)
with Cluster(num_gpus=2, num_cpus=4) as cluster:
    with Cluster() as same:
        assert same.nodes == cluster.nodes
    assert ray.is_initialized()
    with Calculator.create_group().launch(cluster) as group:
        gpus = [info.gpu_id for info in group.worker_info_list]
        address = ray.get_runtime_context().gcs_address
        print(json.dumps([address, sorted(gpus), group.pid().wait(30)]), flush=True)
        sys.stdin.readline()
    worker.print_to_stdstream({"lines": ["said by Ray"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
is_as_before = dict(os.environ) == variables and signal.getsignal(signal.SIGTERM) is stop
print(json.dumps([ray.is_initialized(), is_as_before]), flush=True)
"""
"""A cluster without an address, where Ray never was; it prints what it has, and after a line how it ended."""

JOINING = """
import sys
import ray
from outrider.cluster import Cluster
from outrider.cluster.engines.ray import connection
if len(sys.argv) > 3:
    ray.__version__ = sys.argv[3]
connection.await_nodes.__defaults__ = (0.1,)
try:
    Cluster(sys.argv[1], num_nodes=int(sys.argv[2])).close()
except Exception as exc:
    print(type(exc).__name__, exc)
else:
    print("joined")
"""

NO_RAY = """
import socket, sys
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.sendall(b"-ERR unknown command\\r\\n")
"""
"""What listens where a Ray is expected, and speaks another protocol."""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A Ray of its own in another process, and its first line."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with program(FRESH) as running:
            yield running, json.loads(running.stdout.readline())


def join(address, n_nodes=1, version=(), **variables):
    """What a program says that joins this Ray."""
    command = [sys.executable, "-c", JOINING, address, str(n_nodes), *version]
    token = (Path(os.environ["HOME"]) / ".ray" / "auth_token").read_text()
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout or done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.0.0.1", "address '10.0.0.1' is not host:port of a Ray"),
        ("ray://10.0.0.1:10001", "submit it with `ray job submit`"),
        ("127.0.0.1:1", "no Ray answers at 127.0.0.1:1 .*refused"),
    ],
)
def test_a_wrong_address_is_refused_at_once(address, said):
    with within(5), pytest.raises(InvalidInput, match=said):
        Cluster(address)


def test_what_is_no_ray_is_told_from_one(monkeypatch):
    monkeypatch.setattr("outrider.cluster.engines.ray.connection.PROBE_SECONDS", LATE_SECONDS)
    with socket.create_server((own_ip(), 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with subprocess.Popen(
            [sys.executable, "-c", NO_RAY, str(server.fileno())], pass_fds=[server.fileno()]
        ) as other:
            with pytest.raises(InvalidInput, match=r"no Ray answers at 127\.0\.0\.1:.*is something else"):
                Cluster()
            assert other.wait(LATE_SECONDS) == 0


def test_what_never_answers_is_no_ray(monkeypatch):
    monkeypatch.setattr("outrider.cluster.engines.ray.connection.PROBE_SECONDS", 0.5)
    with socket.create_server((own_ip(), 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InvalidInput, match=r"no Ray answers at 127\.0\.0\.1:.*timed out"):
            Cluster()


def test_on_a_fresh_machine_a_ray_of_its_own_is_started(fresh):
    _, (_, gpus, pids) = fresh
    assert gpus == [0, 1]
    assert len(set(pids)) == 2


def test_another_program_with_the_token_can_join(fresh):
    _, (address, _, _) = fresh
    assert join(address) == "joined\n"


def test_a_ray_on_this_machine_takes_the_token_in_the_home_folder(fresh):
    assert "joined" in join(fresh[1][0], RAY_AUTH_MODE=None, RAY_AUTH_TOKEN=None)


def test_a_wrong_token_is_told_from_a_wrong_address(fresh):
    _, (address, _, _) = fresh
    assert f"InvalidInput the Ray at {address} does not take this process's token" in join(
        address, RAY_AUTH_TOKEN="f" * 64
    )


def test_a_missing_token_is_told(fresh, tmp_path):
    """Ray itself would end the process, with pages of its stack."""
    _, (address, _, _) = fresh
    said = join(address, RAY_AUTH_TOKEN=None, HOME=str(tmp_path))
    assert said.startswith("InvalidInput RAY_AUTH_MODE is token, and this process has no token of Ray")


def test_other_versions_are_named(fresh):
    _, (address, _, _) = fresh
    said = join(address, version=["0.1.2"])
    assert "InvalidInput" in said
    assert "Ray: 0.1.2" in said
    assert "has other versions than this process" in said


def test_nodes_that_do_not_come_are_waited_for_within_bounds(fresh):
    _, (address, _, _) = fresh
    assert "InvalidInput 3 nodes were asked for, and after 0.1 s Ray has 1" in join(address, n_nodes=3)


async def test_closing_ends_the_ray_and_leaves_the_program_as_it_was(fresh):
    """The last test of the module."""

    async def are_gone():
        return not any(Path(f"/proc/{pid}").exists() for pid in pids)

    running, (_, _, pids) = fresh
    running.stdin.write("\n")
    assert json.loads(running.stdout.readline()) == [False, True]
    await eventually(are_gone)

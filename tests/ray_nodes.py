"""A Ray cluster of several nodes on this machine, in a process of its own, whose nodes can be lost for real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

HEAD = {"num_cpus": 2, "include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
"""The head without what no test looks at."""

START_SECONDS = 60
STOP_SECONDS = 30


class RayNodes:
    """The cluster, as a test sees it. `raylets` are the processes of its nodes, the head's first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str
        self.raylets: list[int]
        self._hear()

    def lose(self, index: int = -1, *, raylet_alone: bool = False) -> None:
        """Kill a node and all its workers at once, or its raylet alone; a fresh one takes its place."""
        raylet = self.raylets[index]
        for pid in (raylet, *([] if raylet_alone else descendants(raylet))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._tell(f"replace {index % len(self.raylets)}")
        self._hear()

    def _tell(self, text: str) -> None:
        assert self._process.stdin is not None
        print(text, file=self._process.stdin, flush=True)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Ray cluster has ended"
        said: dict[str, Any] = json.loads(line)
        self.address, self.raylets = said["address"], said["raylets"]


@contextmanager
def ray_nodes(n_nodes: int) -> Iterator[RayNodes]:
    command = [sys.executable, __file__, str(n_nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RayNodes(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()


@contextmanager
def node_without(folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another node of a cluster, on which this folder is empty. Takes a user who may mount."""
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--block"]
    ray += ["--node-ip-address=127.0.0.99", "--num-cpus=2"]
    hidden = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder), *ray]
    command = [
        "unshare",
        "--mount",
        "--propagation=private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        *hidden,
    ]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def descendants(process: int) -> list[int]:
    """What a process has started, and that in turn. Of a node's raylet: Ray's agents, actors, and their workers."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                found += [pid, *descendants(pid)]
    return found


def _serve(n_nodes: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    numbers = count(2)

    def fresh() -> Any:
        """A node at an address of its own: programs on this machine join the head, which is at the usual one."""
        return cluster.add_node(num_cpus=2, node_ip_address=f"127.0.0.{next(numbers)}")

    nodes = [cluster.head_node, *(fresh() for _ in range(n_nodes - 1))]

    def say() -> None:
        raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
        print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)

    try:
        say()
        for line in sys.stdin:
            index = int(line.split()[1])
            cluster.remove_node(nodes[index], allow_graceful=False)
            nodes[index] = fresh()
            say()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

"""The nodes of a Ray cluster, each with the number that it keeps."""

import threading
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import ray
from ray._private.state import available_resources_per_node

from outrider.cluster.info import NodeInfo

HEAD = "node:__internal_head__"
HIDDEN_LABEL = "ray.io/node-id"


def living_nodes() -> list[dict[str, Any]]:
    """The nodes that Ray takes for alive, as it describes them."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def own_ip() -> str:
    """Where others reach this machine."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class Roll:
    """Numbers the nodes: the head first, the others by IP, later ones as they come.

    A number stays with its node, and goes to a new one at the same IP once that node is gone.
    """

    def __init__(self, known: Sequence[Sequence[str]] = ()) -> None:
        self._known = [(name, ip) for name, ip in known]
        self._lock = threading.Lock()

    def known(self) -> list[list[str]]:
        """Name and IP of each node by number: what makes another roll number alike."""
        if not self._known:
            self.nodes({})
        with self._lock:
            return [list(node) for node in self._known]

    def nodes(self, taken: Mapping[str, tuple[float, float]]) -> tuple[NodeInfo, ...]:
        """The living nodes in the order of their numbers.

        `taken` are CPUs and GPUs by node that the caller has reserved: Ray counts them a little later.
        """
        alive = {str(node["NodeID"]): node for node in sorted(living_nodes(), key=_order)}
        free = available_resources_per_node()  # type: ignore[no-untyped-call]
        with self._lock:
            for name, node in alive.items():
                self._number(name, str(node["NodeManagerAddress"]), alive)
            numbered = list(enumerate(self._known))
        return tuple(
            _info(number, alive[name], free.get(name, {}), taken.get(name, (0.0, 0.0)))
            for number, (name, _) in numbered
            if name in alive
        )

    def name(self, number: int) -> str:
        """Ray's own id of a node."""
        with self._lock:
            return self._known[number][0]

    def _number(self, name: str, ip: str, alive: Mapping[str, Any]) -> None:
        if any(known == name for known, _ in self._known):
            return
        left = (n for n, (known, at) in enumerate(self._known) if known not in alive and at == ip)
        number = next(left, None)
        if number is None:
            self._known.append((name, ip))
        else:
            self._known[number] = name, ip


def _order(node: Mapping[str, Any]) -> tuple[bool, int, bytes, str]:
    ip = str(node["NodeManagerAddress"])
    try:
        packed = ip_address(ip).packed
    except ValueError:
        packed = ip.encode()
    return HEAD not in node["Resources"], len(packed), packed, str(node["NodeID"])


def _info(number: int, node: Mapping[str, Any], free: Mapping[str, float], taken: tuple[float, float]) -> NodeInfo:
    n_cpus, n_gpus = (float(node["Resources"].get(kind, 0.0)) for kind in ("CPU", "GPU"))
    return NodeInfo(
        node_id=number,
        ip=str(node["NodeManagerAddress"]),
        name=str(node["NodeID"]),
        n_cpus=n_cpus,
        n_gpus=n_gpus,
        free_cpus=max(0.0, min(free.get("CPU", 0.0), n_cpus - taken[0])),
        free_gpus=max(0.0, min(free.get("GPU", 0.0), n_gpus - taken[1])),
        labels={key: value for key, value in node["Labels"].items() if key != HIDDEN_LABEL},
    )

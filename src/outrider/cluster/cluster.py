"""The nodes on which groups of workers run: those of a Ray cluster, or this machine alone."""

import logging
import os
import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from outrider.cluster.directory import Directory, DirectoryClient
from outrider.cluster.engines.inline import InlineEngine
from outrider.cluster.engines.local import LocalEngine
from outrider.cluster.engines.pretence import Pretence
from outrider.cluster.engines.protocol import Engine, Seat, SeatSpec
from outrider.cluster.environment import changed_variables, variables_at_start
from outrider.cluster.info import NodeInfo
from outrider.cluster.master import Masters
from outrider.cluster.placement import Placement, PlacementStrategy, default_placement, parse_placement
from outrider.cluster.post import Post
from outrider.cluster.post.parcel import pickler
from outrider.cluster.station import Membership, Station, current_station
from outrider.core.decoding import convert
from outrider.core.errors import ClusterError, InvalidInput, UnknownWorker
from outrider.core.extras import install_command

if TYPE_CHECKING:
    from outrider.cluster.crew import Crew

_log = logging.getLogger(__name__)

KEY_BYTES = 32
TIMEOUT_SECONDS = 10_800.0
ASK_SECONDS = 10.0
DRIVER = "driver"

_open: list["Cluster"] = []
"""The clusters that this process has opened and not closed, for those who do not say which one they mean."""


class Cluster:
    """Opened by the driver; it owns the directory and all groups that are launched on it. Close it, or use `with`.

    `address` is a Ray cluster's; without one RAY_ADDRESS is used, or else a Ray of its own on this machine, which ends
    with this object. `local=True` needs no Ray: workers are processes of this machine, or threads of this process
    (`processes=False`, for breakpoints), on `num_nodes` made-up nodes with `num_gpus` and `num_cpus` each.
    `env_vars` are set in each worker, as are those variables that this program has changed since its start.
    `timeout_seconds` bounds a wait for a group's call that has no timeout of its own.
    """

    engine: Engine

    def __init__(
        self,
        address: str | None = None,
        *,
        local: bool = False,
        processes: bool = True,
        num_nodes: int = 1,
        num_gpus: int = 0,
        num_cpus: float | None = None,
        env_vars: Mapping[str, str] | None = None,
        namespace: str = "outrider",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        _check(address, local=local, processes=processes, env_vars=env_vars)
        self.timeout_seconds = timeout_seconds
        self._env_vars = dict(env_vars or {})
        self._crews: list[Crew | VisitedCluster] = []
        self._is_closed = False
        key = secrets.token_bytes(KEY_BYTES)
        if local:
            pickler()  # without its library no call can be made: better said now
            pretence = Pretence(num_nodes, num_gpus, *(() if num_cpus is None else (num_cpus,)))
            self._begin(Post(DRIVER, key))
            self.engine = (LocalEngine if processes else InlineEngine)(self.post, pretence)
        else:
            self.engine = _ray_engine()(
                address, namespace=namespace, num_nodes=num_nodes, num_gpus=num_gpus, num_cpus=num_cpus
            )
            self._begin(self._driver_post(key))
        _open.append(self)

    @classmethod
    def current(cls) -> "Cluster":
        """The cluster of the worker whose code is running, or the one that this process has opened last."""
        station = current_station()
        if station is not None:
            return station.cluster
        if not _open:
            raise ClusterError(
                "no cluster is open in this process, and it is not a worker of one: make a Cluster first"
            )
        return _open[-1]

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes in their order, with what is free on them now."""
        return self.engine.nodes()

    @property
    def working_nodes(self) -> tuple[NodeInfo, ...]:
        """Those for rollouts: a node that was started without CPUs, as heads often are, is for others."""
        nodes = self.nodes
        return tuple(node for node in nodes if node.n_cpus) or nodes

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    def places(self, strategy: PlacementStrategy | str | None) -> list[Placement]:
        """The places of a group by rank; `InvalidInput` if the cluster has no room for it."""
        if isinstance(strategy, str):
            strategy = parse_placement(strategy)
        if strategy is not None and not isinstance(strategy, PlacementStrategy):
            raise InvalidInput(f"a placement is a text such as '0-3', or a strategy, not {strategy!r}")
        places = default_placement(self.nodes) if strategy is None else strategy.places(self.nodes)
        if not places:
            raise InvalidInput(f"{strategy} places no worker at all")
        return places

    def environment(self, env_vars: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables that a worker gets from its launcher: those it has changed, the cluster's, the launch's."""
        _check_variables(env_vars)
        changed = changed_variables(os.environ, variables_at_start())
        return {**changed, **self._env_vars, **(env_vars or {})}

    def allocate(self, spec: SeatSpec, place: Placement) -> Seat:
        """Start one worker on its node, with its environment; returns at once. Groups do this for each rank."""
        if self._is_closed:
            raise ClusterError("the cluster is closed")
        return self.engine.start(spec, place)

    def adopt(self, crew: "Crew | VisitedCluster") -> None:
        """Close it when the cluster is closed, if nobody has by then."""
        self._crews.append(crew)

    def disown(self, crew: "Crew") -> None:
        if crew in self._crews:
            self._crews.remove(crew)

    def home_of(self, group: str) -> "Cluster":
        """Where the group is known: here, or in the cluster that another program has on the same Ray."""
        try:
            self.post.run(self.directory.group(group, patience=0.0), timeout=ASK_SECONDS)
        except UnknownWorker:
            membership = self.engine.membership(group)
            if membership is not None and membership.directory != self.directory.endpoint:
                return self._visit(membership)
        return self

    def close(self) -> None:
        """End all groups, and what the cluster itself has started. Idempotent, bounded."""
        if self._is_closed:
            return
        self._is_closed = True
        if self in _open:
            _open.remove(self)
        for crew in reversed(list(self._crews)):
            crew.close()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, post: Post) -> None:
        """Be the driver: who is where is known here."""
        self.post = post
        Directory(post)
        Masters(post)
        self.directory = DirectoryClient(post, post.endpoint)

    def _visit(self, membership: Membership) -> "Cluster":
        for known in self._crews:
            if isinstance(known, VisitedCluster) and known.directory.endpoint == membership.directory:
                return known
        visited = VisitedCluster(membership, self.engine.driver_ip)
        self.adopt(visited)
        return visited

    def _driver_post(self, key: bytes) -> Post:
        try:
            return Post(DRIVER, key, host=self.engine.driver_ip)
        except BaseException:
            self.engine.close()
            raise

    def _end(self) -> None:
        self.engine.close()
        self.post.close()


class WorkersCluster(Cluster):
    """The cluster as one of its workers sees it: the same directory and kind of engine, groups of its own."""

    def __init__(self, station: Station) -> None:
        self.timeout_seconds = TIMEOUT_SECONDS
        self.post = station.post
        self.directory = station.directory
        self._env_vars = {}
        self._crews = []
        self._is_closed = False
        self._station = station

    @cached_property
    def engine(self) -> Engine:  # type: ignore[override]  # most workers start none, and need no engine
        return _engine_of(self._station)

    def _end(self) -> None:
        """The post is the worker's own."""
        if "engine" in self.__dict__:
            self.engine.close()


class VisitedCluster(Cluster):
    """The cluster of another program: its groups can be called, nothing can be launched. Closed by its visitor."""

    def __init__(self, membership: Membership, host: str) -> None:
        self.timeout_seconds = TIMEOUT_SECONDS
        self.post = Post(f"a visitor from {host}", membership.key, host=host)
        self.directory = DirectoryClient(self.post, membership.directory)
        self._env_vars = {}
        self._crews = []
        self._is_closed = False

    def _end(self) -> None:
        self.post.close()


def _engine_of(station: Station) -> Engine:
    """The engine of the launcher, for the groups of one of its workers."""
    description = station.membership.engine
    if description["kind"] == "ray":
        attached: Engine = _ray_engine().attached(description, station.post)
        return attached
    engine = LocalEngine if description["kind"] == "local" else InlineEngine
    return engine(station.post, convert(description["nodes"], Pretence))


def _ray_engine() -> Any:
    try:
        from outrider.cluster.engines.ray import RayEngine  # noqa: PLC0415 comes with an extra
    except ImportError as exc:
        raise InvalidInput(f"Ray is not installed: {install_command('ray')}, or use Cluster(local=True)") from exc
    return RayEngine


def _check(address: str | None, *, local: bool, processes: bool, env_vars: Mapping[str, str] | None) -> None:
    _check_variables(env_vars)
    if local and address is not None:
        raise InvalidInput(f"Cluster(local=True) has no address; leave out {address!r}, or local")
    if not local and not processes:
        raise InvalidInput("processes=False is for Cluster(local=True): on Ray each worker is a process")


def _check_variables(env_vars: Mapping[str, str] | None) -> None:
    for name, value in (env_vars or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise InvalidInput(f"env_vars: {name!r}={value!r} cannot be an environment variable; both must be text")

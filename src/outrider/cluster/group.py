"""A group of workers of one class: started together, called together."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from outrider.cluster.address import WorkerAddress
from outrider.cluster.calls import Call
from outrider.cluster.cargo import pickled, refuse_unpicklable
from outrider.cluster.crew import RELEASE_SECONDS, STRAGGLER_SECONDS, Crew, Muster, Roster, attached
from outrider.cluster.info import WorkerInfo
from outrider.cluster.placement import PlacementStrategy
from outrider.cluster.scatter import dealt, is_scattered
from outrider.core.errors import InvalidInput

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.worker import Worker

W = TypeVar("W")

START_SECONDS = 60.0
INFO_SECONDS = 10.0


class GroupView(Generic[W]):
    """Some ranks of a group, to call methods on. Results come in the order in which the ranks were named."""

    def __init__(self, roster: Roster, methods: Mapping[str, bool], ranks: Sequence[int]) -> None:
        self._roster = roster
        self._methods = methods
        self._ranks = ranks

    def __getattr__(self, name: str) -> Callable[..., Call[Any]]:
        _check_method(name, self._methods, self._roster.name)
        return partial(_call, self._roster, self._ranks, name)


class WorkerGroup(Generic[W]):
    """Made by `create_group` of a worker class. After `launch`, each public method of the class is one of the group.

    A method called on the group runs in all workers at once; what it returns is a handle (`Call`) to wait on. An
    argument that is a `scatter` gives each worker its own value. As a context manager the group closes itself.
    """

    def __init__(self, worker_class: type[W], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._class = worker_class
        self._args = args
        self._kwargs = kwargs
        self._methods = _methods(worker_class)
        self._roster: Roster | None = None

    def launch(
        self,
        cluster: "Cluster",
        placement_strategy: PlacementStrategy | str | None = None,
        name: str | None = None,
        *,
        wait: bool = True,
        start_seconds: float = START_SECONDS,
        max_concurrency: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        restarts: int = 0,
        parent: "Worker | WorkerAddress | None" = None,
        straggler_seconds: float = STRAGGLER_SECONDS,
    ) -> Self:
        """Start the workers, and with `wait` return when all are up.

        The placement says how many there are and where; without one there is a worker for each GPU, or for each node of
        a cluster without GPUs. A worker that dies is started again up to `restarts` times. Children of `parent` have
        addresses below its own, and end with it. A start that fails ends what it has started.
        """
        if self._roster is not None:
            raise InvalidInput(f"group {self._roster.name!r} was launched already; create another group")
        _check_launch(start_seconds, max_concurrency, restarts)
        places = cluster.places(placement_strategy)
        muster = Muster(
            name=self._name(name, parent),
            places=places,
            workers=self._pickles(len(places)),
            env=cluster.environment(env_vars),
            methods=tuple(self._methods),
            is_async=any(self._methods.values()),
            max_concurrency=max_concurrency,
            start_seconds=start_seconds,
            restarts=restarts,
            straggler_seconds=straggler_seconds,
        )
        crew = Crew(cluster, muster)
        crew.start()
        if wait:
            crew.ready(start_seconds)
        self._roster = crew
        return self

    @classmethod
    def from_group_name(cls, worker_class: type[W], name: str, cluster: "Cluster | None" = None) -> "WorkerGroup[W]":
        """The group of that name, whoever launched it. It is called like any other; `close` only lets go of it."""
        from outrider.cluster.cluster import Cluster  # noqa: PLC0415 a cluster has groups

        group = WorkerGroup(worker_class, (), {})
        group._roster = attached((cluster or Cluster.current()).home_of(name), name)
        return group

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all workers are up. One that cannot be started raises its own error, and the group is closed."""
        self._launched.ready(timeout)

    def execute_on(self, *ranks: int) -> GroupView[W]:
        """These ranks only; the group itself stays as it is."""
        roster = self._launched
        wrong = [rank for rank in ranks if not isinstance(rank, int) or not 0 <= rank < len(roster.members)]
        if wrong or not ranks:
            raise InvalidInput(f"group {roster.name!r} has ranks 0 to {len(roster.members) - 1}, not {wrong or 'none'}")
        return GroupView(roster, self._methods, ranks)

    def close(self, seconds: float = RELEASE_SECONDS) -> None:
        """End the workers, by force after `seconds`. Calls that they have not answered fail. Idempotent."""
        if self._roster is not None:
            self._roster.close(seconds)

    @property
    def name(self) -> str:
        return self._launched.name

    @property
    def world_size(self) -> int:
        return len(self._launched.members)

    @property
    def worker_info_list(self) -> list[WorkerInfo]:
        """What each worker is, by rank."""
        return self._launched.infos(INFO_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Callable[..., Call[Any]]:
        _check_method(name, self._methods, self._class.__name__)
        roster = self._launched
        return partial(_call, roster, range(len(roster.members)), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    @property
    def _launched(self) -> Roster:
        if self._roster is None:
            raise InvalidInput(f"this group of {self._class.__name__} was not launched: call launch(cluster) first")
        return self._roster

    def _name(self, name: str | None, parent: "Worker | WorkerAddress | None") -> str:
        if parent is None:
            return WorkerAddress(f"Worker_group_{self._class.__name__}" if name is None else name).get_name()
        if name is not None:
            raise InvalidInput(f"a group of children is named after its parent; leave out name={name!r}, or parent")
        return parent.get_name()  # "Group:0", whose workers are "Group:0:0" and so on

    def _pickles(self, n_ranks: int) -> list[bytes]:
        """(class, args, kwargs) for each rank; one pickle for all where they are the same."""
        what = f"{self._class.__name__}()"
        hands = dealt(what, self._args, self._kwargs, n_ranks)
        if not is_scattered(self._args, self._kwargs):
            return [_pickle(self._class, what, *hands[0])] * n_ranks
        return [_pickle(self._class, what, *hand) for hand in hands]


def _pickle(worker_class: type[Any], what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return pickled((worker_class, args, dict(kwargs)))
    except Exception as exc:
        raise refuse_unpicklable(what, args, kwargs, exc) from exc


def _call(roster: Roster, ranks: Sequence[int], method: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
    return roster.call(ranks, method, args, kwargs)


def _methods(worker_class: type[Any]) -> dict[str, bool]:
    """The public methods of the class, and whether each is a coroutine. A name that the group itself has is refused."""
    found = {}
    for name in dir(worker_class):
        attribute = inspect.getattr_static(worker_class, name)
        function = getattr(attribute, "__func__", attribute)
        if name.startswith("_") or name == "create_group" or not inspect.isroutine(function):
            continue
        if name in vars(WorkerGroup):
            raise InvalidInput(
                f"{worker_class.__name__}.{name}() cannot be called on a group, since {name!r} is a name of the group "
                "itself; give the method another name, or a leading underscore"
            )
        found[name] = inspect.iscoroutinefunction(inspect.unwrap(function))
    return found


def _check_method(name: str, methods: Mapping[str, bool], where: str) -> None:
    if name in methods:
        return
    near = get_close_matches(name, methods, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    reason = "private names cannot be called on a group" if name.startswith("_") else f"no such public method{hint}"
    raise AttributeError(f"{where}: {name!r} cannot be called: {reason}")


def _check_launch(start_seconds: float, max_concurrency: int | None, restarts: int) -> None:
    if start_seconds <= 0 or restarts < 0 or (max_concurrency is not None and max_concurrency < 1):
        raise InvalidInput(
            "start_seconds must be above 0, restarts 0 or more, max_concurrency at least 1 or None; "
            f"not {start_seconds}, {restarts}, {max_concurrency}"
        )

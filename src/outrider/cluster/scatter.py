"""Arguments of which each rank of a group gets its own."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from outrider.core.errors import InvalidInput

T = TypeVar("T")


class scatter(Generic[T]):  # noqa: N801 it reads as a verb: group.train(scatter(batches))
    """Stands for one argument: the first called rank gets the first of the values, and so on."""

    def __init__(self, values: Iterable[T]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"scatter of {len(self.values)} values"


def is_scattered(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(arg, scatter) for arg in (*args, *kwargs.values()))


def dealt(
    what: str, args: Sequence[Any], kwargs: Mapping[str, Any], n_ranks: int
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each rank. `InvalidInput` if a scatter has not one value for each."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, scatter) and len(arg.values) != n_ranks:
            raise InvalidInput(f"{what}: {arg!r} for {n_ranks} workers; it needs one value for each worker called")
    return [
        (
            tuple(arg.values[i] if isinstance(arg, scatter) else arg for arg in args),
            {name: arg.values[i] if isinstance(arg, scatter) else arg for name, arg in kwargs.items()},
        )
        for i in range(n_ranks)
    ]

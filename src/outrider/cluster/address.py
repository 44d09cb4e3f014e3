"""Names of workers: the group they were started in, and the ranks that lead from it to them."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from outrider.core.errors import InvalidInput

MAX_RANK = 2**31 - 1


class WorkerAddress(msgspec.Struct, frozen=True, order=True):
    """A worker's address: `"Group:0"` is rank 0 of a group, `"Group:0:1"` rank 1 of the group that `"Group:0"` started.

    Without ranks it is the address of the root group itself. Addresses sort by group, then by rank as numbers.
    """

    root_group_name: str
    ranks: tuple[int, ...] = ()

    if TYPE_CHECKING:  # a lone rank and any sequence of ranks are taken, and kept as a tuple

        def __init__(self, root_group_name: str, ranks: int | Sequence[int] = ()) -> None: ...

    def __post_init__(self) -> None:
        name = self.root_group_name
        if not isinstance(name, str) or not name.strip():
            raise InvalidInput(f"a worker group needs a name that is not empty, not {name!r}")
        if ":" in name:
            raise InvalidInput(f"group name {name!r} may not hold ':', which separates ranks in an address")
        force_setattr(self, "ranks", _path(name, self.ranks))

    @classmethod
    def from_name(cls, name: str) -> "WorkerAddress":
        """The address that `get_name` wrote."""
        root, *pieces = name.split(":")
        for piece in pieces:
            if not (piece.isascii() and piece.isdigit() and len(piece) <= len(str(MAX_RANK))):
                raise InvalidInput(f"address {name!r}: {piece!r} is not a rank; an address looks like 'Group:0:1'")
        return cls(root, [int(piece) for piece in pieces])

    @classmethod
    def child_of(cls, group_name_or_address: str, rank: int | Sequence[int]) -> "WorkerAddress":
        """The worker of this rank in `"Group"`, or among the children of the worker `"Group:0"`.

        A sequence of ranks leads further down: `child_of("Group", [0, 1])` is `"Group:0:1"`.
        """
        group = cls.from_name(group_name_or_address)
        return cls(group.root_group_name, group.ranks + _path(group_name_or_address, rank))

    @property
    def rank(self) -> int:
        """The rank among its siblings; 0 for a root group, which has none."""
        return self.ranks[-1] if self.ranks else 0

    @property
    def rank_path(self) -> tuple[int, ...]:
        """The ranks from the root group down to this worker."""
        return self.ranks

    @property
    def group_name(self) -> str:
        """The name of the group it belongs to: `"Group"` for `"Group:0"`, `"Group:0"` for `"Group:0:1"`."""
        return (self.get_parent_address() or self).get_name()

    def get_name(self) -> str:
        return ":".join((self.root_group_name, *map(str, self.ranks)))

    def get_parent_rank(self) -> int:
        """The rank of the worker that started this one; 0 for a worker of a root group."""
        return self.ranks[-2] if len(self.ranks) > 1 else 0

    def get_parent_address(self) -> "WorkerAddress | None":
        """The address without its last rank; None for a root group."""
        return WorkerAddress(self.root_group_name, self.ranks[:-1]) if self.ranks else None

    def get_child_address(self, rank: int) -> "WorkerAddress":
        return WorkerAddress(self.root_group_name, (*self.ranks, rank))

    def __str__(self) -> str:
        return self.get_name()


def _path(name: str, ranks: int | Sequence[int]) -> tuple[int, ...]:
    """Ranks as a tuple of plain integers; integers of other libraries are taken too."""
    try:
        path = tuple(int(index(rank)) for rank in (ranks if isinstance(ranks, Iterable) else (ranks,)))
    except TypeError:
        raise InvalidInput(f"worker of {name!r}: {ranks!r} is neither a rank nor a sequence of ranks") from None
    for rank in path:
        if not 0 <= rank <= MAX_RANK:
            raise InvalidInput(f"worker of {name!r}: a rank is 0 or more, and at most {MAX_RANK}, not {rank}")
    return path

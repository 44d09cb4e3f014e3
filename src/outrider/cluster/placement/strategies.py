"""Strategies: packed on GPUs, packed on CPUs, spread over nodes, per node, and a list of GPUs for each worker."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.grammar import parse_ranks
from outrider.cluster.placement.place import Placement
from outrider.cluster.placement.room import (
    WHOLE,
    NodeGroup,
    Room,
    Seat,
    amount,
    check_group,
    check_list,
    count,
    gpu_amount,
    members,
    numbered_gpus,
    refuse,
    settle,
)
from outrider.core.errors import InvalidInput


class PackedPlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Workers fill a range of GPUs in order, both ends included; without an end it goes to the last GPU.

    A part of a GPU for each process puts several on one GPU: 0.5 puts two. With `stride` the GPUs of one process lie
    that far apart and neighbours fill the gaps: two GPUs each and a stride of 2 give (0, 2), (1, 3), (4, 6), (5, 7).
    `num_cpus` are reserved for each worker beside its GPUs.
    """

    start_gpu_id: int = 0
    end_gpu_id: int | None = None
    num_gpus_per_process: float = 1
    stride: int = 1
    num_cpus: float = 0
    node_group: NodeGroup | None = None

    def __post_init__(self) -> None:
        check_group(self.node_group)
        count(self.start_gpu_id, "start_gpu_id", 0)
        if self.end_gpu_id is not None:
            count(self.end_gpu_id, "end_gpu_id (the last GPU, included)", self.start_gpu_id)
        each = gpu_amount(self.num_gpus_per_process, "num_gpus_per_process")
        if not each:
            raise InvalidInput("num_gpus_per_process must be more than 0; CpuPlacementStrategy places without GPUs")
        count(self.stride, "stride")
        if self.stride > 1 and each <= WHOLE:
            raise InvalidInput(f"stride={self.stride} needs processes with two GPUs or more")
        amount(self.num_cpus, "num_cpus")

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        chosen = members(nodes, self.node_group, self)
        gpus = numbered_gpus(chosen)
        first = self.start_gpu_id
        last = len(gpus) - 1 if self.end_gpu_id is None else self.end_gpu_id
        check_gpus([first, max(first, last)], gpus, self, nodes)
        each = gpu_amount(self.num_gpus_per_process, "num_gpus_per_process")
        lists: list[tuple[int, ...]]
        if each < WHOLE:
            lists = [(gpu,) for gpu in range(first, last + 1) for _ in range(WHOLE // each)]
        else:
            block = each // WHOLE * self.stride
            if (last + 1 - first) % block:
                refuse(self, f"cannot divide the {last + 1 - first} GPUs {first}-{last} into blocks of {block}", nodes)
            lists = [
                tuple(range(start + offset, start + block, self.stride))
                for start in range(first, last + 1, block)
                for offset in range(self.stride)
            ]
        cpus = amount(self.num_cpus, "num_cpus")
        return settle(list(gpu_seats(lists, [each] * len(lists), cpus, chosen, self)), nodes, self)


class CpuPlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Workers without GPUs fill the free CPUs of the nodes in order, `num_cpus` each."""

    n_workers: int
    num_cpus: float = 1
    node_group: NodeGroup | None = None

    def __post_init__(self) -> None:
        check_group(self.node_group)
        count(self.n_workers, "n_workers")
        if not amount(self.num_cpus, "num_cpus"):
            raise InvalidInput("num_cpus must be more than 0; SpreadPlacementStrategy places without counting CPUs")

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        cpus = amount(self.num_cpus, "num_cpus")
        rooms = map(Room, members(nodes, self.node_group, self))
        free = (seat for room in rooms for seat in iter(lambda: room.pick(0, cpus), None))  # noqa: B023 - used at once
        seats = list(islice(free, self.n_workers))
        if len(seats) < self.n_workers:
            refuse(self, f"finds free CPUs for {len(seats)} workers only", nodes)
        return settle(seats, nodes, self)


class SpreadPlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Workers go round the nodes, one each; a node without room for one more is passed over.

    `num_gpus` (a part of one, or whole ones) and `num_cpus` are reserved for each; by default nothing is.
    """

    n_workers: int
    num_gpus: float = 0
    num_cpus: float = 0
    node_group: NodeGroup | None = None

    def __post_init__(self) -> None:
        check_group(self.node_group)
        count(self.n_workers, "n_workers")
        gpu_amount(self.num_gpus, "num_gpus")
        amount(self.num_cpus, "num_cpus")

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        wanted = gpu_amount(self.num_gpus, "num_gpus"), amount(self.num_cpus, "num_cpus")
        rooms = [Room(node) for node in members(nodes, self.node_group, self)]
        round_trip = cycle(rooms)
        seats: list[Seat] = []
        while len(seats) < self.n_workers:
            tried = (room.pick(*wanted) for room in islice(round_trip, len(rooms)))
            seat = next((seat for seat in tried if seat), None)
            if seat is None:
                refuse(self, f"finds room for {len(seats)} workers only", nodes)
            seats.append(seat)
        return settle(seats, nodes, self)


class NodePlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """`per_node` workers on each of these nodes, in this order: `[0, 2]`, `"0-3"`, `"all"`.

    A node that stands twice in a list gets twice as many. `num_gpus` and `num_cpus` are reserved for each worker.
    """

    node_ids: Sequence[int] | str = "all"
    per_node: int = 1
    num_gpus: float = 0
    num_cpus: float = 0
    node_group: NodeGroup | None = None

    def __post_init__(self) -> None:
        check_group(self.node_group)
        if isinstance(self.node_ids, str):
            parse_ranks(self.node_ids)
        else:
            force_setattr(self, "node_ids", _numbers(self.node_ids, "node_ids"))
        count(self.per_node, "per_node")
        gpu_amount(self.num_gpus, "num_gpus")
        amount(self.num_cpus, "num_cpus")

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        node_ids = parse_ranks(self.node_ids) if isinstance(self.node_ids, str) else self.node_ids
        chosen = numbered_nodes(members(nodes, self.node_group, self), self.node_group)
        wanted = gpu_amount(self.num_gpus, "num_gpus"), amount(self.num_cpus, "num_cpus")
        by_rank = [node_id for node_id in node_ids or chosen for _ in range(self.per_node)]
        return places_on_nodes(by_rank, wanted, chosen, self, nodes)


class FlexiblePlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One list of GPUs for each worker, by rank: `[[0, 1], [2], [3]]`. The GPUs of one worker lie on one node.

    Workers that list the same single GPU share it evenly. `share` is the part of each GPU that the group takes, so
    that other groups may have the rest; a worker with several GPUs has them whole.
    """

    gpu_ids: tuple[tuple[int, ...], ...]
    share: float = 1
    num_cpus: float = 0
    node_group: NodeGroup | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            gpu_ids: Sequence[Sequence[int]],
            share: float = 1,
            num_cpus: float = 0,
            node_group: NodeGroup | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_group(self.node_group)
        check_list(self.gpu_ids, "gpu_ids must hold a list of GPUs for each worker")
        lists = tuple(_numbers(gpus, f"the GPUs of rank {rank}") for rank, gpus in enumerate(self.gpu_ids))
        force_setattr(self, "gpu_ids", lists)
        check_share(self.share)
        amount(self.num_cpus, "num_cpus")
        workers = Counter(gpu for gpus in lists for gpu in gpus)
        for rank, gpus in enumerate(lists):
            if len(set(gpus)) < len(gpus):
                raise InvalidInput(f"rank {rank} lists a GPU twice: {list(gpus)}")
            if len(gpus) > 1 and (self.share != 1 or any(workers[gpu] > 1 for gpu in gpus)):
                raise InvalidInput(
                    f"rank {rank} lists GPUs {list(gpus)}, but only a single GPU can be shared with other workers; "
                    "give it one GPU, or GPUs that nobody else lists and share=1"
                )

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        chosen = members(nodes, self.node_group, self)
        return places_on_gpus(self, chosen, self, nodes)


def places_on_nodes(
    by_rank: Sequence[int],
    wanted: tuple[int, int],
    chosen: Mapping[int, NodeInfo],
    asked: object,
    nodes: Sequence[NodeInfo],
) -> list[Placement]:
    """A place on each of these nodes, by rank, with these amounts of GPUs and CPUs."""
    rooms = {number: Room(node) for number, node in chosen.items()}
    seats: list[Seat] = []
    for rank, number in enumerate(by_rank):
        if number not in rooms:
            refuse(asked, f"names node {number}; there are {listed(list(rooms))}", nodes)
        seat = rooms[number].pick(*wanted)
        if seat is None:
            refuse(asked, f"has no room for rank {rank} on node {chosen[number].node_id}", nodes)
        seats.append(seat)
    return settle(seats, nodes, asked)


def places_on_gpus(
    lists: FlexiblePlacementStrategy, chosen: Sequence[NodeInfo], asked: object, nodes: Sequence[NodeInfo]
) -> list[Placement]:
    """A place on each of these lists of GPUs, by rank; workers with the same GPU get an even part of it."""
    check_gpus([gpu for gpus in lists.gpu_ids for gpu in gpus], numbered_gpus(chosen), asked, nodes)
    workers = Counter(gpu for gpus in lists.gpu_ids for gpu in gpus)
    whole = amount(lists.share, "share")
    amounts = [len(gpus) * WHOLE if len(gpus) > 1 else whole // workers[gpus[0]] for gpus in lists.gpu_ids]
    if 0 in amounts:
        refuse(asked, f"puts {max(workers.values())} workers on one GPU; each must have 0.0001 of it at least", nodes)
    cpus = amount(lists.num_cpus, "num_cpus")
    return settle(list(gpu_seats(lists.gpu_ids, amounts, cpus, chosen, asked)), nodes, asked)


def gpu_seats(
    lists: Sequence[tuple[int, ...]], amounts: Sequence[int], cpus: int, nodes: Sequence[NodeInfo], asked: object
) -> Iterator[Seat]:
    """A seat for each list of GPUs, counted over all these nodes; a list that lies on two nodes is refused."""
    gpus = numbered_gpus(nodes)
    for rank, (numbers, wanted) in enumerate(zip(lists, amounts, strict=True)):
        node = gpus[numbers[0]][0]
        astray = next((number for number in numbers if gpus[number][0] is not node), None)
        if astray is not None:
            refuse(
                asked,
                f"gives rank {rank} GPU {numbers[0]}, which is on node {node.node_id}, and GPU {astray}, which is on "
                f"node {gpus[astray][0].node_id}; a worker lives on one node, so move the range or list to its edge",
                nodes,
            )
        yield Seat(node, tuple(gpus[number][1] for number in numbers), wanted, cpus)


def check_gpus(
    numbers: Sequence[int], gpus: Sequence[tuple[NodeInfo, int]], asked: object, nodes: Sequence[NodeInfo]
) -> None:
    if not gpus:
        refuse(asked, "needs GPUs, and there are none; Cpu-, Spread- and NodePlacementStrategy do without", nodes)
    if max(numbers) >= len(gpus):
        refuse(asked, f"names GPU {max(numbers)}; there are {listed(range(len(gpus)))}", nodes)


def check_share(share: float) -> None:
    if not 0 < amount(share, "share") <= WHOLE:
        raise InvalidInput(f"share is the part of each GPU that a group takes, up to 1, not {share!r}")


def numbered_nodes(nodes: Sequence[NodeInfo], group: NodeGroup | None) -> dict[int, NodeInfo]:
    """Nodes by id, or by their index in the group that they were chosen by."""
    return {node.node_id if group is None else n: node for n, node in enumerate(nodes)}


def _numbers(given: Sequence[int], what: str) -> tuple[int, ...]:
    check_list(given, f"{what} must be a list of numbers")
    for number in given:
        count(number, f"each number of {what}", 0)
    return tuple(given)


def listed(numbers: Sequence[int]) -> str:
    """Ascending numbers: as a range where they are one."""
    if len(numbers) == 1:
        return f"only {numbers[0]}"
    whole = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]}-{numbers[-1]}" if whole else ", ".join(map(str, numbers))

"""What the nodes of a cluster have and what is free of it, and the seats that are taken there.

Quantities are counted in ten-thousandths, the precision of Ray: three thirds of a GPU never exceed it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.core.errors import InvalidInput

WHOLE = 10_000
GROUP_LABEL = "node_group"

MOST = 1_000_000
"""No cluster has more of anything; so that a slip of the keyboard is not worked on for hours."""

NodeGroup = str | Mapping[str, str]
"""Labels that a node must have, or the value of its label `node_group`."""


class Seat(NamedTuple):
    """A place before it has a rank: amounts in ten-thousandths, GPUs as the node numbers them."""

    node: NodeInfo
    gpus: tuple[int, ...]
    gpu_amount: int
    cpu_amount: int


class Room:
    """What is left of one node while seats are taken."""

    def __init__(self, node: NodeInfo) -> None:
        self.node = node
        self._by_gpu = [_floor(free) for free in node.free_by_gpu] or [WHOLE] * int(node.n_gpus)
        self._gpus = _floor(node.free_gpus)
        self._cpus = _floor(node.free_cpus)

    def pick(self, gpu_amount: int, cpu_amount: int) -> Seat | None:
        """Take a seat on GPUs that are free, parts of a GPU where one is broken already; None if there is no room."""
        each, count = (gpu_amount, 1) if gpu_amount < WHOLE else (WHOLE, gpu_amount // WHOLE)
        fitting = [gpu for gpu, free in enumerate(self._by_gpu) if free >= each]
        count = count if gpu_amount else 0
        if cpu_amount > self._cpus or gpu_amount > self._gpus or count > len(fitting):
            return None
        gpus = sorted(sorted(fitting, key=lambda gpu: self._by_gpu[gpu])[:count])
        seat = Seat(self.node, tuple(gpus), gpu_amount, cpu_amount)
        self.take(seat)
        return seat

    def take(self, seat: Seat) -> None:
        """Take this very seat, whether there is room or not."""
        self._cpus -= seat.cpu_amount
        self._gpus -= seat.gpu_amount
        for gpu in seat.gpus:
            self._by_gpu[gpu] -= seat.gpu_amount // len(seat.gpus)

    def shortages(self) -> list[str]:
        """What was taken beyond what there is."""
        where = f"node {self.node.node_id}"
        found = [f"GPU {gpu} of {where} lacks {-free / WHOLE:g}" for gpu, free in enumerate(self._by_gpu) if free < 0]
        if self._gpus < 0 and not found:
            found.append(f"{where} lacks {-self._gpus / WHOLE:g} GPUs")
        if self._cpus < 0:
            found.append(f"{where} lacks {-self._cpus / WHOLE:g} CPUs")
        return found


def settle(seats: Sequence[Seat], nodes: Sequence[NodeInfo], asked: object) -> list[Placement]:
    """Give the seats their ranks, in this order, or refuse them all if they do not fit what is free."""
    rooms = {node.node_id: Room(node) for node in nodes}
    for seat in seats:
        rooms[seat.node.node_id].take(seat)
    shortages = [shortage for room in rooms.values() for shortage in room.shortages()]
    if shortages:
        hint = "take less, share GPUs between workers, or wait until others have ended"
        refuse(asked, f"does not fit: {'; '.join(shortages)}; {hint}", nodes)
    sizes = Counter(seat.node.node_id for seat in seats)
    node_ranks = {node_id: index for index, node_id in enumerate(sorted(sizes))}
    seated: Counter[int] = Counter()
    places = []
    for rank, seat in enumerate(seats):
        node_id = seat.node.node_id
        places.append(
            Placement(
                rank=rank,
                node_id=node_id,
                local_rank=seated[node_id],
                local_world_size=sizes[node_id],
                n_gpus=seat.gpu_amount / WHOLE,
                gpus=seat.gpus,
                n_cpus=seat.cpu_amount / WHOLE,
                node_rank=node_ranks[node_id],
            )
        )
        seated[node_id] += 1
    return places


def members(nodes: Sequence[NodeInfo], group: NodeGroup | None, asked: object) -> list[NodeInfo]:
    """The nodes of a group, or all of them, in order of id."""
    labels = {GROUP_LABEL: group} if isinstance(group, str) else group or {}
    found = [node for node in nodes if labels.items() <= node.labels.items()]
    if not found:
        wanted = ", ".join(f"{key}={value}" for key, value in labels.items())
        refuse(asked, f"finds no node labelled {wanted}" if wanted else "finds no node in the cluster", nodes)
    return sorted(found, key=lambda node: node.node_id)


def numbered_gpus(nodes: Iterable[NodeInfo]) -> list[tuple[NodeInfo, int]]:
    """All GPUs, counted from node to node: each with its node, and its number there."""
    return [(node, gpu) for node in nodes for gpu in range(int(node.n_gpus))]


def amount(value: float, what: str) -> int:
    """A quantity in ten-thousandths, rounded down so that parts never exceed the whole."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
    if not number or (value and value * WHOLE < 1):
        raise InvalidInput(f"{what} must be 0, or at least 0.0001 and at most {MOST:,}, not {value!r}")
    return _floor(value)


def gpu_amount(value: float, what: str) -> int:
    """The GPUs of one worker: parts of one, or whole ones."""
    found = amount(value, what)
    if found > WHOLE and found % WHOLE:
        raise InvalidInput(f"{what} is a part of one GPU, or a whole number of them, not {value:g}")
    return found


def count(value: int, what: str, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{what} must be a whole number from {least} up, not {value!r}")
    if value > MOST:
        raise InvalidInput(f"{what} must be at most {MOST:,}, not {value!r}")


def check_group(group: object) -> None:
    """Raise `InvalidInput` unless this can be a `node_group`."""
    if group is None or isinstance(group, str):
        return
    if not isinstance(group, Mapping) or not all(isinstance(text, str) for pair in group.items() for text in pair):
        raise InvalidInput(
            "node_group must be the label node_group of the wanted nodes, such as 'big', or labels that they have, "
            f"such as {{'kind': 'big'}}, not {group!r}"
        )


def check_list(given: object, what: str) -> None:
    """Raise `InvalidInput` unless this is a list with something in it."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise InvalidInput(f"{what}, not {given!r}")


def refuse(asked: object, reason: str, nodes: Sequence[NodeInfo]) -> NoReturn:
    """Refuse a placement; the message ends with one line for each node."""
    raise InvalidInput("\n".join([f"{asked} {reason}", *_table(nodes)]))


def _table(nodes: Sequence[NodeInfo]) -> list[str]:
    rows = [
        (
            f"node {node.node_id}",
            node.ip,
            f"{node.free_gpus:g} of {node.n_gpus:g} GPUs free" + _broken(node),
            f"{node.free_cpus:g} of {node.n_cpus:g} CPUs free",
            " ".join(f"{key}={value}" for key, value in sorted(node.labels.items())),
        )
        for node in nodes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _broken(node: NodeInfo) -> str:
    """Which GPUs are not wholly free, where the engine knows."""
    taken = [f"{gpu}: {free:g}" for gpu, free in enumerate(node.free_by_gpu) if free < 1]
    return f" ({', '.join(taken)})" if taken else ""


def _floor(value: float) -> int:
    return int(value * WHOLE + 1e-6)

"""What a channel's process and its users say to each other.

A user tells `REQUESTS`, a list of operations; the channel tells `ANSWERS`, a list of outcomes. Each operation with a
ticket of its own gets one outcome, preceded by any number of parts of it. The parts of the items follow one another in
the order of the list; a large item on the same node stays where it is, and is told by its place.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice

from outrider.cluster.channel.shared import Ref, Shared
from outrider.cluster.post import Part

REQUESTS = "channel.requests"
ANSWERS = "channel.answers"
STATE = "channel.state"
CLOSE = "channel.close"

FRAME_BYTES = 1 << 20
FRAME_PARTS = 4096
"""A frame is full when it holds so much; an item is never divided."""

ITEM_COST = 256
"""What an item costs beside its bytes, in bytes."""


class Op(IntEnum):
    """Operations, and what follows in the list."""

    PUT = 0
    """ticket, may wait, key, weights, where the items are"""
    GET = 1
    """ticket, may wait, key, number or None, weight or None"""
    GIVE_UP = 2
    """ticket, how it is to end"""
    ACKNOWLEDGE = 3
    """ticket (0: no outcome), leases"""
    GIVE_BACK = 4
    """ticket (0: no outcome), leases"""


MORE = -1
"""Instead of an end: what follows is a part of the outcome. A get's are followed by leases and where the items are."""


Content = Sequence[Part] | Shared
"""An item as it lies in a process: its parts, or the memory that holds them."""


def n_bytes(content: Content) -> int:
    return sum(content.lengths) if isinstance(content, Shared) else sum(map(len, content))


def portions(items: Sequence[Content]) -> Iterator[slice]:
    """Stretches of items that fill a frame each."""
    begin = size = n_parts = 0
    for i, content in enumerate(items):
        if not isinstance(content, Shared):
            size += n_bytes(content)
            n_parts += len(content)
        if size >= FRAME_BYTES or n_parts >= FRAME_PARTS or i + 1 - begin >= FRAME_PARTS:
            yield slice(begin, i + 1)
            begin, size, n_parts = i + 1, 0, 0
    if begin < len(items):
        yield slice(begin, len(items))


def declared(items: Sequence[Content]) -> tuple[list[int | Ref], list[Part]]:
    """What stands for items in a head (the number of parts, or where the memory is), and their parts."""
    places: list[int | Ref] = []
    parts: list[Part] = []
    for content in items:
        if isinstance(content, Shared):
            places.append(content.ref())
        else:
            places.append(len(content))
            parts += content
    return places, parts


def received(places: Sequence[int | Ref], parts: Iterator[Part]) -> list[Content]:
    """The items again, with their parts taken from those of the frame."""
    return [
        (next(parts),) if at == 1 else tuple(islice(parts, at)) if isinstance(at, int) else Shared.opened(at)
        for at in places
    ]

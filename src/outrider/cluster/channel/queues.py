"""The state of one channel, without clocks, threads or sockets: what it holds, who waits, what is out on lease.

Invariants:
- Items of one key leave in the order in which they came; one that comes back from a lease stands where it stood.
- A new item enters only while the bounds have room, or for a reader who waits for it, so that a batch larger than the
  channel is filled all the same. An item larger than the bound in bytes enters an empty channel. Puts that wait enter
  in the order in which they came. What is out on lease takes no room.
- An item is in one place: waiting to enter, in the queue of its key, or leased to one reader. It is gone when its lease
  is acknowledged, when its channel drops it, or when its producer goes or gives up before it has entered.
- Readers of a key are served in the order in which they came. A reader who is gone holds nothing.
- A request ends once. A closed channel ends a reader when nothing is left for it and nobody may give anything back.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import IntEnum

from outrider.cluster.channel.frames import Content, n_bytes

Key = str


class End(IntEnum):
    """How a request ended."""

    DONE = 0
    CLOSED = 1
    FULL = 2
    EMPTY = 3
    LATE = 4
    UNREADABLE = 5
    """The memory of an item could not be opened; it has to be sent."""


class Item:
    """What a producer put, and nobody looks into here. Its number is its place in the order of arrival."""

    __slots__ = ("content", "key", "n_bytes", "number", "put", "weight")

    def __init__(self, key: Key, content: Content, weight: float = 0) -> None:
        self.key = key
        self.content = content
        self.weight = weight
        self.n_bytes = n_bytes(content)
        self.number = 0
        self.put: Put | None = None


class Put:
    """A request to take items in. `n_left` of them have not entered yet."""

    __slots__ = ("end", "items", "n_left", "owner", "ticket")

    def __init__(self, owner: Hashable, ticket: int, items: Sequence[Item]) -> None:
        self.owner = owner
        self.ticket = ticket
        self.items = items
        self.n_left = len(items)
        self.end: End | None = None


class Get:
    """A request for up to `n` items of one key, or for as many as weigh up to `weight`; one at least."""

    __slots__ = ("end", "items", "key", "leases", "n", "owner", "ticket", "weight")

    def __init__(self, owner: Hashable, ticket: int, key: Key, n: int | None = 1, weight: float | None = None) -> None:
        self.owner = owner
        self.ticket = ticket
        self.key = key
        self.n = n
        self.weight = weight
        self.items: list[Item] = []
        self.leases: list[int] = []
        self.end: End | None = None


class _Lane:
    """What concerns one key."""

    __slots__ = ("items", "outside", "readers", "weight")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.weight: float = 0
        self.readers: OrderedDict[Get, None] = OrderedDict()
        self.outside: OrderedDict[int, Item] = OrderedDict()

    def satisfies(self, get: Get) -> bool:
        if get.n is not None and len(self.items) >= get.n:
            return True
        return get.weight is not None and bool(self.items) and self.weight >= get.weight


class _Party:
    """What one process has going on here."""

    __slots__ = ("gets", "leases", "puts")

    def __init__(self) -> None:
        self.gets: dict[int, Get] = {}
        self.puts: dict[int, Put] = {}
        self.leases: dict[int, Item] = {}


class Queues:
    """One channel. Requests that have ended are gathered in `ended`, in order, for the caller to take away."""

    def __init__(self, maxsize: int = 0, max_bytes: int = 0) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.is_closed = False
        self.ended: list[Put | Get] = []
        self._drops = False
        self._n_items = 0
        self._n_bytes = 0
        self._lanes: dict[Key, _Lane] = {}
        self._outside: OrderedDict[int, Item] = OrderedDict()
        self._parties: dict[Hashable, _Party] = {}
        self._last_number = 0
        self._last_lease = 0
        self._counts = dict.fromkeys(("put", "acknowledged", "given_back", "dropped"), 0)

    def put(self, put: Put, *, may_wait: bool = True) -> None:
        if self.is_closed:
            self._finish(put, End.CLOSED)
            return
        self._party(put.owner).puts[put.ticket] = put
        for item in put.items:
            self._last_number += 1
            item.number = self._last_number
            item.put = put
            lane = self._lane(item.key)
            if not self._outside and self._has_room(item):
                self._enter(lane, item)
            else:
                self._outside[item.number] = lane.outside[item.number] = item
            if lane.readers:
                self._serve(item.key, lane)
        self._admit()
        if not put.items:
            self._finish(put, End.DONE)
        elif not may_wait and put.end is None:
            self.give_up(put.owner, put.ticket, End.FULL)

    def get(self, get: Get, *, may_wait: bool = True) -> None:
        lane = self._lane(get.key)
        self._party(get.owner).gets[get.ticket] = get
        lane.readers[get] = None
        self._serve(get.key, lane)
        if not may_wait and get.end is None:
            self.give_up(get.owner, get.ticket, End.EMPTY)
        self._admit()

    def give_up(self, owner: Hashable, ticket: int, end: End) -> None:
        """End a request that waits. `DONE`: a reader takes what there is for it, which may be nothing."""
        party = self._parties.get(owner)
        if party is None:
            return
        if (put := party.puts.get(ticket)) is not None:
            self._withdraw(put)
            self._finish(put, end)
            self._admit()
        elif (get := party.gets.get(ticket)) is not None:
            lane = self._lanes[get.key]
            is_first = next(iter(lane.readers)) is get
            del lane.readers[get]
            if end is End.DONE and is_first:
                self._take(lane, get)
            self._finish(get, end)
            self._serve(get.key, lane)
            self._admit()

    def acknowledge(self, owner: Hashable, leases: Iterable[int]) -> int:
        """How many of these leases were still held; their items are gone for good."""
        items = self._end_leases(owner, leases)
        self._counts["acknowledged"] += len(items)
        self._look_again(items)
        return len(items)

    def give_back(self, owner: Hashable, leases: Iterable[int]) -> int:
        """How many of these leases were still held; their items stand in their places again."""
        items = self._end_leases(owner, leases)
        self._restore(items)
        self._admit()
        return len(items)

    def leave(self, owner: Hashable) -> None:
        """A process is gone: what it asked ends unanswered, and what it held comes back."""
        party = self._parties.pop(owner, None)
        if party is None:
            return
        for put in party.puts.values():
            self._withdraw(put)
        keys = {get.key for get in party.gets.values()}
        for get in party.gets.values():
            del self._lanes[get.key].readers[get]
        self._restore(list(party.leases.values()))
        for key in keys:
            if (lane := self._lanes.get(key)) is not None:
                self._serve(key, lane)
        self._admit()

    def close(self, *, drain: bool = True) -> None:
        """Take nothing in any more. Without `drain`, drop what is here, and what comes back later too."""
        self.is_closed = True
        for put in [put for party in self._parties.values() for put in party.puts.values()]:
            self._withdraw(put)
            self._finish(put, End.CLOSED)
        if not drain:
            self._drops = True
            for lane in self._lanes.values():
                self._drop(lane.items)
                lane.items.clear()
                lane.weight = 0
            self._n_items = self._n_bytes = 0
        for key, lane in list(self._lanes.items()):
            self._serve(key, lane)

    def size(self, key: Key | None = None) -> int:
        """Items that a reader could have now: of one key, or of all."""
        if key is None:
            return self._n_items
        return len(self._lanes[key].items) if key in self._lanes else 0

    def is_full(self) -> bool:
        """Whether a further item would have to wait."""
        return bool(self._outside) or not self._has_room(None)

    def counts(self) -> dict[str, int]:
        parties = self._parties.values()
        return {
            **self._counts,
            "items": self._n_items,
            "bytes": self._n_bytes,
            "leased": sum(len(party.leases) for party in parties),
            "waiting_gets": sum(len(party.gets) for party in parties),
            "waiting_puts": sum(len(party.puts) for party in parties),
            "keys": len(self._lanes),
        }

    def _party(self, owner: Hashable) -> _Party:
        if (party := self._parties.get(owner)) is None:
            party = self._parties[owner] = _Party()
        return party

    def _lane(self, key: Key) -> _Lane:
        if (lane := self._lanes.get(key)) is None:
            lane = self._lanes[key] = _Lane()
        return lane

    def _has_room(self, item: Item | None) -> bool:
        if self.maxsize and self._n_items >= self.maxsize:
            return False
        wanted = item.n_bytes if item is not None else 1
        return not self.max_bytes or not self._n_bytes or self._n_bytes + wanted <= self.max_bytes

    def _enter(self, lane: _Lane, item: Item) -> None:
        self._store(lane, item)
        lane.items.append(item)
        self._counts["put"] += 1
        put, item.put = item.put, None
        assert put is not None
        put.n_left -= 1
        if put.n_left == 0:
            self._finish(put, End.DONE)

    def _store(self, lane: _Lane, item: Item) -> None:
        lane.weight += item.weight
        self._n_items += 1
        self._n_bytes += item.n_bytes

    def _admit(self) -> None:
        """Let in what waits outside, as far as there is room."""
        while self._outside:
            item = next(iter(self._outside.values()))
            if not self._has_room(item):
                return
            lane = self._lanes[item.key]
            self._let_in(lane)
            self._serve(item.key, lane)

    def _let_in(self, lane: _Lane) -> None:
        number, item = lane.outside.popitem(last=False)
        del self._outside[number]
        self._enter(lane, item)

    def _serve(self, key: Key, lane: _Lane) -> None:
        """Hand out what the readers of a key can have, and let in what the first of them still lacks."""
        while lane.readers:
            get = next(iter(lane.readers))
            if not lane.satisfies(get):
                if lane.outside:
                    self._let_in(lane)
                    continue
                if not self.is_closed or (not lane.items and self._may_come_back(key, lane)):
                    return
            del lane.readers[get]
            self._take(lane, get)
            self._finish(get, End.DONE if get.items else End.CLOSED)
        if not lane.items and not lane.outside:
            self._lanes.pop(key, None)

    def _take(self, lane: _Lane, get: Get) -> None:
        leases = self._party(get.owner).leases
        weight: float = 0
        while lane.items and (get.n is None or len(get.items) < get.n):
            item = lane.items[0]
            weight += item.weight
            if get.weight is not None and get.items and weight > get.weight:
                break
            lane.items.popleft()
            lane.weight = lane.weight - item.weight if lane.items else 0
            self._n_items -= 1
            self._n_bytes -= item.n_bytes
            self._last_lease += 1
            leases[self._last_lease] = item
            get.items.append(item)
            get.leases.append(self._last_lease)

    def _finish(self, request: Put | Get, end: End) -> None:
        request.end = end
        if (party := self._parties.get(request.owner)) is not None:
            (party.puts if isinstance(request, Put) else party.gets).pop(request.ticket, None)
        self.ended.append(request)

    def _withdraw(self, put: Put) -> None:
        """Take away those of its items that have not entered."""
        for item in put.items:
            if item.put is not None and self._outside.pop(item.number, None) is not None:
                lane = self._lanes[item.key]
                del lane.outside[item.number]
                if not (lane.items or lane.readers or lane.outside):
                    del self._lanes[item.key]

    def _end_leases(self, owner: Hashable, leases: Iterable[int]) -> list[Item]:
        party = self._parties.get(owner)
        if party is None:
            return []
        return [item for lease in leases if (item := party.leases.pop(lease, None)) is not None]

    def _restore(self, items: Collection[Item]) -> None:
        """Put items back among those of their keys, where their numbers say."""
        if self._drops:
            self._drop(items)
            self._look_again(items)
            return
        self._counts["given_back"] += len(items)
        for key in {item.key for item in items}:
            lane = self._lane(key)
            returned = [item for item in items if item.key == key]
            last = max(item.number for item in returned)
            earlier: list[Item] = []
            while lane.items and lane.items[0].number < last:
                earlier.append(lane.items.popleft())
            lane.items.extendleft(sorted(earlier + returned, key=lambda item: -item.number))
            for item in returned:
                self._store(lane, item)
            self._serve(key, lane)

    def _drop(self, items: Collection[Item]) -> None:
        self._counts["dropped"] += len(items)

    def _may_come_back(self, key: Key, lane: _Lane) -> bool:
        """Whether an item is leased to someone who does not wait for more of them here."""
        waiting = {get.owner for get in lane.readers}
        return any(
            item.key == key
            for owner, party in self._parties.items()
            if owner not in waiting
            for item in party.leases.values()
        )

    def _look_again(self, items: Iterable[Item]) -> None:
        """A closed channel may have nothing left for those who wait, now that these are gone."""
        if self.is_closed:
            for key in {item.key for item in items}:
                if (lane := self._lanes.get(key)) is not None:
                    self._serve(key, lane)

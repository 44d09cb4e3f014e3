"""Whatever happens to a channel, no item is lost, doubled or out of order, and nobody waits who need not."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outrider.cluster.channel.queues import End, Get, Item, Put, Queues
from soaking import examples

OWNERS = st.sampled_from(["one", "two", "three"])
KEYS = st.sampled_from(["a", "b"])


class Channel(RuleBasedStateMachine):
    """Follows every item through the outcomes of requests alone, and compares with what the channel counts."""

    @initialize(maxsize=st.integers(0, 4), max_bytes=st.sampled_from([0, 3, 8]))
    def begin(self, maxsize, max_bytes):
        self.queues = Queues(maxsize, max_bytes)
        self.requests: dict[int, Put | Get] = {}
        self.held: dict[int, tuple[str, Item]] = {}
        self.n_gone = 0
        self.n_tickets = 0
        self.first_time: dict[tuple[str, str], int] = {}
        self.given_back: set[int] = set()

    def ticket(self) -> int:
        self.n_tickets += 1
        return self.n_tickets

    def collect(self):
        ended, self.queues.ended = self.queues.ended, []
        for request in ended:
            assert self.requests.pop(request.ticket) is request, "a request ended twice"
            if isinstance(request, Get):
                self.receive(request)

    def receive(self, get: Get):
        for lease, item in zip(get.leases, get.items, strict=True):
            assert item.key == get.key
            assert item.number not in {other.number for _, other in self.held.values()}, "in two places"
            self.held[lease] = (get.owner, item)
            if item.number not in self.given_back:
                producer = (str(item.content[1], "ascii"), item.key)
                assert self.first_time.get(producer, 0) < item.number, "overtaken"
                self.first_time[producer] = item.number
        if get.weight is not None and len(get.items) > 1:
            assert sum(item.weight for item in get.items) <= get.weight

    @rule(owner=OWNERS, keys=st.lists(KEYS, min_size=1, max_size=3), size=st.integers(1, 5), may_wait=st.booleans())
    def put(self, owner, keys, size, may_wait):
        keys = keys if may_wait else keys[:1]
        items = [Item(key, (b"x" * (size - 1), owner.encode()), size) for key in keys]
        before = self.queues.size()
        put = Put(owner, self.ticket(), items)
        self.requests[put.ticket] = put
        had_readers = self.queues.counts()["waiting_gets"]
        self.queues.put(put, may_wait=may_wait)
        assert may_wait or put.end is not None
        if self.queues.maxsize and not had_readers:
            assert self.queues.size() <= max(before, self.queues.maxsize)

    @rule(owner=OWNERS, key=KEYS, n=st.integers(1, 6), weight=st.none() | st.integers(1, 8), may_wait=st.booleans())
    def get(self, owner, key, n, weight, may_wait):
        get = Get(owner, self.ticket(), key, None if weight else n, weight)
        self.requests[get.ticket] = get
        self.queues.get(get, may_wait=may_wait)
        assert may_wait or get.end is not None

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), end=st.sampled_from([End.LATE, End.DONE]))
    def give_up(self, data, end):
        request = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        self.queues.give_up(request.owner, request.ticket, end if isinstance(request, Get) else End.LATE)
        assert request.end is not None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), gives_back=st.booleans())
    def settle(self, data, gives_back):
        lease = data.draw(st.sampled_from(sorted(self.held)))
        owner, item = self.held.pop(lease)
        if gives_back:
            self.given_back.add(item.number)
            assert self.queues.give_back(owner, [lease]) == 1
        else:
            self.n_gone += 1
            assert self.queues.acknowledge(owner, [lease]) == 1

    @rule(owner=OWNERS)
    def leave(self, owner):
        self.collect()
        self.given_back |= {item.number for holder, item in self.held.values() if holder == owner}
        self.held = {lease: held for lease, held in self.held.items() if held[0] != owner}
        self.requests = {n: request for n, request in self.requests.items() if request.owner != owner}
        self.queues.leave(owner)

    @precondition(lambda self: self.n_tickets > 12)
    @rule(drain=st.booleans())
    def close(self, drain):
        self.queues.close(drain=drain)

    @invariant()
    def nothing_is_lost_and_nobody_waits_in_vain(self):
        self.collect()
        counts = self.queues.counts()
        assert counts["put"] == counts["items"] + len(self.held) + self.n_gone + counts["dropped"]
        assert counts["leased"] == len(self.held)
        assert counts["waiting_gets"] + counts["waiting_puts"] == len(self.requests)
        n_bytes = 0
        for key, lane in self.queues._lanes.items():
            assert lane.items or lane.readers or lane.outside, f"key {key} is kept for nothing"
            numbers = [item.number for item in [*lane.items, *lane.outside.values()]]
            assert numbers == sorted(numbers)
            assert lane.weight == sum(item.weight for item in lane.items)
            n_bytes += sum(item.n_bytes for item in lane.items)
            for get in list(lane.readers)[:1]:
                assert not lane.satisfies(get)
                assert not lane.outside
                assert not (self.queues.is_closed and lane.items)
        assert counts["bytes"] == n_bytes
        for item in list(self.queues._outside.values())[:1]:
            assert not self.queues._has_room(item)


TestChannel = Channel.TestCase
TestChannel.settings = settings(max_examples=examples(60), stateful_step_count=40)

"""One channel's state: order, bounds, batches, leases and closing."""

import pytest

from outrider.cluster.channel.queues import End, Get, Item, Put, Queues


class Desk:
    """Speaks to a channel in few words: values instead of parts, and outcomes instead of requests."""

    def __init__(self, maxsize: int = 0, max_bytes: int = 0) -> None:
        self.queues = Queues(maxsize, max_bytes)
        self.n_tickets = 0

    def put(self, *values: str, owner="p", key="k", weight=0, may_wait=True) -> Put:
        self.n_tickets += 1
        put = Put(owner, self.n_tickets, [Item(key, (value.encode(),), weight) for value in values])
        self.queues.put(put, may_wait=may_wait)
        return put

    def get(self, n=1, *, weight=None, owner="c", key="k", may_wait=True) -> Get:
        self.n_tickets += 1
        get = Get(owner, self.n_tickets, key, n, weight)
        self.queues.get(get, may_wait=may_wait)
        return get


def had(get: Get) -> list[str]:
    assert get.end is End.DONE, get.end
    return [bytes(item.content[0]).decode() for item in get.items]


def test_items_of_a_key_leave_in_the_order_in_which_they_came():
    desk = Desk()
    desk.put("a")
    desk.put("b", "c")
    desk.put("x", key="other")
    assert [had(desk.get()), had(desk.get(2)), had(desk.get(key="other"))] == [["a"], ["b", "c"], ["x"]]


def test_readers_are_served_in_the_order_in_which_they_came():
    desk = Desk()
    first, second = desk.get(2), desk.get()
    desk.put("a")
    assert (first.end, second.end) == (None, None)
    desk.put("b", "c")
    assert (had(first), had(second)) == (["a", "b"], ["c"])


def test_puts_wait_for_room_in_the_order_in_which_they_came():
    desk = Desk(maxsize=2)
    inside, waiting, last = desk.put("a", "b"), desk.put("c"), desk.put("d")
    assert (inside.end, waiting.end, last.end) == (End.DONE, None, None)
    assert had(desk.get()) == ["a"]
    assert (waiting.end, last.end, desk.queues.size()) == (End.DONE, None, 2)


def test_a_put_that_may_not_wait_never_overtakes_one_that_waits():
    desk = Desk(max_bytes=4)
    desk.put("aaa")
    waiting = desk.put("bbb")
    assert desk.put("c", may_wait=False).end is End.FULL
    assert desk.queues.is_full()
    assert waiting.end is None


def test_the_bound_in_bytes_lets_a_larger_item_into_an_empty_channel():
    desk = Desk(max_bytes=4)
    assert desk.put("a" * 10).end is End.DONE
    assert desk.put("b", may_wait=False).end is End.FULL
    assert had(desk.get()) == ["a" * 10]
    assert desk.put("b").end is End.DONE


def test_a_batch_larger_than_the_channel_is_filled():
    desk = Desk(maxsize=2)
    batch = desk.get(4)
    assert desk.put(*"abcdef").n_left == 0
    assert had(batch) == list("abcd")


def test_a_reader_of_one_key_is_not_kept_waiting_by_a_channel_full_of_another():
    desk = Desk(maxsize=1)
    desk.put("a", key="busy")
    stuck, wanted = desk.put("b", key="busy"), desk.put("c", key="k")
    assert had(desk.get()) == ["c"]
    assert (stuck.end, wanted.end) == (None, End.DONE)


@pytest.mark.parametrize(
    ("weights", "wanted", "batches"),
    [
        ([2, 2, 2], 4, [2]),
        ([3, 3], 4, [1]),
        ([9, 1], 4, [1]),
        ([1, 1], 4, []),
        ([0, 0, 4, 0], 4, [4]),
    ],
)
def test_a_batch_by_weight_holds_what_weighs_up_to_it_and_an_oversize_item_alone(weights, wanted, batches):
    desk = Desk()
    for weight in weights:
        desk.put("x", weight=weight)
    batch = desk.get(None, weight=wanted)
    assert ([len(batch.items)] if batch.end is End.DONE else []) == batches


def test_a_reader_that_waited_long_enough_takes_what_there_is():
    desk = Desk()
    desk.put("a", "b")
    batch, empty = desk.get(5), desk.get(5, key="empty")
    for waiting in (batch, empty):
        desk.queues.give_up("c", waiting.ticket, End.DONE)
    assert (had(batch), had(empty)) == (["a", "b"], [])


def test_a_reader_behind_one_that_gives_up_is_served():
    desk = Desk()
    desk.put("a")
    greedy, modest = desk.get(5), desk.get()
    desk.queues.give_up("c", greedy.ticket, End.LATE)
    assert greedy.end is End.LATE
    assert had(modest) == ["a"]


def test_a_put_given_up_leaves_nothing_behind():
    desk = Desk(maxsize=1)
    desk.put("a")
    late = desk.put("b")
    desk.queues.give_up("p", late.ticket, End.LATE)
    assert (late.end, had(desk.get()), desk.queues.size()) == (End.LATE, ["a"], 0)


def test_a_small_put_behind_a_large_one_that_gives_up_enters():
    desk = Desk(max_bytes=4)
    desk.put("aa")
    large, small = desk.put("bbb"), desk.put("c")
    assert small.end is None
    desk.queues.give_up("p", large.ticket, End.LATE)
    assert (large.end, small.end) == (End.LATE, End.DONE)
    assert had(desk.get(2)) == ["aa", "c"]


def test_what_a_dead_reader_held_stands_in_front_again_in_its_order():
    desk = Desk()
    desk.put(*"abcd")
    desk.get(owner="dies")
    kept = desk.get(owner="lives")
    desk.get(owner="dies")
    desk.queues.leave("dies")
    assert desk.queues.give_back("lives", kept.leases) == 1
    assert had(desk.get(4)) == list("abcd")


def test_a_dead_reader_is_passed_over():
    desk = Desk()
    desk.get(owner="dies")
    survivor = desk.get(owner="lives")
    desk.queues.leave("dies")
    desk.put("a")
    assert had(survivor) == ["a"]


def test_a_dead_producer_takes_only_what_had_not_entered():
    desk = Desk(maxsize=1)
    desk.put("a", "b", owner="dies")
    other = desk.put("c", owner="lives")
    desk.queues.leave("dies")
    assert (had(desk.get()), other.end, had(desk.get())) == (["a"], End.DONE, ["c"])


def test_a_lease_ends_once():
    desk = Desk()
    desk.put("a")
    lease = desk.get().leases
    assert desk.queues.acknowledge("another", lease) == 0
    assert desk.queues.acknowledge("c", lease) == 1
    assert desk.queues.give_back("c", lease) == 0


def test_a_closed_channel_hands_out_what_is_left_and_then_ends_its_readers():
    desk = Desk(maxsize=2)
    desk.put("a", "b")
    waiting = desk.put("c")
    desk.queues.close()
    batch, after = desk.get(5), desk.get()
    assert (waiting.end, desk.put("d").end) == (End.CLOSED, End.CLOSED)
    assert (had(batch), after.end) == (["a", "b"], End.CLOSED)


def test_a_closed_channel_keeps_its_readers_while_another_may_give_something_back():
    desk = Desk()
    desk.put("a")
    desk.get(owner="works")
    reader = desk.get(owner="waits")
    desk.queues.close()
    assert reader.end is None
    desk.queues.leave("works")
    assert had(reader) == ["a"]
    assert desk.get(owner="waits").end is End.CLOSED  # the only holder waits itself: nothing will come back


def test_the_last_acknowledgement_ends_the_readers_of_a_closed_channel():
    desk = Desk()
    desk.put("a")
    lease = desk.get(owner="works").leases
    reader = desk.get(owner="waits")
    desk.queues.close()
    desk.queues.acknowledge("works", lease)
    assert reader.end is End.CLOSED


def test_closing_without_draining_drops_all_there_is_and_what_comes_back():
    desk = Desk()
    desk.put(*"abc")
    lease = desk.get().leases
    desk.queues.close(drain=False)
    desk.queues.give_back("c", lease)
    assert (desk.get().end, desk.queues.counts()["dropped"]) == (End.CLOSED, 3)


def test_a_key_that_nobody_uses_takes_no_memory():
    desk = Desk()
    for n in range(50):
        desk.put("x", key=f"key {n}")
        desk.queues.acknowledge("c", desk.get(key=f"key {n}").leases)
        desk.get(key=f"empty {n}", may_wait=False)
    assert desk.queues.counts()["keys"] == 0

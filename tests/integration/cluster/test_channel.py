"""What users can do with a channel, over real connections."""

import asyncio
import threading

import numpy as np
import pytest

from channel_world import channel_here
from leaks import no_leaks
from outrider.cluster.channel.shared import UnreadableItem
from outrider.core.errors import (
    CallLate,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ClusterError,
    InvalidInput,
)
from outrider.testing import eventually
from promptly import within


@pytest.fixture
def channel():
    with channel_here() as made:
        yield made


class Thing:
    def __init__(self, value):
        self.value = value


def test_any_object_comes_out_as_it_went_in(channel):
    array = np.arange(300_000, dtype=np.float32)
    for item in ({"a": [1, None]}, Thing("x"), array, lambda: 7, [np.zeros(2)] * 5000):
        channel.put(item)
    first, thing, copy, function, arrays = channel.get_batch(5)
    assert (first, thing.value, function(), len(arrays)) == ({"a": [1, None]}, "x", 7, 5000)
    copy += 1  # it is the reader's own
    assert (copy == array + 1).all()


def test_thousands_of_items_go_in_one_call_each_way(channel):
    channel.put_many(range(10_000))
    assert channel.get_batch(10_000) == list(range(10_000))


def test_items_put_one_after_the_other_without_waiting_keep_their_order(channel):
    puts = [channel.put(n, async_op=True) for n in range(3000)]
    gets = [channel.get(async_op=True) for _ in range(3000)]
    assert [get.wait(30) for get in gets] == list(range(3000))
    assert all(put.wait(30) is None for put in puts)


def test_a_put_that_may_not_wait_finds_a_full_channel_at_once():
    with channel_here(maxsize=1) as channel:
        channel.put_nowait("a")
        assert channel.full()
        with within(1), pytest.raises(ChannelFull, match="'work' is full"):
            channel.put_nowait("b")
        with within(1), pytest.raises(ChannelEmpty, match="key 'other'"):
            channel.get_nowait("other")
        assert channel.get_nowait() == "a"
        assert channel.empty()


def test_a_put_waits_for_room_and_its_deadline_says_how_much_has_entered():
    with channel_here(maxsize=2) as channel:
        with pytest.raises(CallLate, match=r"channel 'work' had no room within 0.05 s: 2 of 3 items .* entered"):
            channel.put_many("abc", timeout=0.05)
        waiting = channel.put("d", async_op=True)
        assert channel.get_batch(3) == ["a", "b", "d"]
        waiting.wait(30)


def test_the_channel_keeps_no_more_of_what_waits_than_a_window():
    with channel_here(maxsize=1) as channel:
        large = b"x" * (3 << 20)
        puts = [channel.put((n, large), async_op=True) for n in range(8)]
        asyncio.run(eventually(lambda: _holds(channel, waiting_puts=2)))
        with pytest.raises(ChannelFull):
            channel.put_nowait("later")
        assert [channel.get()[0] for _ in range(8)] == list(range(8))
        assert all(put.wait(30) is None for put in puts)


def test_a_get_raises_at_its_deadline_and_takes_nothing(channel):
    with pytest.raises(CallLate, match=r"channel 'work': nothing came of key 'default' within 0.05 s"):
        channel.get(timeout=0.05)
    channel.put("a")
    assert channel.qsize() == 1


def test_a_batch_is_what_there_is_after_max_wait(channel):
    channel.put_many("ab")
    assert channel.get_batch(5, max_wait=0.05) == ["a", "b"]
    assert channel.get_batch(weight=5, max_wait=0.0) == []
    with pytest.raises(CallLate):
        channel.get_batch(5, max_wait=10, timeout=0.05)


def test_an_oversize_item_at_the_head_comes_alone(channel):
    for weight in (9, 2, 2, 1):
        channel.put(weight, weight=weight)
    assert [channel.get_batch(weight=4), channel.get_batch(weight=4), channel.get()] == [[9], [2, 2], 1]


async def test_a_thousand_coroutines_wait_for_keys_of_their_own(channel):
    n_threads = threading.active_count()
    gets = [asyncio.create_task(_get(channel, f"key {n}")) for n in range(1000)]
    await eventually(lambda: _holds(channel, waiting_gets=1000))
    assert threading.active_count() <= n_threads + 1  # the one that asked for the counters
    for n in reversed(range(1000)):
        await channel.put(n, key=f"key {n}", async_op=True)
    async with asyncio.timeout(30):
        assert await asyncio.gather(*gets) == list(range(1000))


async def test_a_cancelled_get_leaves_the_item_to_the_next(channel):
    for _ in range(50):
        cancelled = asyncio.create_task(_get(channel))
        await asyncio.sleep(0)
        put = channel.put("a", async_op=True)
        cancelled.cancel()
        survivor = channel.get(async_op=True)
        await put
        async with asyncio.timeout(30):
            assert await survivor == "a"
    await eventually(lambda: _holds(channel, leased=0, items=0, waiting_gets=0))


async def test_what_has_come_for_a_handle_that_nobody_waits_for_goes_back(channel):
    handles = [channel.get(async_op=True)]
    await channel.put("a", async_op=True)
    await eventually(lambda: asyncio.to_thread(handles[0].done))
    assert channel.stats()["leased"] == 1
    handles.clear()
    async with asyncio.timeout(30):
        assert await channel.get(async_op=True) == "a"


def test_a_leased_item_is_gone_when_it_is_acknowledged_and_back_when_it_is_not(channel):
    channel.put_many("ab")
    with pytest.raises(ZeroDivisionError), channel.lease() as item:
        _fail_on(item, "a")
    assert channel.qsize() == 2
    with channel.lease() as item:
        assert item == "a"
        assert channel.stats()["leased"] == 1
    second = channel.lease(async_op=True).wait(30)
    assert second.item == "b"
    second.ack()
    with pytest.raises(ChannelError, match="ended before"):
        second.ack()
    assert channel.stats()["acknowledged"] == 2


def test_a_large_item_that_the_channel_cannot_open_is_sent_whole(channel, monkeypatch):
    monkeypatch.setattr("outrider.cluster.channel.shared.Shared.opened", _unreadable)
    for n in range(3):
        channel.put(np.full(1 << 20, n))
    assert [channel.get()[0] for _ in range(3)] == [0, 1, 2]


def test_a_large_item_that_its_reader_cannot_open_goes_back(channel, monkeypatch):
    channel.put(np.ones(1 << 20))
    with monkeypatch.context() as patch:
        patch.setattr("outrider.cluster.channel.shared.Shared.opened", _unreadable)
        with pytest.raises(ChannelError, match="cannot be opened"):
            channel.get()
    assert channel.get()[0] == 1


def test_a_closed_channel_is_read_to_its_end(channel):
    channel.put_many(range(3))
    waiting = channel.get("other", async_op=True)
    channel.close()
    assert channel.get_batch(10) == [0, 1, 2]
    for refused in (lambda: channel.put(4), channel.get, lambda: waiting.wait(30)):
        with pytest.raises(ChannelClosed, match="'work' is closed"):
            refused()


def test_closing_without_draining_drops_what_is_left(channel):
    channel.put_many(range(3))
    channel.close(drain=False)
    with pytest.raises(ChannelClosed):
        channel.get()


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda channel: channel.put(threading.Lock()), "a lock cannot be put on channel 'work'"),
        (lambda channel: channel.put(1, weight=-1), "not -1"),
        (lambda channel: channel.get(key=3), "is text, not 3"),
        (lambda channel: channel.get_batch(), "needs n of at least 1"),
        (lambda channel: channel.put_many([1, 2], weight=[1]), "2 items, but 1 weights"),
    ],
)
def test_misuse_is_refused_before_anything_is_sent(channel, misuse, says):
    with pytest.raises(InvalidInput, match=says):
        misuse(channel)
    assert channel.stats()["put"] == 0


def test_a_call_that_would_block_the_post_itself_is_refused(channel):
    async def on_the_loop():
        channel.get()

    with pytest.raises(ClusterError, match="async_op=True"):
        channel._post.run(on_the_loop(), timeout=30)


def test_an_interrupted_get_takes_nothing(channel, monkeypatch):
    monkeypatch.setattr("outrider.cluster.channel.client.Request.result", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        channel.get()
    monkeypatch.undo()
    channel.put("a")
    assert channel.qsize() == 1


async def test_nothing_is_left_behind():
    async with no_leaks():
        with channel_here() as channel:
            waiting = channel.get(async_op=True)
            await channel.put("a", async_op=True)
            await waiting


async def _get(channel, key="default"):
    return await channel.get(key, async_op=True)


async def _holds(channel, **counts):
    found = await asyncio.to_thread(channel.stats)
    return all(found[name] == count for name, count in counts.items())


def _unreadable(ref):
    raise UnreadableItem("the memory of an item cannot be opened")


def _fail_on(item, wanted):
    assert item == wanted
    raise ZeroDivisionError


def _interrupted(request, timeout=None):
    raise KeyboardInterrupt

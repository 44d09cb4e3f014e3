"""A channel in a store: what users can do with it, and what outlives whom."""

import asyncio
import base64
import os

import pytest

from leaks import no_leaks
from outrider.cluster.channel import Channel
from outrider.cluster.channel.durable import DurableChannel
from outrider.core.errors import CallLate, ChannelClosed, ChannelEmpty, ChannelError, InvalidInput
from outrider.store import open_store
from processes import line, program
from promptly import within


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/channels.db"


@pytest.fixture
def channel(url):
    with Channel.create("work", store=url) as made:
        yield made


def test_items_come_in_their_order_key_by_key(channel):
    channel.put({"a": 1})
    channel.put_many("bc", key="other")
    assert (channel.qsize(), channel.qsize("other")) == (1, 2)
    assert [channel.get(), channel.get("other"), channel.get_nowait("other")] == [{"a": 1}, "b", "c"]
    assert channel.empty()
    with pytest.raises(ChannelEmpty, match="key 'other'"):
        channel.get_nowait("other")


def test_batches_are_by_number_or_weight_and_an_oversize_item_comes_alone(channel):
    channel.put_many([9, 2, 2, 1], weight=[9, 2, 2, 1])
    assert [channel.get_batch(weight=4), channel.get_batch(weight=4)] == [[9], [2, 2]]
    assert channel.get_batch(5, max_wait=0.05) == [1]
    assert channel.get_batch(5, max_wait=0.0) == []


def test_a_deadline_takes_nothing(channel):
    with pytest.raises(CallLate, match="durable channel 'work': 0 items came"):
        channel.get(timeout=0.05)
    channel.put_many("ab")
    with pytest.raises(CallLate, match="2 items came"):
        channel.get_batch(3, timeout=0.05)
    assert channel.get_batch(2, timeout=30) == ["a", "b"]


def test_a_deadline_of_nothing_is_over_at_once(channel):
    with within(5), pytest.raises(CallLate, match="0 items came of key 'default' within 0 s"):
        channel.get(timeout=0)
    channel.put_many("ab")
    with within(5), pytest.raises(CallLate, match="2 items came"):
        channel.get_batch(3, timeout=0)
    assert channel.get_batch(3, max_wait=0, timeout=5) == ["a", "b"]
    channel.put("c")
    assert channel.get(timeout=0) == "c"


async def test_a_cancelled_get_takes_nothing(channel):
    cancelled = asyncio.create_task(_get(channel))
    await asyncio.sleep(0.02)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await channel.put("a", async_op=True)
    async with asyncio.timeout(30):
        assert await channel.get(async_op=True) == "a"


def test_a_leased_item_is_gone_when_acknowledged_and_back_when_given_back(channel):
    channel.put_many("ab")
    first = channel.lease()
    assert channel.qsize() == 1
    first.give_back()
    with pytest.raises(ChannelError, match="was over"):
        first.ack()
    with channel.lease() as item:
        assert item == "a"
    assert channel.get() == "b"


def test_a_closed_channel_is_read_to_its_end_by_everyone(channel, url):
    channel.put("a")
    with Channel.connect("work", store=url) as other:
        other.close()
        with pytest.raises(ChannelClosed):
            channel.put("b")
        assert channel.get() == "a"
        for one in (channel, other):
            with pytest.raises(ChannelClosed, match="nothing more to read"):
                one.get(timeout=30)


def test_closing_without_draining_drops_what_is_left(channel):
    channel.put_many("ab")
    channel.close(drain=False)
    with pytest.raises(ChannelClosed):
        channel.get(timeout=30)


def test_a_killed_reader_loses_nothing(channel, url):
    source = """
import sys
from outrider.cluster.channel import Channel
channel = Channel.connect("work", store=sys.argv[1])
print(channel.lease().item, flush=True)
channel.get("never")
"""
    channel.put_many("ab")
    with program(source, url) as reader:
        assert line(reader) == "a"
        reader.kill()
        reader.wait()
        with within(6):
            assert sorted(channel.get_batch(2, timeout=30)) == ["a", "b"]


def test_a_lease_is_kept_while_its_reader_lives(url):
    with DurableChannel("work", url, lease_seconds=0.4) as channel, DurableChannel("work", url) as other:
        channel.put("a")
        lease = channel.lease()
        assert other.get_batch(1, max_wait=1.2) == []
        lease.ack()
        assert other.get_batch(1, max_wait=0.0) == []


def test_what_was_put_is_there_after_all_processes_have_ended(url):
    with Channel.create("work", store=url) as channel:
        channel.put("a")
    with Channel.connect("work", store=url) as channel:
        assert channel.get(timeout=30) == "a"


def test_it_works_in_postgresql(postgres_url):
    with Channel.create("work", store=postgres_url) as channel:
        waiting = channel.get_batch(2, async_op=True)
        channel.put_many("ab")
        assert waiting.wait(30) == ["a", "b"]


def test_bounds_and_bad_urls_are_refused(url):
    with pytest.raises(InvalidInput, match="no bounds"):
        Channel.create("work", maxsize=1, store=url)
    with pytest.raises(InvalidInput, match="not a store URL"):
        Channel.create("work", store="redis://there")


class Thing:
    """Not plain data."""

    def __eq__(self, other):
        return isinstance(other, Thing)

    __hash__ = None


def test_only_plain_data_is_put_unless_pickles_are_allowed(channel, url):
    with pytest.raises(InvalidInput, match=r"a Thing cannot be put on durable channel 'work': .* allow_pickle=True"):
        channel.put(Thing())
    with DurableChannel("work", url, allow_pickle=True) as trusting:
        trusting.put_many([Thing(), "plain"])
        assert trusting.get_batch(2, timeout=30) == [Thing(), "plain"]


def test_a_pickle_in_the_store_is_not_loaded_and_not_lost(channel, url, tmp_path):
    """Whoever can write to the store puts a row there that would make a file in its reader."""
    evidence = tmp_path / "it ran"
    attack = base64.b64encode(b"cposix\nmkdir\n(V%s\ntR." % os.fsencode(evidence)).decode()

    async def put_into_the_store():
        async with open_store(url) as store:
            await store.enqueue_rollout(attack, tag="channel/work/default")

    asyncio.run(put_into_the_store())
    for read in (channel.get, channel.lease, lambda timeout: channel.get_batch(1, timeout=timeout)):
        with pytest.raises(ChannelError, match=r"item .* of durable channel 'work' is a pickle.*allow_pickle=True"):
            read(timeout=30)
    assert not evidence.exists()
    with DurableChannel("work", url, allow_pickle=True) as trusting:
        assert trusting.get(timeout=30) is None
    assert evidence.exists(), "that is what it would have done"


async def test_nothing_is_left_behind(url):
    async with no_leaks():
        with Channel.create("work", store=url) as channel:
            await channel.put("a", async_op=True)
            await channel.lease(async_op=True)


async def _get(channel):
    return await channel.get(async_op=True)

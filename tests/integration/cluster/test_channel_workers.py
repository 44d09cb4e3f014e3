"""Channels among the workers of a cluster: created, found by name, sent along, and lost with their process."""

import os
import signal
import sys
import threading

import cloudpickle
import pytest

from outrider.cluster.channel import Channel
from outrider.cluster.cluster import Cluster
from outrider.cluster.placement import NodePlacementStrategy
from outrider.cluster.worker import Worker
from outrider.core.errors import ChannelLost, InvalidInput, UnknownWorker

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Producer(Worker):
    def produce(self, channel, n):
        for i in range(n):
            channel.put((self._rank, i))

    def produce_by_name(self, name):
        self.connect_channel(name).put(self.get_name())

    def make(self, name):
        channel = self.create_channel(name, maxsize=2)
        channel.put("made by a worker")
        return channel


class Consumer(Worker):
    async def consume(self, channel, n):
        return [await channel.get(async_op=True, timeout=20) for _ in range(n)]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(local=True) as made:
        yield made


@pytest.fixture(scope="module")
def producers(cluster):
    with Producer.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="producers") as group:
        yield group


def test_items_of_each_producer_come_in_its_order(cluster, producers):
    channel = Channel.create("order", maxsize=10, cluster=cluster)
    with Consumer.create_group().launch(cluster, name="consumer") as consumers:
        consuming = consumers.consume(channel, 200)
        producers.produce(channel, 100).wait(20)
        (items,) = consuming.wait(20)
    for rank in (0, 1):
        assert [i for source, i in items if source == rank] == list(range(100))
    assert channel.stats()["acknowledged"] == 200
    channel.shutdown()


def test_a_channel_is_found_by_its_name_also_before_it_is_there(cluster, producers):
    waiting = producers.produce_by_name("named")
    channel = Channel.create("named", cluster=cluster)
    assert sorted(channel.get_batch(2, timeout=20)) == ["producers:0", "producers:1"]
    waiting.wait(20)
    with pytest.raises(InvalidInput, match="named"):
        Channel.create("named", cluster=cluster)
    channel.shutdown()
    with pytest.raises(ChannelLost, match="channel 'named' is gone"):
        Channel.connect("named", cluster=cluster)
    with pytest.raises(UnknownWorker, match="there is no channel 'nmaed'"):
        Channel.connect("nmaed", cluster=cluster)


def test_a_channel_that_a_worker_made_is_handed_to_the_driver(cluster, producers):
    (channel,) = producers.execute_on(0).make("gift").wait(20)
    assert channel.get(timeout=20) == "made by a worker"
    with pytest.raises(InvalidInput, match="was not created here"):
        channel.shutdown()


def test_the_death_of_its_worker_is_the_loss_of_the_channel(cluster):
    channel = Channel.create("doomed", cluster=cluster)
    waiting = channel.get(async_op=True)
    (info,) = channel._group.worker_info_list
    os.kill(info.pid, signal.SIGKILL)
    for lost in (lambda: waiting.wait(30), lambda: channel.put(1), lambda: Channel.connect("doomed", cluster=cluster)):
        with pytest.raises(ChannelLost, match="channel 'doomed' is gone"):
            lost()


def test_bounds_below_zero_are_refused(cluster):
    with pytest.raises(InvalidInput, match="maxsize and max_bytes"):
        Channel.create("negative", maxsize=-1, cluster=cluster)


def test_channels_work_among_threads_of_one_process():
    n_threads = threading.active_count()
    with Cluster(local=True, processes=False) as cluster:
        channel = Channel.create("near", cluster=cluster)
        with Producer.create_group().launch(cluster) as group:
            group.produce(channel, 3).wait(20)
        assert channel.get_batch(3) == [(0, 0), (0, 1), (0, 2)]
    assert threading.active_count() <= n_threads + 1

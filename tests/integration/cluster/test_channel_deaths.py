"""Processes killed and stopped around a channel: an error within five seconds, or none at all, and no item lost."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from channel_world import channel_process, opened, user_process
from outrider.cluster.channel import client
from outrider.core.errors import CallLate, ChannelLost
from outrider.testing import eventually
from processes import line, stop
from promptly import within

BOUND_SECONDS = 30.0


def die(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def counted(channel, **counts) -> None:
    """Wait until the channel counts so many."""

    async def holds() -> bool:
        found = await asyncio.to_thread(channel.stats)
        return all(found[name] == count for name, count in counts.items())

    asyncio.run(eventually(holds, within_seconds=BOUND_SECONDS))


def test_the_death_of_the_channel_is_told_to_all_who_wait_and_to_all_who_come_later():
    with channel_process(maxsize=1) as (process, endpoint), opened(endpoint) as channel:
        channel.put("a")
        put, get, lease = channel.put("b", async_op=True), channel.get("k", async_op=True), channel.lease()
        counted(channel, items=1, leased=1, waiting_gets=1)
        put.wait(BOUND_SECONDS)
        stuck = channel.put("c", async_op=True)
        counted(channel, waiting_puts=1)
        die(process)
        with within(5):
            waits = [stuck.wait, get.wait, channel.get, lambda: channel.put("d"), lease.ack, channel.qsize]
            for wait in (*waits, channel.get_nowait):
                with pytest.raises(ChannelLost, match="channel 'work' is gone"):
                    wait()


def test_the_death_of_the_channel_is_told_to_a_process_that_waits():
    source = """
try:
    print("waits", flush=True)
    channel.get()
except Exception as exc:
    print(type(exc).__name__, flush=True)
"""
    with channel_process() as (process, endpoint), opened(endpoint) as channel, user_process(endpoint, source) as user:
        assert line(user) == "waits"
        counted(channel, waiting_gets=1)
        die(process)
        with within(5):
            assert line(user) == "ChannelLost"


def test_a_consumer_killed_while_it_waits_is_passed_over():
    waits = "channel.get()"
    with channel_process() as (_, endpoint), opened(endpoint) as channel, user_process(endpoint, waits) as consumer:
        counted(channel, waiting_gets=1)
        survivor = channel.get(async_op=True)
        counted(channel, waiting_gets=2)
        die(consumer)
        with within(5):
            channel.put("a")
            assert survivor.wait(BOUND_SECONDS) == "a"


def test_what_a_killed_consumer_had_on_lease_goes_to_the_next_in_its_old_order():
    source = """
held = [channel.lease() for _ in range(3)]
held[1].ack()
print("holds", [lease.item for lease in held], flush=True)
channel.get("never")
"""
    with channel_process() as (_, endpoint), opened(endpoint) as channel:
        channel.put_many(range(5))
        with user_process(endpoint, source) as consumer:
            assert line(consumer) == "holds [0, 1, 2]"
            die(consumer)
        with within(5):
            assert channel.get_batch(4) == [0, 2, 3, 4]


def test_consumers_killed_at_random_lose_no_item():
    source = """
while True:
    lease = channel.lease()
    print(lease.item, flush=True)
    lease.ack()
    print("done", lease.item, flush=True)
"""
    n_items = 10_000  # more than one consumer can have before its output is read
    with channel_process() as (_, endpoint), opened(endpoint) as channel:
        channel.put_many(range(n_items))
        done: list[int] = []
        with user_process(endpoint, source) as first, user_process(endpoint, source) as second:
            for consumer in (first, second):
                for _ in range(50):
                    line(consumer)
            for consumer in (first, second):
                consumer.kill()
                words = [text.split() for text in consumer.stdout.read().splitlines()]
                done += [int(word[1]) for word in words if word[0] == "done" and len(word) == 2]
        counted(channel, leased=0)
        counts = channel.stats()
        rest = channel.get_batch(counts["items"])
        assert counts["acknowledged"] + len(rest) == n_items
        assert set(rest).isdisjoint(done)
        assert rest == sorted(set(rest))


def test_a_producer_killed_on_its_first_put_stops_nobody():
    source = "channel.put('from the dead')"
    with channel_process(maxsize=1) as (_, endpoint), opened(endpoint) as channel:
        channel.put("a")
        with user_process(endpoint, source) as producer:
            counted(channel, waiting_puts=1)
            die(producer)
        with within(5):
            counted(channel, waiting_puts=0)
            assert channel.get() == "a"
            channel.put("b")
            assert channel.get() == "b"
            counted(channel, items=0, waiting_puts=0, leased=0)


def test_what_a_producer_had_put_outlives_it():
    source = """
channel.put_many(range(3))
print("put", flush=True)
channel.get("never")
"""
    with channel_process() as (_, endpoint), opened(endpoint) as channel:
        with user_process(endpoint, source) as producer:
            assert line(producer) == "put"
            die(producer)
        assert channel.get_batch(3, timeout=BOUND_SECONDS) == [0, 1, 2]


@pytest.mark.parametrize("reader_is_far", [False, True])
def test_a_large_item_outlives_its_producer_and_a_reader_who_wrote_to_it(reader_is_far):
    puts = """
import numpy as np
channel.put(np.arange(1 << 20))
print("put", flush=True)
channel.get("never")
"""
    spoils = """
lease = channel.lease()
lease.item[:] = -1
print("written", flush=True)
channel.get("never")
"""
    with channel_process() as (_, endpoint), opened(endpoint, far=reader_is_far) as channel:
        with user_process(endpoint, puts) as producer:
            assert line(producer) == "put"
            die(producer)
        with user_process(endpoint, spoils) as reader:
            assert line(reader) == "written"
            die(reader)
        array = channel.get(timeout=BOUND_SECONDS)
        assert (array == np.arange(1 << 20)).all()
        array[0] = 7


def test_a_large_item_from_another_node_is_read_here():
    with channel_process() as (_, endpoint), opened(endpoint, far=True) as far, opened(endpoint) as near:
        far.put(np.arange(1 << 20))
        assert (near.get(timeout=BOUND_SECONDS) == np.arange(1 << 20)).all()


def test_the_memory_of_large_items_is_freed():
    with channel_process() as (process, endpoint), opened(endpoint) as channel:
        channel.qsize()
        before = _n_files(process.pid), _n_files(os.getpid())
        for _ in range(3):
            channel.put(np.ones(1 << 20))
            assert channel.get().sum() == 1 << 20
        channel.put(np.ones(1 << 20))
        channel.close(drain=False)
        assert (_n_files(process.pid), _n_files(os.getpid())) == before


def _n_files(pid: int) -> int:
    return sum(
        "outrider-item" in str(found.readlink()) for found in Path(f"/proc/{pid}/fd").iterdir() if found.exists()
    )


def test_a_producer_stopped_in_the_middle_of_an_item_keeps_nobody_waiting():
    source = """
import os, signal
from outrider.cluster.post import Link
Link.pause_writing = lambda link: os.kill(os.getpid(), signal.SIGSTOP)  # with a part of the item written
channel._open_line().is_near = False  # not through shared memory
channel.put(b"x" * (16 << 20))
"""
    with channel_process() as (_, endpoint), opened(endpoint) as channel, user_process(endpoint, source) as producer:
        os.waitid(os.P_PID, producer.pid, os.WSTOPPED)
        with within(5):
            for n in range(100):
                channel.put(n)
            assert channel.get_batch(100) == list(range(100))
        assert channel.qsize() == 0, "the item was whole before its producer was stopped"
        os.kill(producer.pid, signal.SIGCONT)
        assert len(channel.get(timeout=30)) == 16 << 20


def test_a_deadline_holds_though_the_channel_is_stopped(monkeypatch):
    monkeypatch.setattr(client, "GRACE_SECONDS", 0.2)
    with channel_process() as (process, endpoint), opened(endpoint) as channel:
        channel.put("a")
        stop(process.pid)
        with within(5), pytest.raises(CallLate, match="nothing came"):
            channel.get(timeout=0.1)
        os.kill(process.pid, signal.SIGCONT)
        assert channel.get(timeout=BOUND_SECONDS) == "a"

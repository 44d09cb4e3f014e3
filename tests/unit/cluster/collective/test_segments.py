"""Shared memory of a sender: lent, given back and used again; never while somebody reads it."""

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from outrider.cluster.collective.segments import Maps, Segment, SegmentPool, Steps, offsets_of, watched
from outrider.cluster.post import Link
from outrider.testing import eventually

MB = 1 << 20


class Wire:
    """As much of a link as memory needs."""

    def __init__(self) -> None:
        self.on_lost = []
        self.told = []

    def tell(self, service: str, head: object) -> None:
        self.told.append((service, head))


@pytest.fixture
def link() -> Link:
    return Wire()


def test_parts_lie_behind_each_other_at_round_places():
    assert offsets_of([1, 64, 0, 65, 3]) == ([0, 64, 128, 128, 256], 320)


def test_what_is_written_is_read_elsewhere_cold_and_warm(link):
    segment = Segment(1, MB)
    memory = Maps().open(link, segment.ref)
    for is_warm in (False, True, True):
        segment.is_warm = is_warm
        content = os.urandom(1000)
        segment.write(64, memoryview(content))
        assert memory[64:1064] == content


def test_content_outlives_its_segment(link):
    segment = Segment(1, MB)
    segment.write(0, memoryview(b"content"))
    memory = Maps().open(link, segment.ref)
    fd = segment.ref.fd
    del segment
    assert not Path(f"/proc/self/fd/{fd}").exists()
    assert memory[:7] == b"content"


def test_a_file_that_is_another_one_by_now_is_not_opened(link):
    segment = Segment(1, MB)
    other = Segment(2, MB)
    assert Maps().open(link, replace(segment.ref, fd=other.ref.fd)) is None
    assert Maps().open(link, replace(segment.ref, fd=1 << 20)) is None
    assert Maps().open(link, replace(segment.ref, pid=1 << 30)) is None


def test_a_segment_is_used_again_when_it_was_given_back_and_fits(link):
    pool = SegmentPool()
    segment = pool.take(3 * MB)
    pool.lend(segment, link)
    assert pool.take(3 * MB) is not segment
    pool.take_back(segment.ref.number)
    pool.take_back(segment.ref.number)
    assert pool.take(MB) is not segment
    assert pool.take(4 * MB) is not segment
    assert pool.take(2 * MB) is segment
    assert pool.n_free_bytes == 0


def test_memory_that_is_kept_is_bounded_and_readers_hear_what_is_dropped(link):
    pool = SegmentPool(warm_bytes=5 * MB)
    lent = [pool.take(2 * MB) for _ in range(3)]
    for segment in lent:
        pool.lend(segment, link)
        pool.take_back(segment.ref.number)
    assert pool.n_free_bytes == 4 * MB
    assert link.told == [("mail.forget", lent[0].ref.number)]


def test_another_process_follows_the_steps_of_a_copy():
    segment = Segment(1, MB)
    segment.steps.add()
    segment.steps.reset()
    memory = Maps().open(object(), segment.ref)
    assert memory is not None
    seen = Steps(memory, segment.ref.n_bytes)
    assert seen.n_taken() == 0
    child = os.fork()
    if not child:
        for _ in range(3):
            segment.steps.add()
        os._exit(0)
    os.waitpid(child, 0)
    assert (seen.n_taken(), seen.n_taken()) == (3, 3)


async def test_the_last_one_is_kept_for_a_while_though_it_is_larger(link):
    pool = SegmentPool(warm_bytes=5 * MB, keep_seconds=0.05)
    for n_bytes in (2 * MB, 8 * MB, 8 * MB):
        segment = pool.take(n_bytes)
        pool.lend(segment, link)
        pool.take_back(segment.ref.number)
        assert pool.n_free_bytes == n_bytes
    assert len(link.told) == 1

    async def is_dropped():
        return pool.n_free_bytes == 0

    await eventually(is_dropped)
    assert link.told[1:] == [("mail.forget", segment.ref.number)]


def test_what_a_lost_reader_had_is_not_used_again(link):
    pool = SegmentPool()
    segment = pool.take(MB)
    pool.lend(segment, link)
    for callback in link.on_lost:
        callback()
    pool.take_back(segment.ref.number)
    assert (pool.n_lent, pool.n_free_bytes) == (0, 0)


def test_memory_is_unused_when_the_last_that_was_made_of_it_is_gone():
    ends = []
    view = watched(mmap.mmap(-1, MB), 1000, lambda: ends.append("end"))
    array = np.frombuffer(view[10:20], np.uint8)
    rest = array[5:]
    del view, array
    gc.collect()
    assert not ends
    rest[:] = 1
    del rest
    gc.collect()
    assert ends == ["end"]

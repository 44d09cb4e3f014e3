import asyncio
import os
import resource
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from disks import make_read_only, small_disk
from outrider.core.clock import SystemClock
from outrider.store.bell import Topic
from outrider.store.fifo_bell import FifoBell
from processes import line, program

LISTENER = """
import asyncio, sys
from pathlib import Path
from outrider.core.clock import SystemClock
from outrider.store.bell import Topic
from outrider.store.fifo_bell import FifoBell

async def main():
    bell = FifoBell(SystemClock(), Path(sys.argv[1]))
    with bell.listening(Topic.QUEUE) as listener:
        print("listening", flush=True)
        await listener.wait(30)
        print("rung", flush=True)

asyncio.run(main())
"""


def pipes(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_ring_wakes_another_process(tmp_path: Path):
    bell = FifoBell(SystemClock(), tmp_path / "bells")
    with program(LISTENER, str(tmp_path / "bells")) as other:
        assert line(other) == "listening"
        bell.ring_others([Topic.ENDED])
        bell.ring_others([Topic.QUEUE])
        assert line(other) == "rung"
        assert other.wait(30) == 0
    assert pipes(tmp_path / "bells") == []


async def test_the_pipe_of_a_killed_process_is_removed_by_the_next_ring(tmp_path: Path):
    bell = FifoBell(SystemClock(), tmp_path)
    with program(LISTENER, str(tmp_path)) as other:
        assert line(other) == "listening"
    (stale,) = pipes(tmp_path)
    assert stat.S_ISFIFO(stale.stat().st_mode)
    bell.ring_others([Topic.ENDED])
    assert stale.exists()
    bell.ring_others([Topic.QUEUE])
    assert pipes(tmp_path) == []


async def test_a_ring_never_blocks_on_a_process_that_does_not_read(tmp_path: Path):
    bell = FifoBell(SystemClock(), tmp_path)
    with program(LISTENER, str(tmp_path)) as other:
        assert line(other) == "listening"
        other.send_signal(signal.SIGSTOP)
        (pipe,) = pipes(tmp_path)
        _fill(pipe)
        await asyncio.wait_for(asyncio.to_thread(bell.ring_others, [Topic.QUEUE]), 10)
        assert pipe.exists()
        other.send_signal(signal.SIGCONT)
        assert line(other) == "rung"


def _fill(pipe: Path) -> None:
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(descriptor, b"!" * 4096)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


async def test_a_ring_for_others_leaves_this_process_alone(tmp_path: Path):
    bell = FifoBell(SystemClock(), tmp_path)
    with bell.listening(Topic.QUEUE) as listener:
        wait = asyncio.ensure_future(listener.wait(30))
        bell.ring_others(list(Topic))
        await asyncio.sleep(0.01)
        assert not wait.done()
        FifoBell(SystemClock(), tmp_path).ring_others([Topic.QUEUE])
        await asyncio.wait_for(wait, 10)


async def test_nothing_is_left_in_the_folder_when_nobody_listens(tmp_path: Path):
    before = len(pipes(Path("/proc/self/fd")))
    bell = FifoBell(SystemClock(), tmp_path / "bells")
    bell.ring_others(list(Topic))
    assert not (tmp_path / "bells").exists()
    for _ in range(3):
        with bell.listening(Topic.QUEUE), bell.listening(Topic.ENDED), bell.listening(Topic.QUEUE):
            assert len(pipes(tmp_path / "bells")) == 2
        assert pipes(tmp_path / "bells") == []
    assert len(pipes(Path("/proc/self/fd"))) == before


async def test_a_ring_that_fails_harms_nobody(tmp_path: Path):
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    FifoBell(SystemClock(), not_a_folder).ring_others(list(Topic))
    (tmp_path / "queue-folder").mkdir()
    FifoBell(SystemClock(), tmp_path).ring_others(list(Topic))


@contextmanager
def a_file_in_its_place(folder: Path) -> Iterator[Path]:
    (folder / "bells").write_text("not a folder")
    yield folder / "bells"


@contextmanager
def a_disk_that_cannot_be_written(folder: Path) -> Iterator[Path]:
    with small_disk(folder / "disk", 1 << 20) as disk:
        make_read_only(disk)
        yield disk / "bells"


@contextmanager
def a_disk_that_holds_no_more_files(folder: Path) -> Iterator[Path]:
    with small_disk(folder / "disk", 1 << 20, n_files=1) as disk:
        yield disk / "bells"


@contextmanager
def no_descriptor_left(folder: Path) -> Iterator[Path]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    fillers = [os.dup(0) for _ in range(highest)]  # no gap is left below the limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(fillers[-1], highest), limits[1]))
    try:
        yield folder / "bells"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for filler in fillers:
            os.close(filler)


@pytest.mark.parametrize(
    "place",
    [a_file_in_its_place, a_disk_that_cannot_be_written, a_disk_that_holds_no_more_files, no_descriptor_left],
)
async def test_without_a_place_for_pipes_waiters_look_by_themselves_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: Callable[[Path], AbstractContextManager[Path]]
):
    with place(tmp_path) as folder:
        bell = FifoBell(SystemClock(), folder)
        for topic in (Topic.QUEUE, Topic.ENDED, Topic.QUEUE):
            with bell.listening(topic) as listener:
                bell.ring_here(topic)
                await asyncio.wait_for(listener.wait(30), 10)
            bell.ring_others([topic])
    assert not folder.is_dir() or pipes(folder) == []
    (record,) = caplog.records
    assert str(folder) in record.message
    assert "look every 1 s instead" in record.message


async def test_a_folder_that_goes_away_while_somebody_waits_harms_nobody(tmp_path: Path):
    bell = FifoBell(SystemClock(), tmp_path / "bells")
    with bell.listening(Topic.QUEUE):
        shutil.rmtree(tmp_path / "bells")
        bell.ring_others([Topic.QUEUE])
    with bell.listening(Topic.QUEUE):
        assert len(pipes(tmp_path / "bells")) == 1

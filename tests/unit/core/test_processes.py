"""A child process: what it gets, and its end."""

import asyncio
import os
import signal
import sys

import pytest
import uvloop

from outrider.core.processes import Child

LIST = """
import os, sys
for number in range(3, 1024):
    try:
        os.fstat(number)
    except OSError:
        continue
    print(number)
print(*os.environ)
"""


def started(code: str, *, stdout: int = asyncio.subprocess.DEVNULL, given: tuple[int, ...] = ()) -> Child:
    null = asyncio.subprocess.DEVNULL
    return Child([sys.executable, "-I", "-S", "-c", code], stdin=null, stdout=stdout, stderr=null, given=given)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_gets_what_it_is_given_and_nothing_else_whatever_the_event_loop(loop):
    reading, writing = os.pipe()
    given, other = os.pipe()
    os.set_inheritable(other, True)

    async def run() -> int:
        return await started(LIST, stdout=writing, given=(given,)).wait()

    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(run()) == 0
        os.close(writing)
        with os.fdopen(reading) as said:
            assert said.read().split("\n") == [str(given), "LC_CTYPE", ""]
    finally:
        os.close(given)
        os.close(other)


async def test_its_end_is_awaited_by_many_and_known_without_waiting():
    child = started("import time; time.sleep(60)")
    waiting = [asyncio.create_task(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert child.returncode is None
    os.kill(child.pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [-signal.SIGKILL] * 3
    assert child.returncode == await child.wait() == -signal.SIGKILL


async def test_one_that_does_not_end_is_ended():
    child = started("import time; time.sleep(60)")
    await child.ended(0.05)
    assert child.returncode == -signal.SIGKILL

"""Programs that are run to their end, or not."""

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.core.errors import MachineError
from outrider.pool.programs import output_of
from outrider.testing import eventually

LASTING = ["sh", "-c", "sleep 4741 & sleep 4741; true"]


async def nothing_sleeps() -> bool:
    return (await asyncio.to_thread(subprocess.run, ["pgrep", "-f", "[s]leep 4741"], check=False)).returncode == 1


async def test_what_it_writes_is_returned_and_it_knows_our_variables_and_folder(monkeypatch):
    monkeypatch.setenv("GREETING", "hello")
    said = await output_of(["sh", "-c", "echo $GREETING; pwd"], seconds=30, stage="test")
    assert said == f"hello\n{Path.cwd()}\n"


async def test_what_it_writes_is_whole_while_a_program_that_it_left_running_goes_on_writing():
    writer = "i=0; while [ $i -lt 3000 ]; do echo more; i=$((i+1)); done"
    for _ in range(20):
        said = await output_of(["sh", "-c", f"echo done; ({writer}) &"], seconds=30, stage="test")
        assert said.startswith("done\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [(["sh", "-c", "echo broken >&2; exit 3"], "ended with 3: broken"), (["no-such-program"], "no-such-program")],
)
async def test_what_fails_says_why(command, said):
    with pytest.raises(MachineError, match=said):
        await output_of(command, seconds=30, stage="test")


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01, 0.03, 0.1])
async def test_who_is_cancelled_at_any_moment_leaves_nothing_running(delay):
    async with no_leaks():
        running = asyncio.create_task(output_of(LASTING, seconds=60, stage="test"))
        await asyncio.wait([running], timeout=delay)
        time.sleep(0.1)  # what was begun goes on while the event loop is busy
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await eventually(nothing_sleeps)


async def test_what_takes_too_long_is_killed_with_what_it_has_started():
    async with no_leaks():
        with pytest.raises(MachineError, match=r"did not end within 0\.2 s"):
            await output_of(LASTING, seconds=0.2, stage="test")
    await eventually(nothing_sleeps)

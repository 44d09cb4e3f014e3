import ast
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import outrider
from outrider.core.clock import SteadyClock, SystemClock, sleep, utc, wait, wall_offset
from outrider.testing import FakeClock


def test_the_system_clock_tells_the_time():
    before = time.time()
    assert before <= SystemClock().time() <= time.time()


async def test_the_system_clock_calls_later_and_can_be_stopped():
    called = asyncio.get_running_loop().create_future()
    SystemClock().call_later(0.0, lambda: called.done() or called.set_result(None))
    SystemClock().call_later(0.0, lambda: called.set_exception(AssertionError("was stopped"))).cancel()
    await asyncio.wait_for(called, 10)


def test_a_moment_is_an_aware_datetime():
    assert utc(0.5).isoformat() == "1970-01-01T00:00:00.500000+00:00"


async def test_waiting_for_a_future_tells_whether_it_came_in_time():
    clock, loop = FakeClock(), asyncio.get_running_loop()
    future = loop.create_future()
    waiting = asyncio.ensure_future(wait(clock, future, 5))
    await clock.advance(4)
    future.set_result(None)
    assert await waiting is True
    late = loop.create_future()
    waiting = asyncio.ensure_future(wait(clock, late, 5))
    await clock.advance(5)
    assert await waiting is False
    assert late.cancelled()
    assert clock.n_timers == 0


async def test_sleeping_can_be_cancelled_and_leaves_no_timer():
    clock = FakeClock()
    sleeping = asyncio.ensure_future(sleep(clock, 100))
    await clock.advance(1)
    assert clock.n_timers == 1
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert sleeping.cancelled()
    assert clock.n_timers == 0


async def test_sleeping_no_time_returns_at_once():
    await asyncio.wait_for(sleep(FakeClock(), -1), 10)


async def test_a_steady_clock_tells_wall_time_without_its_jumps():
    clock = FakeClock(100.0)
    steady = SteadyClock(clock)
    assert steady.time() == 100.0
    clock.jump(3600)
    await clock.advance(5)
    assert (steady.time(), steady.monotonic(), clock.time()) == (105.0, 5.0, 3705.0)


def test_how_far_wall_time_is_ahead_is_read_again_after_a_pause_between_two_readings():
    class Paused:
        """Stands still for a while at its second reading."""

        def __init__(self) -> None:
            self.now, self.readings = 0.0, 0

        def monotonic(self) -> float:
            self.readings += 1
            self.now += 7.0 if self.readings == 2 else 0.0
            return self.now

        def time(self) -> float:
            self.monotonic()
            return 1000.0 + self.now

        def call_later(self, delay_seconds, callback):
            raise AssertionError

    assert wall_offset(Paused()) == 1000.0


WALL_TIME = {
    "agent/context.py": "timestamps of events",
    "cli/pool_host.py": "ages of machines, shown",
    "cli/pool_journal.py": "ages of machines, shown",
    "cli/pool_serve.py": "ages of machines, shown",
    "cli/rollout_job.py": "the name of a new folder, the end of a timeline, times shown",
    "cli/rollout_trainer.py": "marks of a timeline whose other times are those of events",
    "cli/run_job.py": "the name of a new folder, times shown",
    "cli/status.py": "ages of workers, shown",
    "core/clock.py": "the clock itself",
    "core/ids.py": "the order of ids",
    "env/rag/embeddings.py": "`Retry-After` may be a date",
    "orchestra/batch.py": "when a sample was enqueued",
    "policy/openai/policy.py": "`Retry-After` may be a date",
    "pool/pool.py": "of a `SteadyClock`, which never jumps",
    "pool/qemu/agent.py": "sets the clock of a guest",
    "pool/qemu/workplace.py": "compared with the times of files; a lock decides",
    "pool/upkeep.py": "of a `SteadyClock`, which never jumps",
    "store/jumps.py": "finds the jumps",
    "store/memory/ledger.py": "timestamps in the store",
    "store/memory/machines.py": "timestamps in the store",
    "store/memory/steps.py": "timestamps and leases in the store, which follow the jumps",
    "store/outage.py": "since when the store has been away, logged",
    "store/postgres/clock.py": "only of a clock that a test moves",
    "store/sqlite/steps.py": "timestamps and leases in the store, which follow the jumps",
    "store/sqlite/store.py": "compared with leases, which follow the jumps",
    "train/scheduler.py": "ages of what a batch waits for, in a message",
}
"""The files that read wall time, and what for. It may jump: durations and deadlines are taken on monotonic time."""

NOT_WALL_TIME = {"loop", "_loop", "get_running_loop", "stopwatch"}
"""Whose `time()` is another."""


def test_wall_time_is_read_only_where_it_must_be():
    package = Path(outrider.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if not path.is_relative_to(package / "testing") and any(wall_times(ast.parse(path.read_bytes())))
    }
    assert found - WALL_TIME.keys() == set(), "take durations and deadlines on clock.monotonic()"
    assert WALL_TIME.keys() - found == set(), "these read it no more"


def wall_times(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that read it: `.time()` of a clock or of the module, and `.now()` of a datetime."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="time" | "time_ns", value=owner)):
                if last_name(owner) not in NOT_WALL_TIME:
                    yield node
            case ast.Call(func=ast.Attribute(attr="now" | "utcnow" | "today", value=owner)):
                if last_name(owner) in {"datetime", "date"}:
                    yield node


def last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
    return ""
